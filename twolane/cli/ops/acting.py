"""The options of commands that change something, and the act that these make."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Any, TypeVar

import click

from twolane.v1 import acts_pb2

CommandT = TypeVar("CommandT", bound=Callable[..., Any])

_OPTIONS = [
    click.option("--reason", default="", help="The reason, for the audit log."),
    click.option("--dry-run", is_flag=True, help="Show what would change, without changing it."),
    click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation."),
]


def act_options(command: CommandT) -> CommandT:
    """Add --reason, --dry-run and --yes."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def new_act(reason: str, *, dry_run: bool) -> acts_pb2.Act:
    """A new act. Its id makes sure that a repeated call is carried out only once."""
    return acts_pb2.Act(request_id=secrets.token_hex(8), reason=reason, dry_run=dry_run)
