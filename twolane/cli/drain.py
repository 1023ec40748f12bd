"""`twolane drain`."""

from __future__ import annotations

import sys
from contextlib import nullcontext

import click
from rich.live import Live
from rich.text import Text

from twolane.admin import AdminClient
from twolane.cli.common import console, json_option, operator, operator_option, print_json
from twolane.cli.completion import workers
from twolane.cli.controller import NotProvenError
from twolane.cli.ops.acting import new_act
from twolane.cli.ops.changing import in_words
from twolane.cli.ops.epochs import epoch_of, expect_epoch_option
from twolane.cli.ops.output import ID_SHOWN, count, print_message
from twolane.cli.times import Seconds
from twolane.cli.waiting import News, telling
from twolane.errors import DeadlineError, UnavailableError
from twolane.status import DrainInfo
from twolane.v1 import acts_pb2, admin_pb2, cluster_pb2

_MOST_WAIT_S = 300.0
_MOST_NAMED = 5


@click.command()
@click.argument("worker_id", metavar="WORKER", shell_complete=workers)
@click.option("--undo", is_flag=True, help="End the drain and give the worker new requests.")
@click.option("--wait", is_flag=True, help="Show what is left until the worker may be killed.")
@click.option(
    "--timeout-s",
    type=Seconds(),
    default=_MOST_WAIT_S,
    show_default=True,
    help="With --wait: exit with 5 if it takes longer.",
)
@click.option(
    "--hand-over", is_flag=True, help="Resume its running answers at other workers, as room allows."
)
@click.option(
    "--take",
    is_flag=True,
    help="With --wait: make the drain final, before you kill the worker.",
)
@expect_epoch_option
@click.option("--reason", default="", help="The reason, for the audit log.")
@click.option("--dry-run", is_flag=True, help="Show what would change, without changing it.")
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
    reason: str,
    dry_run: bool,
    as_json: bool,
    endpoint: str | None,
) -> None:
    """Let WORKER finish its requests, and give it no new ones.

    With --wait, the command returns when WORKER has its ticket: from then on it may be killed at
    any time, even by SIGKILL, without loss of a token or a page. Until then the command shows what
    is left.
    """
    if undo and (wait or hand_over):
        raise click.UsageError("--undo cannot be combined with --wait or --hand-over")
    if take and not wait:
        raise click.UsageError("--take needs --wait: a worker gets its ticket when nothing is left")
    with operator(endpoint) as admin:
        epoch = epoch_of(admin, worker_id, expect_epoch) if wait or expect_epoch else 0
        request = cluster_pb2.DrainWorkerRequest(
            worker_id=worker_id,
            undo=undo,
            hand_over=hand_over,
            expect_epoch=epoch,
            act=new_act(reason, dry_run=dry_run),
        )
        done = admin.call("DrainWorker", request).response
        if not wait or dry_run:
            _print(admin, request, done, as_json=as_json)
            return
        news = _wait(admin, worker_id, epoch, timeout_s=timeout_s, as_json=as_json)
        if take:
            taking = cluster_pb2.DrainWorkerRequest(
                worker_id=worker_id,
                take_ticket=news.number,
                expect_epoch=epoch,
                act=new_act(reason, dry_run=False),
            )
            admin.call("DrainWorker", taking)
        if not as_json:
            done_text = "is yours to kill" if take else "may be killed"
            click.echo(f"{worker_id} {done_text}: ticket {epoch:x}-{news.number}")


def _print(
    admin: AdminClient,
    request: cluster_pb2.DrainWorkerRequest,
    done: acts_pb2.ActResponse,
    *,
    as_json: bool,
) -> None:
    """What was done; of a dry run, what would be done, and what the worker has to finish first."""
    name = request.worker_id
    if as_json:
        print_message(done)
    elif not request.act.dry_run:
        click.echo(f"{name} takes new requests again" if request.undo else f"{name} is draining")
    else:
        nothing = f"{name} {'does not drain' if request.undo else 'drains already'}"
        click.echo(in_words(done, nothing))
        if done.changes and not request.undo:
            click.echo(f"  first: {_in_the_way(admin, name)}")


def _in_the_way(admin: AdminClient, worker_id: str) -> str:
    """Text such as `3 requests (r1, r2, …) are answered there`."""
    asked = admin_pb2.ListRequestsRequest(worker_id=worker_id, page_size=_MOST_NAMED)
    page: admin_pb2.ListRequestsResponse = admin.call("ListRequests", asked)
    if not page.requests:
        return "nothing: no request has work there"
    names = [its.request_id or its.submission_id[:ID_SHOWN] for its in page.requests]
    more = ", …" * (page.total > len(names))
    verb = "is" if page.total == 1 else "are"
    return f"{count(page.total, 'request')} ({', '.join(names)}{more}) {verb} answered there"


def _wait(
    admin: AdminClient, worker_id: str, epoch: int, *, timeout_s: float, as_json: bool
) -> DrainInfo:
    """Show what is left until the worker has its ticket. Raises `NotProvenError` if that takes too
    long."""
    latest: DrainInfo | None = None
    lines = News(err=as_json)
    is_drawn = sys.stdout.isatty() and not as_json
    with (
        Live(console=console(), auto_refresh=False, transient=True) as live,
        nullcontext() if is_drawn else telling(lambda: _shown(worker_id, latest).plain, lines),
    ):
        try:
            for latest in admin.watch_drain(worker_id, timeout_s=timeout_s, expect_epoch=epoch):
                if as_json:
                    print_json(latest, indent=None)
                elif is_drawn:
                    live.update(_shown(worker_id, latest).append(_eta(latest)), refresh=True)
                else:
                    lines.tell(_shown(worker_id, latest).plain, _eta(latest))
        except DeadlineError as error:
            left = "the worker has not answered" if latest is None else _left(latest)
            raise NotProvenError(
                f"{worker_id} may not be killed yet, after {timeout_s:g} s: {left}{_eta(latest)}"
            ) from error
    if latest is None or not latest.has_ticket:
        raise UnavailableError(f"{worker_id} ended before it had its ticket")
    return latest


def _shown(worker_id: str, news: DrainInfo | None) -> Text:
    text = "has been told to drain" if news is None else _left(news)
    style = "green" if news is not None and news.has_ticket else "yellow"
    return Text.assemble(f"{worker_id}: ", (text, style))


def _left(news: DrainInfo) -> str:
    if news.has_ticket:
        return "nothing is left"
    return "; ".join(map(str, news.blockers)) or "it will get its ticket soon"


def _eta(news: DrainInfo | None) -> str:
    """How long that may take, which is another in each report."""
    if news is None or news.has_ticket or news.eta_s < 1:
        return ""
    return f" (at most {news.eta_s:.0f} s)"
