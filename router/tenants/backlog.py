"""Chooses the request to evict from a full queue: at the lowest priority, the youngest one of the
tenant with the longest backlog, but a deferred one first."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from typing import Generic, TypeVar

from twolane.router.lazy_heap import LazyHeap

ThingT = TypeVar("ThingT", bound=Hashable)


class _Of(Generic[ThingT]):
    """The backlog of one priority."""

    def __init__(self) -> None:
        self.longest: LazyHeap[str] = LazyHeap()
        self.youngest: dict[str, LazyHeap[ThingT]] = {}  # by (is in time, -arrival)


class Backlog(Generic[ThingT]):
    """A tenant's backlog is its number of requests divided by its weight. Each operation takes
    O(log n)."""

    def __init__(self, weight_of: Callable[[str], float]) -> None:
        self._weight_of = weight_of
        self._priorities: dict[int, _Of[ThingT]] = {}
        self._entries: dict[ThingT, tuple[int, str]] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def put(self, thing: ThingT, priority: int, tenant: str, arrival: int) -> None:
        """Add `thing`, which must not be present."""
        self._entries[thing] = priority, tenant
        of = self._priorities.setdefault(priority, _Of())
        of.youngest.setdefault(tenant, LazyHeap()).put(thing, (True, -arrival))
        self._rank(of, priority, tenant)

    def defer(self, thing: ThingT, *, is_deferred: bool) -> None:
        """Whether `thing`, which must be present, is evicted before those that are not deferred."""
        priority, tenant = self._entries[thing]
        youngest = self._priorities[priority].youngest[tenant]
        was_in_time, rank = youngest.rank_of(thing)
        if was_in_time is is_deferred:
            youngest.put(thing, (not is_deferred, rank))  # guard: deferred ones are evicted

    def deferred(self) -> Iterator[ThingT]:
        """All that are, in no particular order."""
        for thing, (priority, tenant) in self._entries.items():
            if not self._priorities[priority].youngest[tenant].rank_of(thing)[0]:
                yield thing

    def discard(self, thing: ThingT) -> None:
        """Remove `thing`, if present."""
        entry = self._entries.pop(thing, None)
        if entry is None:
            return
        priority, tenant = entry
        of = self._priorities[priority]
        of.youngest[tenant].discard(thing)
        self._rank(of, priority, tenant)

    def last(self) -> ThingT | None:
        """The one to evict; None if there is none. It is not removed."""
        if not self._priorities:
            return None
        of = self._priorities[min(self._priorities)]
        tenant = of.longest.first()
        return None if tenant is None else of.youngest[tenant].first()

    def length(self, priority: int, tenant: str, more: int = 0) -> float:
        """The backlog of a tenant at a priority, if it had `more` requests more."""
        of = self._priorities.get(priority)
        waiting = () if of is None else of.youngest.get(tenant, ())
        return (len(waiting) + more) / self._weight_of(tenant)

    def _rank(self, of: _Of[ThingT], priority: int, tenant: str) -> None:
        if of.youngest[tenant]:
            of.longest.put(tenant, -self.length(priority, tenant))
            return
        of.longest.discard(tenant)
        del of.youngest[tenant]
        if not of.youngest:
            del self._priorities[priority]
