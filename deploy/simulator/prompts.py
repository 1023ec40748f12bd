"""The prompts of a simulated cluster: placed on arrival, computed in steps.

    arrivals ──▶ router's queue ──▶ queue of a prefill worker ──▶ steps ──▶ to its decode worker
                 while no worker     first come, first served     of `step_tokens`; the last
                 has room                                         prompt may be split

Where a controller tells the router the SLO, what can be in time goes first there, and less waits at
workers. As the router does, each prompt is placed once, on both sides: where the fewest tokens are
to be computed, of equals where none was placed for longest, and where the fewest rows are. So a
worker that comes later takes nothing of what waits at others. What comes while the router's queue
is full is refused, and does not come again. On a worker with rows a prompt waits for the steps of
rows that are planned, as steps are planned one ahead.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from heapq import heappush

import numpy as np

from twolane.deploy.controller.observation import Role
from twolane.deploy.controller.priors import Hardware
from twolane.deploy.simulator.requests import Requests
from twolane.deploy.simulator.workers import SimWorker

MOST_BACKLOG = 32_768  # tokens that may wait at a prefill worker, as the router has it
SLO_BACKLOG = 8_192  # beyond which two prompts at least wait there, where it knows the SLO
PIPELINED = 2  # so many, likewise
MOST_QUEUED = 1_024  # requests that may wait at the router, likewise; more are refused at once
WAIT_SHARE = 0.4  # of the TTFT SLO; those that wait for longer are deferred, likewise
IN_TIME_EACH = 7  # that are placed before a deferred one is, likewise
EXTRA_ROWS = 8  # that a decode worker may expect beyond its rows, likewise
_STEPS_BEFORE = 1.5  # of rows alone before a prompt that comes: half of one, and the one planned
_STEPS_SEEN = 4  # steps between two decisions that the law learns from


class Prompts:
    """Call `advance` for each stretch of time. `computed`: a heap of (when its row may join, index,
    worker), of prompts that are done. `knows_slo`: whether the router defers what has waited for
    too long, and lets less wait at workers. `max_wait_s`: then it ends what is deferred, if workers
    could serve it all that time, others have gone before it, and others wait to do so."""

    def __init__(
        self,
        hardware: Hardware,
        ttft_s: float,
        requests: Requests,
        *,
        knows_slo: bool,
        max_wait_s: float = math.inf,
    ) -> None:
        self._hardware = hardware
        self._ttft_s = ttft_s
        self._in_time_s = WAIT_SHARE * ttft_s if knows_slo else math.inf
        self._enough = SLO_BACKLOG if knows_slo else MOST_BACKLOG
        self._arrivals: list[float] = requests.arrivals_s.tolist()
        self._tokens: list[int] = requests.prompt_tokens.tolist()
        self._queue: deque[int] = deque()  # at the router
        self._deferred: deque[int] = deque()  # likewise
        self._gone_before: deque[int] = deque()  # of each of those: `_n_gone` when it was deferred
        self._max_wait_s = max_wait_s
        self._served_since_s = -math.inf  # workers of both roles are there
        self._n_given = 0  # that were placed
        self._n_gone = 0  # of those, that were not deferred
        self._n_passed = 0  # of those, since a deferred one was placed
        self._targets: dict[int, SimWorker] = {}
        self.late_first = np.zeros(len(requests), np.bool_)
        self.computed: list[tuple[float, int, SimWorker]] = []
        self.n_arrived = 0
        self.n_refused = 0  # of those
        self.n_ended = 0  # that were deferred and have waited for too long
        self.n_tokens = 0  # of those that were not
        self.steps: list[tuple[int, int, float]] = []  # tokens, squares, seconds; the reader clears

    def advance(self, workers: Sequence[SimWorker], now: float, end_s: float) -> None:
        """From `now` to `end_s`: what arrives is placed, and steps that begin are computed."""
        arrivals, n_arrived = self._arrivals, self.n_arrived
        givers = [worker for worker in workers if worker.takes(Role.PREFILL)]
        takers = [worker for worker in workers if worker.takes(Role.DECODE)]
        busy = [worker for worker in workers if worker.queue or worker.begun is not None]
        if not givers or not takers:
            self._served_since_s = end_s
        self._place_waiting(now, givers, takers, busy)
        while True:
            at_s = arrivals[n_arrived] if n_arrived < len(arrivals) else math.inf
            step_s, worker = _next_step(busy)
            if worker is not None and step_s < at_s and step_s < end_s:
                self._step(worker, step_s)
                if worker.begun is None and not worker.queue:
                    busy.remove(worker)
                if self.n_unplaced:
                    self._place_waiting(step_s, givers, takers, busy)
            elif at_s < end_s:
                if self.n_unplaced >= MOST_QUEUED:
                    self.n_refused += 1
                else:
                    self.n_tokens += self._tokens[n_arrived]
                    if self.n_unplaced or not self._placed(n_arrived, at_s, givers, takers, busy):
                        self._queue.append(n_arrived)
                        self._place_waiting(at_s, givers, takers, busy)
                n_arrived += 1
            else:
                break
        self.n_arrived = n_arrived

    def _place_waiting(
        self,
        now: float,
        givers: Sequence[SimWorker],
        takers: Sequence[SimWorker],
        busy: list[SimWorker],
    ) -> None:
        """Place what waits at the router, until there is no room for the next one."""
        queue, deferred = self._queue, self._deferred
        before_s = now - self._in_time_s
        while queue and self._arrivals[queue[0]] < before_s:
            deferred.append(queue.popleft())
            self._gone_before.append(self._n_gone)
        while queue or deferred:
            is_due = bool(deferred) and self._n_passed >= IN_TIME_EACH
            line = deferred if is_due or not queue else queue
            if not self._placed(line[0], now, givers, takers, busy):
                break
            line.popleft()
            if line is deferred:
                self._gone_before.popleft()
                self._n_passed = 0
            else:
                self._n_gone += 1
                self._n_passed += 1
        if queue and now - self._served_since_s >= self._max_wait_s:
            while deferred and now - self._arrivals[deferred[0]] >= self._max_wait_s:
                if self._gone_before[0] == self._n_gone:
                    break
                deferred.popleft()
                self._gone_before.popleft()
                self.n_ended += 1

    def _placed(
        self,
        index: int,
        at_s: float,
        givers: Sequence[SimWorker],
        takers: Sequence[SimWorker],
        busy: list[SimWorker],
    ) -> bool:
        """Whether both sides have room for it now; then it is there."""
        if not givers or not takers:
            return False
        taker = takers[0]
        rows = len(taker.ends) + taker.expected
        for other in takers[1:]:
            n = len(other.ends) + other.expected
            if n < rows:
                taker, rows = other, n
        if rows >= self._hardware.rows + EXTRA_ROWS:
            return False
        giver, least = None, (0, False, 0)
        for other in givers:
            n = other.backlog(at_s)
            has_enough = n >= self._enough and other.prompts(at_s) >= PIPELINED
            if has_enough or n >= MOST_BACKLOG:
                continue
            cost = n, Role.DECODE in other.roles, other.last_given
            if giver is None or cost < least:
                giver, least = other, cost
        if giver is None:
            return False
        self._n_given += 1
        giver.last_given = self._n_given
        if giver.begun is None and not giver.queue:
            busy.append(giver)
            giver.placed_s = at_s
            if giver.ends:
                step_s = self._hardware.decode.step_s(giver.rows, giver.context)
                giver.placed_s = max(at_s, giver.free_s) + _STEPS_BEFORE * step_s
        giver.queue.append(index)
        giver.queued_tokens += self._tokens[index]
        giver.placed_tokens += self._tokens[index]
        taker.expected += 1
        self._targets[index] = taker
        return True

    def _step(self, worker: SimWorker, start_s: float) -> None:
        hardware, tokens, queue = self._hardware, self._tokens, worker.queue
        rows = worker.rows
        most = room = hardware.step_tokens - rows
        squares = 0
        ended: list[int] = []
        rest, worker.begun = worker.begun, None
        while room:
            if rest is None:
                if not queue:
                    break
                rest = queue.popleft(), 0
            index, done = rest
            n = min(tokens[index] - done, room)
            room -= n
            squares += (done + n) ** 2 - done**2
            if done + n < tokens[index]:
                worker.begun = index, done + n
            else:
                ended.append(index)
            rest = None
        n_tokens = most - room
        took_s = hardware.step_s(n_tokens, squares, rows, worker.context)
        if not rows and len(self.steps) < _STEPS_SEEN:
            self.steps.append((n_tokens, squares, took_s))
        worker.queued_tokens -= n_tokens
        worker.step_prompts, worker.step_tokens = len(ended), sum(tokens[one] for one in ended)
        worker.placed_tokens -= worker.step_tokens
        worker.step_s, worker.free_s = took_s, start_s + took_s
        ready_s = worker.free_s
        for index in ended:  # what shares a step ends with it
            first_s = ready_s + hardware.first_token_s
            self.late_first[index] = first_s - self._arrivals[index] > self._ttft_s
            joins_s = ready_s + hardware.handover_s
            heappush(self.computed, (joins_s, index, self._targets.pop(index)))

    # What is seen of them

    def waiting(
        self, workers: Sequence[SimWorker], *, at_router: bool
    ) -> tuple[int, int, float | None]:
        """At workers, and perhaps at the router: how many, their tokens, when the first arrived."""
        queues = [worker.queue for worker in workers]
        tokens = sum(worker.queued_tokens for worker in workers)
        if at_router:
            queues += [self._deferred, self._queue]
            tokens += sum(self._tokens[index] for index in self._deferred)
            tokens += sum(self._tokens[index] for index in self._queue)
        first = min((self._arrivals[queue[0]] for queue in queues if queue), default=None)
        return sum(map(len, queues)), tokens, first

    @property
    def n_unplaced(self) -> int:
        """Those that wait at the router."""
        return len(self._queue) + len(self._deferred)

    def unserved(self, workers: Sequence[SimWorker], before_s: float) -> int:
        """How many of those that arrived before then are not computed."""
        begun = [worker.begun[0] for worker in workers if worker.begun is not None]
        queued = [index for worker in workers for index in worker.queue]
        waiting = (*self._queue, *self._deferred, *queued, *begun)
        return sum(self._arrivals[index] < before_s for index in waiting)


def _next_step(busy: Sequence[SimWorker]) -> tuple[float, SimWorker | None]:
    """When the next step begins, and on which worker."""
    chosen: SimWorker | None = None
    start_s = math.inf
    for worker in busy:
        at_s = worker.free_s if worker.free_s > worker.placed_s else worker.placed_s
        if at_s < start_s:
            chosen, start_s = worker, at_s
    return start_s, chosen
