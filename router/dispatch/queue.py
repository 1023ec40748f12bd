"""Requests that wait for workers: by model, resumed ones first, then by priority, tenants in turns.

resumed requests, oldest first | priority 5, tenants in turns | 0, … | -3, …
^ head: only it is ever placed; nobody overtakes it because it needs less
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
    """Holds QUEUED and RESUMING requests. Whoever ends one, or gives it work, discards it here."""

    def __init__(self, weight_of: Callable[[str], float] = _alike) -> None:
        """`weight_of` a tenant is its share beside others."""
        self._weight_of = weight_of
        self._lines: dict[str, _Line] = {}
        self._is_new: dict[Request, bool] = {}  # of all that wait
        self._backlog: Backlog[Request] = Backlog(weight_of)  # of new ones of all models
        self._n_pushed = 0

    def __len__(self) -> int:
        return len(self._is_new)

    def __iter__(self) -> Iterator[Request]:
        """All that wait, in no order."""
        return iter(self._is_new)

    def push(self, request: Request) -> None:
        """May be called again."""
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

    def discard(self, request: Request) -> None:
        """It waits no more. It may be absent."""
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
        """It goes to a worker: if it is new, that was a turn of its tenant's. It must wait here."""
        if self._is_new[request]:
            self._lines[request.job.model].new[request.job.priority].pay(request)

    def settle(self, request: Request, tokens: float) -> None:
        """It has cost its tenant so many tokens more than it paid for; below 0: less."""
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
        """Who gives its place when there are too many: of the least priority, of the tenant with
        the longest backlog, the youngest. Of all models; never a resumed one."""
        return self._backlog.last()

    def gives_way(self, last: Request, priority: int, tenant: str) -> bool:
        """Whether `last` gives its place to a new request: of a higher priority, or of a tenant
        that has a shorter backlog even with it."""
        job = last.job
        if job.priority != priority:
            return job.priority < priority
        backlog = self._backlog
        theirs = backlog.length(priority, job.tenant)
        return theirs > backlog.length(priority, tenant, more=1)  # guard: longest backlog

    def n_ahead(self, model: str, priority: int, tenant: str = "") -> float:
        """How many would go before a new request of this priority and tenant."""
        line = self._lines.get(model)
        if line is None:
            return 0.0
        beside = line.new.get(priority)
        n_beside = beside.n_ahead(tenant) if beside is not None else 0.0
        return self.n_above(model, priority) + n_beside

    def n_above(self, model: str, priority: int) -> int:
        """How many go before all of this priority."""
        line = self._lines.get(model)
        if line is None:
            return 0
        return len(line.resumed) + sum(len(new) for p, new in line.new.items() if p > priority)

    def check_integrity(self) -> None:
        """Raises AssertionError if the lines and the backlog hold other requests than all that
        wait."""
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
