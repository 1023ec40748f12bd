"""The latest events of the cluster that this router knows, in memory.

Texts are sentences for people; nothing in them comes from a prompt or an answer.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import deque
from collections.abc import Callable, Iterable

from google.protobuf.message import DecodeError

from twolane.errors import short
from twolane.router.operators.request_looks import page_size
from twolane.v1 import admin_pb2, cluster_pb2

MOST_EVENTS = 2_000
TEXT_BYTES = 300
MOST_BYTES = 8_192  # of one event from a store


class EventLog:
    """`source` is this router's name. `unix_time` is the wall clock. `keep` is called with the kind
    of each event and its message, to keep it where routers share a store."""

    def __init__(
        self,
        source: str,
        *,
        most: int = MOST_EVENTS,
        unix_time: Callable[[], float] = time.time,
        keep: Callable[[str, bytes], None] = lambda kind, event: None,
    ) -> None:
        self._source = source
        self._unix_time = unix_time
        self._keep = keep
        self._events: deque[cluster_pb2.ClusterEvent] = deque(maxlen=most)
        self._numbers = itertools.count(1)
        self._began = unix_time()
        self._news = asyncio.Event()

    def note(
        self, kind: str, subject: str, text: str, audit: cluster_pb2.Audit | None = None
    ) -> cluster_pb2.ClusterEvent:
        """Add an event that has happened now."""
        now = self._unix_time()
        event = cluster_pb2.ClusterEvent(
            id=f"{int(now * 1000):013d}-{self._source}-{next(self._numbers)}",
            at=now,
            source=self._source,
            kind=kind,
            subject=short(subject, TEXT_BYTES),
            text=short(text, TEXT_BYTES),
            audit=audit,
        )
        self._add([event])
        return event

    def take_in(self, events: Iterable[cluster_pb2.ClusterEvent]) -> None:
        """Add events of a controller, which may tell some of them again: those are left out."""
        told = list(events)
        if told:
            known = {event.id for event in self._events}
            self._add([event for event in told if event.id not in known])

    def _add(self, events: Iterable[cluster_pb2.ClusterEvent]) -> None:
        for event in events:
            self._events.append(event)
            self._keep(event.kind, event.SerializeToString())
        self._news.set()
        self._news = asyncio.Event()

    async def wait(self, within_s: float) -> None:
        """Wait until there is a new event, for at most `within_s`."""
        news = self._news
        try:
            async with asyncio.timeout(within_s):
                await news.wait()
        except TimeoutError:
            return

    def page(self, request: admin_pb2.ListEventsRequest) -> admin_pb2.ListEventsResponse:
        """The latest events that fit the request. Raises `InvalidParameterError`."""
        size = page_size(request.page_size)
        since = self._unix_time() - request.since_s if request.since_s else 0.0
        found = [event for event in self._events if event.at >= since and _fits(event, request)]
        found.sort(key=lambda event: event.at)  # those that were told again came late
        is_full = len(self._events) == self._events.maxlen
        return admin_pb2.ListEventsResponse(
            events=found[-size:],
            left_out=max(0, len(found) - size),
            remembered_since=self._events[0].at if is_full else self._began,
        )


def kept_events(
    kept: Iterable[bytes], wanted: admin_pb2.ListEventsRequest, now: float
) -> list[cluster_pb2.ClusterEvent]:
    """Those of a store's events that fit the request. What is no event is left out: others may
    write to the store."""
    since = now - wanted.since_s if wanted.since_s else 0.0
    found = []
    for raw in kept:
        event = cluster_pb2.ClusterEvent()
        try:
            event.ParseFromString(raw[:MOST_BYTES])
        except DecodeError:
            continue
        if event.id and event.at >= since and _fits(event, wanted):
            found.append(event)
    return found


def _fits(event: cluster_pb2.ClusterEvent, wanted: admin_pb2.ListEventsRequest) -> bool:
    kinds = (event.kind, event.kind.partition(".")[0])
    return (
        (not wanted.kinds or any(kind in wanted.kinds for kind in kinds))
        and (not wanted.subject or event.subject == wanted.subject)
        and (not wanted.audit or event.HasField("audit"))
    )
