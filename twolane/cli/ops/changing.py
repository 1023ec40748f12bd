"""Commands that change the cluster show what will be done, ask, and then do just that."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import click

from twolane.admin import AdminClient
from twolane.cli.controller import NotProvenError
from twolane.cli.ops.output import print_message
from twolane.cli.waiting import no_answer, telling
from twolane.v1 import acts_pb2

CALL_S = 60.0
SLOW_S = 660.0  # a fence command may take minutes, and so may hosts that read a model's files


def change(
    admin: AdminClient,
    method: str,
    request: Any,
    *,
    yes: bool,
    as_json: bool,
    nothing: str,
    within_s: float = CALL_S,
    quiet: bool = False,
    left: Callable[[], str] = no_answer,
) -> acts_pb2.ActResponse | None:
    """Have that act done, whose request has an `act`. None: it was a dry run, or changes nothing.
    Without a terminal, --yes is demanded. `quiet`: print what would be done alone. `left`:
    what a slow act waits for, which `telling` says."""
    _check_can_ask(yes=yes, dry_run=request.act.dry_run)
    if not yes or request.act.dry_run:
        planned = type(request)()
        planned.CopyFrom(request)
        planned.act.dry_run, planned.act.request_id = True, ""
        with telling(left):
            plan = admin.call(method, planned, within_s=within_s)
        if request.act.dry_run:
            _print(plan, nothing, as_json=as_json)
            return None
        click.echo(in_words(plan, nothing), err=True)
        if not plan.changes:
            return None
        click.confirm("Do that?", abort=True, err=True)
    with telling(left):
        done: acts_pb2.ActResponse = admin.call(method, request, within_s=within_s)
    if not quiet:
        _print(done, nothing, as_json=as_json)
    return done


def confirm(what: str, *, yes: bool, dry_run: bool = False) -> bool:
    """Show what will be done, and ask, where no router can be asked for a plan. False: it was a dry
    run."""
    _check_can_ask(yes=yes, dry_run=dry_run)
    if dry_run:
        click.echo(f"this would be done:\n  {what}")
        return False
    if not yes:
        click.echo(what, err=True)
        click.confirm("Do that?", abort=True, err=True)
    return True


def _check_can_ask(*, yes: bool, dry_run: bool) -> None:
    if not (yes or dry_run or can_ask()):
        its = click.get_current_context().command.params
        look = "look with --dry-run, then " * any("--dry-run" in each.opts for each in its)
        raise click.UsageError(
            f"standard input is no terminal, so nobody can be asked: {look}say --yes"
        )


def can_ask() -> bool:
    """Whether there is a terminal, at which a question can be answered."""
    return sys.stdin.isatty()


def print_proof(done: acts_pb2.ActResponse | None, *, as_json: bool) -> None:
    """Print the proof of a kill. Raises `NotProvenError` if there is none."""
    if done is None:
        return
    if done.not_proven:
        raise NotProvenError(f"not proven: {done.not_proven}")
    if not as_json:
        click.echo(done.proof)


def in_words(done: acts_pb2.ActResponse, nothing: str) -> str:
    """decode-1: runs > drains. `nothing` is what to say where it was so already."""
    lines = [
        f"{each.subject}: {each.before + ' > ' if each.before else ''}{each.after}"
        for each in done.changes
    ]
    if done.dry_run and lines:
        lines = ["this would be done:", *(f"  {line}" for line in lines)]
    return "\n".join(lines) or nothing


def _print(done: acts_pb2.ActResponse, nothing: str, *, as_json: bool) -> None:
    if as_json:
        print_message(done)
    else:
        click.echo(in_words(done, nothing))
