"""Requests that wait for workers: bounded, by model, resumed ones first, then priority, then age.

resumed requests, oldest first | priority 5, oldest first | 0, oldest first | -3, …
^ head: only it is ever placed; nobody overtakes it because it needs less      ^ last: evicted first
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from twolane.router.lazy_heap import LazyHeap
from twolane.router.requests.request import Request, RequestState

_RESUMED = 1_000_000  # ranks above every priority


class WaitingQueue:
    """Holds QUEUED and RESUMING requests. Whoever ends one, or gives it work, discards it here."""

    def __init__(self) -> None:
        self._lines: dict[str, LazyHeap[Request]] = {}
        self._new: LazyHeap[Request] = LazyHeap()  # of all models, what is evicted first ahead
        self._n_of: dict[str, Counter[int]] = {}  # by model and priority, resumed ones apart
        self._n_pushed = 0

    def __len__(self) -> int:
        return sum(map(len, self._lines.values()))

    def __iter__(self) -> Iterator[Request]:
        """All that wait, in no order."""
        for line in self._lines.values():
            yield from line

    def push(self, request: Request) -> None:
        """May be called again."""
        self.discard(request)
        if not request.sequence:
            self._n_pushed += 1
            request.sequence = self._n_pushed
        is_new = request.state is RequestState.QUEUED
        priority = request.job.priority if is_new else _RESUMED
        rank = (-priority, request.sequence)
        model = request.job.model
        line = self._lines.get(model)
        if line is None:
            line = self._lines[model] = LazyHeap()
            self._n_of[model] = Counter()
        line.put(request, rank)
        self._n_of[model][priority] += 1
        if is_new:
            self._new.put(request, (priority, -request.sequence))

    def discard(self, request: Request) -> None:
        """It waits no more. It may be absent."""
        model = request.job.model
        line = self._lines.get(model)
        rank = line.rank_of(request) if line is not None else None
        if line is None or rank is None:
            return
        line.discard(request)
        self._new.discard(request)
        self._n_of[model][-rank[0]] -= 1
        if not line:
            del self._lines[model], self._n_of[model]

    def models(self) -> list[str]:
        return list(self._lines)

    def head(self, model: str) -> Request | None:
        line = self._lines.get(model)
        return line.first() if line is not None else None

    def last(self) -> Request | None:
        """Of the least priority the youngest, of all models; never a resumed one."""
        return self._new.first()

    def n_ahead(self, model: str, priority: int) -> int:
        """How many would go before a new request of this priority."""
        counts = self._n_of.get(model, Counter[int]())
        return sum(n for other, n in counts.items() if other >= priority)
