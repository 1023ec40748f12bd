"""A heap whose entries can be taken back or moved, at the cost of a dictionary.

What is taken back stays in the heap, dead, until it comes to the top or half of the heap is dead:
then all dead entries go at once. So the heap is never larger than twice what lives (and a few).
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Iterator
from typing import Any, Generic, TypeVar

ThingT = TypeVar("ThingT", bound=Hashable)
FEW = 64  # dead entries that are not worth the trouble


class LazyHeap(Generic[ThingT]):
    """Things by rank, the least first; of equal ranks the one that came first."""

    def __init__(self) -> None:
        self._ranks: dict[ThingT, Any] = {}
        self._heap: list[tuple[Any, int, ThingT]] = []
        self._n_put = 0

    def __len__(self) -> int:
        return len(self._ranks)

    def __iter__(self) -> Iterator[ThingT]:
        """In no order."""
        return iter(self._ranks)

    def rank_of(self, thing: ThingT) -> Any:
        """None: it is not here."""
        return self._ranks.get(thing)

    def put(self, thing: ThingT, rank: Any) -> None:
        """One that is here already moves to `rank`."""
        self._ranks[thing] = rank
        self._n_put += 1
        heapq.heappush(self._heap, (rank, self._n_put, thing))
        self._compact()

    def discard(self, thing: ThingT) -> None:
        """It may be absent."""
        if self._ranks.pop(thing, None) is not None:
            self._compact()

    def first(self) -> ThingT | None:
        """The one of the least rank. It stays."""
        while self._heap:
            rank, _, thing = self._heap[0]
            if self._ranks.get(thing) == rank:
                return thing
            heapq.heappop(self._heap)
        return None

    def take_up_to(self, rank: Any) -> list[ThingT]:
        """Take away all of at most this rank, the least first."""
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
