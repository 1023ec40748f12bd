"""`twolane drain`."""

from __future__ import annotations

import sys

import click
from rich.live import Live
from rich.text import Text

from twolane.admin import AdminClient
from twolane.cli.common import admin_client, console, json_option, operator_option, print_json
from twolane.cli.completion import workers
from twolane.cli.controller import NotProvenError
from twolane.cli.status import EPOCH_SHOWN
from twolane.errors import (
    DeadlineError,
    InvalidRequestError,
    PermissionDeniedError,
    PreconditionError,
    UnavailableError,
)
from twolane.status import DrainInfo

_MOST_WAIT_S = 300.0


@click.command()
@click.argument("worker_id", metavar="WORKER", shell_complete=workers)
@click.option("--undo", is_flag=True, help="Give it work again.")
@click.option("--wait", is_flag=True, help="Show what is left, until it may be killed.")
@click.option(
    "--timeout-s",
    type=float,
    default=_MOST_WAIT_S,
    show_default=True,
    help="With --wait: exit with 5 if it takes longer.",
)
@click.option(
    "--hand-over", is_flag=True, help="Resume its running answers elsewhere, as room allows."
)
@click.option(
    "--take",
    is_flag=True,
    help="With --wait: make the drain final, for you are about to kill it.",
)
@click.option(
    "--expect-epoch", default="", metavar="EPOCH", help="Refuse if it was started again since."
)
@json_option
@operator_option
def drain(
    worker_id: str,
    *,
    undo: bool,
    wait: bool,
    timeout_s: float,
    hand_over: bool,
    take: bool,
    expect_epoch: str,
    as_json: bool,
    endpoint: str | None,
) -> None:
    """Let WORKER finish what it runs, and give it nothing new.

    With --wait it returns when WORKER has its ticket: then it may be killed at any instant, even by
    SIGKILL, and nobody loses a token or a page. Until then it names what is in the way.
    """
    if undo and (wait or hand_over):
        raise click.UsageError("--undo goes with neither --wait nor --hand-over")
    if take and not wait:
        raise click.UsageError("--take needs --wait: the ticket comes when nothing is left")
    admin = admin_client(endpoint)
    if admin is None:
        raise PermissionDeniedError(
            "workers are drained through the operator's socket alone: --endpoint unix:PATH, on the "
            "router's machine (`twolane up` shows it)"
        )
    with admin:
        epoch = _epoch_of(admin, worker_id, expect_epoch) if wait or expect_epoch else 0
        admin.drain(worker_id, undo=undo, hand_over=hand_over, expect_epoch=epoch)
        if not wait:
            click.echo(f"{worker_id} takes work again" if undo else f"{worker_id} drains")
            return
        news = _wait(admin, worker_id, epoch, timeout_s=timeout_s, as_json=as_json)
        if take:
            admin.take_ticket(worker_id, news.number, expect_epoch=epoch)
        if not as_json:
            done = "is yours to kill" if take else "may be killed"
            click.echo(f"{worker_id} {done}: ticket {epoch:x}-{news.number}")


def _epoch_of(admin: AdminClient, worker_id: str, expected: str) -> int:
    """The worker's epoch, which is to be what `twolane status` has shown, or its --json."""
    ours = [w.epoch for w in admin.status().workers if w.worker_id == worker_id and w.is_here]
    if not ours:
        raise InvalidRequestError(f"there is no worker {worker_id!r}", field="worker_id")
    epoch = ours[-1]
    is_beginning = len(expected) >= EPOCH_SHOWN and f"{epoch:016x}".startswith(expected)
    if expected and not is_beginning and expected != str(epoch):
        raise PreconditionError(
            f"{worker_id} was started again: its epoch is {epoch:016x}, not {expected}"
        )
    return epoch


def _wait(
    admin: AdminClient, worker_id: str, epoch: int, *, timeout_s: float, as_json: bool
) -> DrainInfo:
    """Show what is left until there is a ticket. Raises `NotProvenError` if that takes too long."""
    latest: DrainInfo | None = None
    with Live(console=console(), auto_refresh=False, transient=True) as live:
        try:
            for latest in admin.watch_drain(worker_id, timeout_s=timeout_s, expect_epoch=epoch):
                if as_json:
                    print_json(latest, indent=None)
                elif sys.stdout.isatty():
                    live.update(_shown(worker_id, latest), refresh=True)
                else:
                    click.echo(_shown(worker_id, latest).plain)
        except DeadlineError as error:
            left = _left(latest) if latest is not None else "it has not answered"
            raise NotProvenError(
                f"{worker_id} may not be killed yet, after {timeout_s:g} s: {left}"
            ) from error
    if latest is None or not latest.has_ticket:
        raise UnavailableError(f"{worker_id} ended before it had its ticket")
    return latest


def _shown(worker_id: str, news: DrainInfo | None) -> Text:
    text = "is told to drain" if news is None else _left(news)
    style = "green" if news is not None and news.has_ticket else "yellow"
    return Text.assemble(f"{worker_id}: ", (text, style))


def _left(news: DrainInfo) -> str:
    if news.has_ticket:
        return "nothing is in the way"
    text = "; ".join(map(str, news.blockers)) or "its ticket is on the way"
    return f"{text} (at most {news.eta_s:.0f} s)" if news.eta_s >= 1 else text
