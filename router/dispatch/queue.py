"""The queue of requests that wait for workers: by model, resumed ones first, then by priority, and
tenants in turns. Of a tenant's, those that are deferred come last, though not forever.

resumed requests, oldest first | priority 5, tenants in turns | 0, … | -3, …
^ head: only the head is placed; smaller requests do not overtake it
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from twolane.router.lazy_heap import LazyHeap
from twolane.router.requests.request import Request, RequestState
from twolane.router.tenants.backlog import Backlog
from twolane.router.tenants.fair_line import FairLine


def _alike(tenant: str) -> float:
    return 1.0


class _Line:
    """The requests of one model."""

    def __init__(self) -> None:
        self.resumed: LazyHeap[Request] = LazyHeap()  # oldest first
        self.new: dict[int, FairLine[Request]] = {}  # by priority; none is empty

    def __len__(self) -> int:
        return len(self.resumed) + sum(map(len, self.new.values()))

    def __iter__(self) -> Iterator[Request]:
        yield from self.resumed
        for line in self.new.values():
            yield from line

    def first(self) -> Request | None:
        resumed = self.resumed.first()
        if resumed is not None or not self.new:
            return resumed
        return self.new[max(self.new)].first()


class WaitingQueue:
    """Holds QUEUED and RESUMING requests. The code that ends or places one must discard it here."""

    def __init__(self, weight_of: Callable[[str], float] = _alike) -> None:
        """`weight_of` returns a tenant's share relative to others."""
        self._weight_of = weight_of
        self._lines: dict[str, _Line] = {}
        self._is_new: dict[Request, bool] = {}  # of all waiting requests
        self._backlog: Backlog[Request] = Backlog(weight_of)  # of the new requests of all models
        self._n_pushed = 0

    def __len__(self) -> int:
        return len(self._is_new)

    def __iter__(self) -> Iterator[Request]:
        """All waiting requests, in no particular order."""
        return iter(self._is_new)

    def push(self, request: Request) -> None:
        """Add a request. May be called again."""
        self.discard(request)
        if not request.sequence:
            self._n_pushed += 1
            request.sequence = self._n_pushed
        job, arrival = request.job, request.sequence
        line = self._lines.get(job.model)
        if line is None:
            line = self._lines[job.model] = _Line()
        is_new = self._is_new[request] = request.state is RequestState.QUEUED
        if not is_new:
            line.resumed.put(request, arrival)
            return
        fair = line.new.get(job.priority)
        if fair is None:
            fair = line.new[job.priority] = FairLine(self._weight_of)
        fair.put(request, job.tenant, arrival, request.cost_tokens)
        self._backlog.put(request, job.priority, job.tenant, arrival)

    def defer(self, request: Request, *, is_deferred: bool) -> bool:
        """Whether those of the same tenant and priority that are not deferred go first, and stay if
        the queue is full. It must be waiting here, and be new. As `FairLine.defer`."""
        assert self._is_new[request]
        fair = self._lines[request.job.model].new[request.job.priority]
        self._backlog.defer(request, is_deferred=is_deferred)
        return fair.defer(request, is_deferred=is_deferred)

    def discard(self, request: Request) -> None:
        """Remove a request, if present."""
        is_new = self._is_new.pop(request, None)
        if is_new is None:
            return
        job = request.job
        line = self._lines[job.model]
        if is_new:
            fair = line.new[job.priority]
            fair.discard(request)
            self._backlog.discard(request)
            if not fair:
                del line.new[job.priority]
        else:
            line.resumed.discard(request)
        if not line.resumed and not line.new:
            del self._lines[job.model]

    def pay(self, request: Request) -> None:
        """Charge the tenant's turn for a request that goes to a worker, if it is new. It must be
        waiting here."""
        if self._is_new[request]:
            self._lines[request.job.model].new[request.job.priority].pay(request)

    def settle(self, request: Request, tokens: float) -> None:
        """Charge the tenant `tokens` more than the request was charged for; negative if it cost
        less."""
        line = self._lines.get(request.job.model)
        fair = line.new.get(request.job.priority) if line is not None else None
        if fair is not None:
            fair.settle(request.job.tenant, tokens)

    def models(self) -> list[str]:
        return list(self._lines)

    def head(self, model: str) -> Request | None:
        line = self._lines.get(model)
        return line.first() if line is not None else None

    def last(self) -> Request | None:
        """The request to evict from a full queue: of the lowest priority, the youngest one of the
        tenant with the longest backlog, of its deferred ones if there are any. It may be of any
        model, but is never a resumed one."""
        return self._backlog.last()

    def gives_way(self, last: Request, priority: int, tenant: str) -> bool:
        """Whether `last` is evicted for a new request, which has a higher priority, or whose tenant
        has a shorter backlog even with it."""
        job = last.job
        if job.priority != priority:
            return job.priority < priority
        backlog = self._backlog
        theirs = backlog.length(priority, job.tenant)
        return theirs > backlog.length(priority, tenant, more=1)  # guard: longest backlog

    def n_ahead(self, model: str, priority: int, tenant: str = "") -> float:
        """The estimated number of requests placed before a new one of this priority and tenant."""
        line = self._lines.get(model)
        if line is None:
            return 0.0
        beside = line.new.get(priority)
        n_beside = beside.n_ahead(tenant) if beside is not None else 0.0
        return self.n_above(model, priority) + n_beside

    def n_above(self, model: str, priority: int) -> int:
        """The number of requests placed before all of this priority."""
        line = self._lines.get(model)
        if line is None:
            return 0
        return len(line.resumed) + sum(len(new) for p, new in line.new.items() if p > priority)

    def check_integrity(self) -> None:
        """Raise AssertionError unless the lines and the backlog hold exactly the waiting
        requests."""
        waiting = set(self._is_new)
        lined = [request for line in self._lines.values() for request in line]
        assert len(lined) == len(waiting)
        assert set(lined) == waiting
        assert len(self._backlog) == sum(self._is_new.values())
        assert all(self._lines.values()), "an empty line is kept"
        for line in self._lines.values():
            assert all(line.new.values()), "an empty line is kept"
            for fair in line.new.values():
                fair.check_integrity()
        fairs = [fair for line in self._lines.values() for fair in line.new.values()]
        deferred = {request for fair in fairs for request in fair.deferred()}
        assert deferred == set(self._backlog.deferred()), "one would be evicted too early or late"
