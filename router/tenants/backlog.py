"""Who gives its place when there are too many: of the least priority, the tenant with the longest
backlog, and of that its youngest."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from twolane.router.lazy_heap import LazyHeap

ThingT = TypeVar("ThingT", bound=Hashable)


class _Of(Generic[ThingT]):
    """One priority's."""

    def __init__(self) -> None:
        self.longest: LazyHeap[str] = LazyHeap()
        self.youngest: dict[str, LazyHeap[ThingT]] = {}


class Backlog(Generic[ThingT]):
    """A backlog is counted in requests over the tenant's weight. Each operation takes O(log n)."""

    def __init__(self, weight_of: Callable[[str], float]) -> None:
        self._weight_of = weight_of
        self._priorities: dict[int, _Of[ThingT]] = {}
        self._entries: dict[ThingT, tuple[int, str]] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def put(self, thing: ThingT, priority: int, tenant: str, arrival: int) -> None:
        """It must not be here."""
        self._entries[thing] = priority, tenant
        of = self._priorities.setdefault(priority, _Of())
        of.youngest.setdefault(tenant, LazyHeap()).put(thing, -arrival)
        self._rank(of, priority, tenant)

    def discard(self, thing: ThingT) -> None:
        """It may be absent."""
        entry = self._entries.pop(thing, None)
        if entry is None:
            return
        priority, tenant = entry
        of = self._priorities[priority]
        of.youngest[tenant].discard(thing)
        self._rank(of, priority, tenant)

    def last(self) -> ThingT | None:
        """The one that gives its place. It stays."""
        if not self._priorities:
            return None
        of = self._priorities[min(self._priorities)]
        tenant = of.longest.first()
        return None if tenant is None else of.youngest[tenant].first()

    def length(self, priority: int, tenant: str, more: int = 0) -> float:
        """Of that tenant at that priority, with so many requests more."""
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
