"""Events of what changes around a router: other routers, and the shared store."""

from __future__ import annotations

from collections.abc import Collection

from twolane.router.operators.event_log import EventLog
from twolane.router.store import Health


class Changes:
    """Call it now and then with what is there."""

    def __init__(self, events: EventLog) -> None:
        self._events = events
        self._routers: frozenset[str] = frozenset()
        self._is_store_up = True

    def note_routers(self, names: Collection[str]) -> None:
        """These other routers are there."""
        now = frozenset(names)
        for name in sorted(now - self._routers):
            self._events.note("router.found", name, f"router {name} is there")
        for name in sorted(self._routers - now):
            self._events.note("router.lost", name, f"router {name} is not heard of any more")
        self._routers = now

    def note_store(self, health: Health | None) -> None:
        """The store that routers share is like this; None: they share none."""
        if health is None or health.is_up is self._is_store_up:
            return
        self._is_store_up = health.is_up
        if health.is_up:
            self._events.note("store.up", health.address, f"the store {health.address} answers")
        else:
            text = f"the store {health.address} does not answer: {health.note}"
            self._events.note("store.down", health.address, text)
