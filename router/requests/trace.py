"""How a request's time was spent, as spans.

    queued     |=====|
    prefill wait     |-|
    prefill            |=====|             placed ... first token
    transfer                 |==|          ... joined
    decode wait                 |-|
    decode                        |======  ... the end, or now

An attempt begins and ends by the router's clock. Times that workers have measured are placed inside
it; where they have reported nothing yet, the router's own times are used.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from twolane.attempt_number import try_of
from twolane.router.requests.journal import (
    ENDED,
    FIRST_TOKEN,
    JOINED,
    MOVED,
    PLACED,
    RETRY,
    Mark,
)
from twolane.router.requests.record import RequestRecord
from twolane.v1 import admin_pb2, worker_pb2

_P, _D = worker_pb2.ROLE_PREFILL, worker_pb2.ROLE_DECODE
_NOTHING = worker_pb2.RowFigures()


class Span(NamedTuple):
    """A part of a request's time, on the router's clock."""

    name: str
    start: float
    end: float
    where: str = ""  # the worker; of a transfer both
    attempt: int = 0  # its number, with the fence; 0: none
    is_open: bool = False


@dataclass(slots=True)
class _Part:
    """An attempt, as far as the marks show it."""

    begun: Mark
    first_token: float | None = None
    joined: float | None = None


def spans_of(record: RequestRecord, now: float) -> list[Span]:
    """The spans, each attempt's in order. No span is empty, but that of what is going on."""
    spans: list[Span] = []
    waits_since, wait = record.arrived, "queued"
    part: _Part | None = None
    for mark in record.journal:
        if mark.what in (PLACED, MOVED):
            if part is not None:
                spans += _of_attempt(record, part, mark.at, is_open=False)
            else:
                spans.append(Span(wait, waits_since, mark.at))
            part = _Part(mark)
        elif mark.what == FIRST_TOKEN and part is not None:
            part.first_token = mark.at
        elif mark.what == JOINED and part is not None:
            part.joined = mark.at
        elif mark.what in (RETRY, ENDED):
            if part is not None:
                spans += _of_attempt(record, part, mark.at, is_open=False)
                part = None
            elif mark.what == ENDED:
                spans.append(Span(wait, waits_since, mark.at))
            waits_since, wait = mark.at, "resume wait"
    if record.ended is None:
        if part is not None:
            spans += _of_attempt(record, part, now, is_open=True)
        else:
            spans.append(Span(wait, waits_since, now, is_open=True))
    return [span for span in spans if span.is_open or span.end > span.start]


def trace_spans(record: RequestRecord, now: float) -> list[admin_pb2.TraceSpan]:
    """The spans, in seconds since the request's arrival."""
    return [
        admin_pb2.TraceSpan(
            name=span.name,
            attempt=try_of(span.attempt),
            where=span.where,
            start_s=span.start - record.arrived,
            end_s=span.end - record.arrived,
            open=span.is_open,
        )
        for span in spans_of(record, now)
    ]


def trace_marks(record: RequestRecord) -> list[admin_pb2.TraceMark]:
    return [
        admin_pb2.TraceMark(
            at_s=mark.at - record.arrived,
            what=mark.what,
            attempt=try_of(mark.attempt),
            where=workers_of(mark),
            note=mark.note,
        )
        for mark in record.journal
    ]


def _of_attempt(record: RequestRecord, part: _Part, end: float, *, is_open: bool) -> Iterator[Span]:
    number, start = part.begun.attempt, part.begun.at
    giver, taker = part.begun.where, part.begun.to
    of_p = record.timeline.figures.get((number, _P), _NOTHING)
    of_d = record.timeline.figures.get((number, _D), _NOTHING)
    at = min(start, end)
    is_computed = part.begun.what == MOVED and record.timeline.first_token is not None
    if not is_computed:
        reached = part.first_token or part.joined
        latest = end if reached is None else min(end, reached)
        if of_p.prefill_s:
            began = min(latest, at + of_p.prefill_wait_s)
            yield Span("prefill wait", at, began, giver, number)
            at = min(latest, began + of_p.prefill_s)
            yield Span("prefill", began, at, giver, number)
        else:
            is_running = is_open and reached is None
            yield Span("prefill", at, latest, giver, number, is_open=is_running)
            at = latest
        if reached is None:
            return
    is_whole = record.finish in ("stop", "length")
    if giver != taker and not (part.joined is None and is_whole):
        until = min(end, part.joined or end)
        waits_from = max(at, until - of_d.decode_wait_s) if part.joined is not None else until
        pair, is_running = f"{giver} > {taker}", is_open and part.joined is None
        yield Span("transfer", at, waits_from, pair, number, is_open=is_running)
        yield Span("decode wait", waits_from, until, taker, number)
        at = until
    if part.joined is not None:
        at = max(at, part.joined)
        last = record.timeline.last_token
        until = end if is_open or last is None or last < at else min(last, end)
        yield Span("decode", at, until, taker, number, is_open=is_open)


def workers_of(mark: Mark) -> str:
    """The worker of a mark; both workers for a whole attempt."""
    if mark.what == FIRST_TOKEN or mark.to == mark.where:
        return mark.where
    return mark.to if mark.what == JOINED else f"{mark.where} > {mark.to}"
