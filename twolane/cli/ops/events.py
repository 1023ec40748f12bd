"""`twolane events`: shows what happened in the cluster, and who did what."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Sequence
from functools import partial

import click
from rich.text import Text

from twolane.admin import AdminClient
from twolane.cli.common import emit, json_option, operator, operator_option
from twolane.cli.ops.output import count, missing, print_message, quiet_option, seconds, show
from twolane.cli.patience import Patient
from twolane.cli.rows import Rows
from twolane.cli.times import Duration
from twolane.v1 import admin_pb2, cluster_pb2

_BAD = ("gone", "died", "lost", "suspect", "silent", "off", "down", "failed")
_MOST = 1_000
_SAME_S = 5.0  # as routers merge what several of them note


@click.command()
@click.option(
    "--since",
    "since_s",
    type=Duration(),
    default=0.0,
    metavar="10m",
    help="Only events of this last time.",
)
@click.option("--follow", is_flag=True, help="Show new events until Ctrl-C.")
@click.option(
    "--kind",
    "kinds",
    multiple=True,
    help="A kind like worker, worker.gone or act; may be repeated.",
)
@click.option("--about", "subject", default="", help="A worker, host, router or submission id.")
@click.option("--audit", is_flag=True, help="Only operators' acts.")
@click.option("--limit", type=click.IntRange(1, _MOST), default=100, show_default=True)
@quiet_option
@json_option
@operator_option
def events(
    *,
    since_s: float,
    follow: bool,
    kinds: Sequence[str],
    subject: str,
    audit: bool,
    limit: int,
    quiet: bool,
    as_json: bool,
    endpoint: str | None,
) -> None:
    """Show what happened in the cluster, and who did what, oldest first.

    Each router keeps its last 2,000 events in memory. The one that the controller tells of
    processes and sizes hears its latest 200 again when it starts again. Where routers share a
    store, all events outlive them there.
    """
    asked = admin_pb2.ListEventsRequest(
        since_s=since_s, kinds=kinds, subject=subject, page_size=limit, audit=audit
    )
    if follow:
        with Patient(operator(endpoint), partial(operator, endpoint)) as patient:
            for news in _followed(patient, asked):
                _tell(news, as_json=as_json, quiet=quiet)
        return
    with operator(endpoint) as admin:
        is_chosen = bool(since_s or kinds or subject or audit)
        page = admin.call("ListEvents", asked)
        _show(page, is_chosen=is_chosen, as_json=as_json, quiet=quiet)


def _followed(
    patient: Patient[AdminClient], asked: admin_pb2.ListEventsRequest
) -> Iterator[admin_pb2.WatchEventsResponse]:
    """Each change once: a router that is asked anew begins with the past, and may have noted itself
    what the one before has told."""
    began, first_at = time.time(), 0.0
    told: deque[cluster_pb2.ClusterEvent] = deque(maxlen=2 * _MOST)
    stream: tuple[AdminClient, Iterator[admin_pb2.WatchEventsResponse]] | None = None

    def ask(admin: AdminClient) -> admin_pb2.WatchEventsResponse | None:
        nonlocal stream
        if stream is None or stream[0] is not admin:
            past = admin_pb2.ListEventsRequest()
            past.CopyFrom(asked)
            if stream is not None:
                past.page_size = _MOST  # what happened meanwhile may be more than was asked for
            if asked.since_s:
                past.since_s += time.time() - began
            stream = admin, admin.watch("WatchEvents", admin_pb2.WatchEventsRequest(past=past))
        return next(stream[1], None)

    first = stream
    while True:
        news = patient.look(ask)
        if news is None:
            return
        is_another = first is not None and stream is not first
        if is_another:
            new = [
                its
                for its in news.events
                if its.at >= first_at and not any(_is_same(its, old) for old in told)
            ]
            del news.events[:]
            news.events.extend(new)
            if not (new or news.unreached):
                continue
        first = first or stream
        if news.events and not told:
            first_at = news.events[0].at
        told.extend(news.events)
        yield news


def _is_same(one: cluster_pb2.ClusterEvent, other: cluster_pb2.ClusterEvent) -> bool:
    """One event, or one change that two sources have noted."""
    if one.id == other.id:
        return True
    return (
        (one.kind, one.subject, one.text) == (other.kind, other.subject, other.text)
        and one.source != other.source
        and abs(one.at - other.at) < _SAME_S
        and not one.HasField("audit")
    )


def _show(
    page: admin_pb2.ListEventsResponse, *, is_chosen: bool, as_json: bool, quiet: bool
) -> None:
    if as_json:
        print_message(page)
    elif quiet:
        for event in page.events:
            click.echo(event.id)
    else:
        parts = [event_rows(page.events)] if page.events else []
        nothing = "no events match" if is_chosen else "nothing has happened"
        show(so_what(page, nothing), *parts, *missing(page.unreached))


def _tell(news: admin_pb2.WatchEventsResponse, *, as_json: bool, quiet: bool) -> None:
    if as_json:
        print_message(news, in_one_line=True)
        return
    for event in news.events:
        if quiet:
            click.echo(event.id)
        else:
            emit(Text.assemble((f"{_clock(event.at)}  ", "dim"), _text(event)))
    for line in missing(news.unreached):
        emit(line)


def so_what(page: admin_pb2.ListEventsResponse, nothing: str) -> str:
    """A summary such as `3 events in the last 10 min: 1 worker is gone, 2 acts by
    operator/anna`."""
    if not page.events:
        return f"{nothing}, as far as routers remember"
    parts = []
    bad = [event for event in page.events if event.kind.rpartition(".")[2] in _BAD]
    if bad:
        names = dict.fromkeys(event.subject for event in bad)
        parts.append(f"trouble with {', '.join(names)}")
    acts = [event for event in page.events if event.HasField("audit")]
    if acts:
        who = dict.fromkeys(event.audit.who for event in acts)
        parts.append(f"{count(len(acts), 'act')} by {', '.join(who)}")
    older = f"; {page.left_out} older ones are not shown (--limit)" if page.left_out else ""
    ago = seconds(max(0.0, time.time() - page.events[0].at))
    said = ", ".join(parts) or "no trouble"
    return f"{count(len(page.events), 'event')} in the last {ago}: {said}{older}"


def event_rows(events: Sequence[cluster_pb2.ClusterEvent]) -> Rows:
    table = Rows(("at", "kind", "from", "event"), ())
    for event in events:
        table.add_row(_clock(event.at), Text(event.kind, _style(event)), event.source, event.text)
    return table


def _text(event: cluster_pb2.ClusterEvent) -> Text:
    return Text(event.text, style=_style(event))


def _style(event: cluster_pb2.ClusterEvent) -> str:
    if event.kind.rpartition(".")[2] in _BAD or event.audit.refused:
        return "red"
    return "cyan" if event.HasField("audit") else ""


def _clock(at: float) -> str:
    """Local time, with the day if it is not today."""
    then = time.localtime(at)
    is_today = then[:3] == time.localtime(time.time())[:3]
    return time.strftime("%H:%M:%S" if is_today else "%m-%d %H:%M:%S", then)
