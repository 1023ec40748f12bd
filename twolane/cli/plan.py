"""`twolane plan`: becomes the planner of `twolane.deploy`, which needs the extra `[plan]`."""

from __future__ import annotations

import os
import sys

import click


@click.command(
    add_help_option=False,  # the planner parses its own options and prints their help
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def plan(arguments: tuple[str, ...]) -> None:
    """Say how many workers of each role a recorded load needs, and what they cost."""
    # -P, so that a user's folder `twolane` is not imported
    command = [sys.executable, "-P", "-m", "twolane.deploy.cli.plan_command", *arguments]
    sys.stdout.flush()
    os.execv(sys.executable, command)
