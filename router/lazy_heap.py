"""A heap whose entries can be removed or moved, with a dictionary beside it.

A removed entry stays in the heap as dead until it reaches the top, or until half of the heap is
dead: then all dead entries are removed at once. So the heap has at most twice as many entries as
are live (and a few more).
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Iterator
from typing import Any, Generic, TypeVar

ThingT = TypeVar("ThingT", bound=Hashable)
FEW = 64  # so few dead entries need no clean-up


class LazyHeap(Generic[ThingT]):
    """Things by rank, the least first; of equal ranks the one put first."""

    def __init__(self) -> None:
        self._ranks: dict[ThingT, Any] = {}
        self._heap: list[tuple[Any, int, ThingT]] = []
        self._n_put = 0

    def __len__(self) -> int:
        return len(self._ranks)

    def __iter__(self) -> Iterator[ThingT]:
        """All things, in no particular order."""
        return iter(self._ranks)

    def rank_of(self, thing: ThingT) -> Any:
        """The rank of `thing`; None if it is not present."""
        return self._ranks.get(thing)

    def put(self, thing: ThingT, rank: Any) -> None:
        """Add `thing`, or move it to `rank`."""
        self._ranks[thing] = rank
        self._n_put += 1
        heapq.heappush(self._heap, (rank, self._n_put, thing))
        self._compact()

    def discard(self, thing: ThingT) -> None:
        """Remove `thing`, if present."""
        if self._ranks.pop(thing, None) is not None:
            self._compact()

    def first(self) -> ThingT | None:
        """The thing of the least rank, which is not removed; None if there is none."""
        while self._heap:
            rank, _, thing = self._heap[0]
            if self._ranks.get(thing) == rank:
                return thing
            heapq.heappop(self._heap)
        return None

    def take_up_to(self, rank: Any) -> list[ThingT]:
        """Remove and return all things of at most this rank, the least first."""
        taken = []
        while (thing := self.first()) is not None and self._ranks[thing] <= rank:
            heapq.heappop(self._heap)
            del self._ranks[thing]
            taken.append(thing)
        return taken

    def _compact(self) -> None:
        if len(self._heap) > 2 * len(self._ranks) + FEW:
            self._heap = [e for e in self._heap if self._ranks.get(e[2]) == e[0]]
            heapq.heapify(self._heap)
