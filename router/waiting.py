"""Requests that wait for workers: bounded, by model, resumed ones first, then priority, then age.

resumed requests, oldest first | priority 5, oldest first | 0, oldest first | -3, …
^ head: only it is ever placed; nobody overtakes it because it needs less
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from router.request import Request, RequestState

Rank = tuple[int, int, int]


class WaitingQueue:
    """Holds QUEUED and RESUMING requests. One that ended meanwhile is skipped and forgotten."""

    def __init__(self) -> None:
        self._heaps: dict[str, list[tuple[Rank, Request]]] = {}
        self._n_pushed = 0

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __iter__(self) -> Iterator[Request]:
        """All that wait, in no order."""
        for heap in self._heaps.values():
            for _, request in heap:
                if _is_waiting(request):
                    yield request

    def push(self, request: Request) -> None:
        if not request.sequence:
            self._n_pushed += 1
            request.sequence = self._n_pushed
        is_new = int(request.state is RequestState.QUEUED)
        rank = (is_new, -request.job.priority if is_new else 0, request.sequence)
        heapq.heappush(self._heaps.setdefault(request.job.model, []), (rank, request))

    def models(self) -> list[str]:
        return list(self._heaps)

    def head(self, model: str) -> Request | None:
        heap = self._heaps.get(model, [])
        while heap and not _is_waiting(heap[0][1]):
            heapq.heappop(heap)
        if not heap:
            self._heaps.pop(model, None)
            return None
        return heap[0][1]

    def pop(self, model: str) -> None:
        """Take the head away."""
        heapq.heappop(self._heaps[model])

    def n_ahead(self, priority: int) -> int:
        """How many would go before a new request of this priority."""
        return sum(
            1
            for request in self
            if request.state is RequestState.RESUMING or request.job.priority >= priority
        )


def _is_waiting(request: Request) -> bool:
    return request.state in (RequestState.QUEUED, RequestState.RESUMING)
