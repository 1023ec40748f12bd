"""A fluid model of a cluster: prompts are served one by one, rows as a flow, in steps of `dt_s`.

    arrivals ──▶ queue of a prefill worker ──▶ the decode worker that expects the row
                 (`prompts.py`)                or, with no room there: any other, once it has room

Every 2 s a controller sees the signals and the workers, and its actions take effect as they would:
a start after `start_s`, a flip after `flip_s`, a drain when its last row has ended. Every worker's
GPUs count at every instant, whatever its state.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop
from typing import Protocol

from twolane.deploy.controller.actions import (
    Action,
    Cancel,
    Delete,
    Drain,
    Flip,
    Start,
    Undrain,
)
from twolane.deploy.controller.observation import Role, State, Worker
from twolane.deploy.controller.observer import Signals
from twolane.deploy.controller.priors import Hardware
from twolane.deploy.simulator.prompts import EXTRA_ROWS, Prompts
from twolane.deploy.simulator.requests import Requests
from twolane.deploy.simulator.tally import Tally
from twolane.deploy.simulator.workers import SimWorker

_ATTAINMENT_S = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Slo:
    """Limits: `ttft_s` for the time to first token, `gap_s` for the p99 of a request's own gaps."""

    ttft_s: float
    gap_s: float

    def __post_init__(self) -> None:
        assert self.ttft_s > 0
        assert self.gap_s > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterConfig:
    """`start_s`: of a new worker, its node included. `failing`: which starts, counted from 0, never
    get ready. `decide_s`: between two decisions. `knows_slo`: a controller of ours tells the router
    the SLO, which then serves first what can be in time, and after `max_wait_s` ends the rest."""

    hardware: Hardware
    slo: Slo
    dt_s: float = 0.5
    decide_s: float = 2.0
    start_s: float = 75.0
    flip_s: float = 4.0
    failing: frozenset[int] = frozenset()
    knows_slo: bool = False
    max_wait_s: float = 30.0


class Controller(Protocol):
    """Decides on pool sizes, from the signals that the cluster passes to it."""

    def decide(self, now: float, cluster: Cluster) -> Sequence[Action]: ...


class Cluster:
    """One run, which begins with `workers`. Call `run` once."""

    def __init__(
        self,
        config: ClusterConfig,
        requests: Requests,
        workers: Sequence[frozenset[Role]],
        controller: Controller | None = None,
    ) -> None:
        self.config = config
        self._requests = requests
        self._controller = controller
        self.workers = [
            SimWorker(f"worker-{n}", roles, State.READY, 0.0, 0.0)
            for n, roles in enumerate(workers)
        ]
        self._n_named = len(self.workers)
        self._n_starts = 0
        self.tally = Tally()
        self.now = 0.0
        self._queue = Prompts(
            config.hardware,
            config.slo.ttft_s,
            requests,
            knows_slo=config.knows_slo,
            max_wait_s=config.max_wait_s,
        )
        self._unplaced: deque[tuple[float, int, SimWorker]] = deque()
        self._prompts = requests.prompt_tokens.tolist()
        self._outputs = requests.output_tokens.tolist()
        self._arrivals = requests.arrivals_s.tolist()
        self._totals = [0, 0, 0.0]  # answers, answer tokens, written
        self._recent: deque[tuple[float, int, int]] = deque()  # (time, ended, held)
        self.steps = self._queue.steps  # of prompts, since the last decision
        self.started: list[float] = []  # starts that succeeded since the last decision, seconds
        self.last_down_s: float | None = None
        self.flipped_s: dict[Role, float] = {}

    def run(self, until_s: float) -> Tally:
        """Requests that have not ended by then are counted if they arrived long enough before."""
        config = self.config
        decide_each = max(1, round(config.decide_s / config.dt_s))
        for tick in range(math.ceil(until_s / config.dt_s)):
            self.now = tick * config.dt_s
            if self._controller is not None and tick % decide_each == 0:
                for action in self._controller.decide(self.now, self):
                    self._act(action)
                self.steps.clear()
                self.started.clear()
            self._account(tick * config.dt_s % 60 < config.dt_s)
            self._tick(self.now + config.dt_s)
        self._count_unserved(until_s)
        return self.tally

    # What a controller sees

    def views(self) -> tuple[Worker, ...]:
        return tuple(worker.view(self.now) for worker in self.workers)

    def signals(self) -> Signals:
        n_router = self._queue.n_unplaced
        is_full = n_router and self._is_full()  # then what waits for prefill waits for decode
        waiting, tokens, first_s = self._queue.waiting(self.workers, at_router=not is_full)
        context = int(sum(worker.context for worker in self.workers))
        return Signals(
            prompt_tokens=self._queue.n_tokens,
            requests=self._queue.n_arrived - self._queue.n_refused,
            output_tokens=int(self._totals[2]),
            answers=int(self._totals[0]),
            answer_tokens=int(self._totals[1]),
            waiting_tokens=tokens,
            waiting=waiting,
            oldest_wait_s=0.0 if first_s is None else self.now - first_s,
            unplaced=len(self._unplaced) + (n_router if is_full else 0),
            rows=sum(worker.rows for worker in self.workers),
            context_tokens=context,
            page_tokens=context,
        )

    def _is_full(self) -> bool:
        takers = [worker for worker in self.workers if worker.takes(Role.DECODE)]
        most = self.config.hardware.rows + EXTRA_ROWS
        return bool(takers) and all(w.rows + w.expected >= most for w in takers)

    def attainment(self) -> float | None:
        while self._recent and self._recent[0][0] < self.now - _ATTAINMENT_S:
            self._recent.popleft()
        ended = sum(n for _, n, _ in self._recent)
        return sum(held for _, _, held in self._recent) / ended if ended else None

    def waiting_for_any(self) -> int:
        serving = any(worker.takes(Role.PREFILL) for worker in self.workers)
        return 0 if serving else self._queue.n_unplaced

    @property
    def held_gpus(self) -> int:
        return sum(worker.gpus for worker in self.workers)

    # One step of time

    def _tick(self, end_s: float) -> None:
        self._settle(end_s)
        self._queue.advance(self.workers, self.now, end_s)
        self._place(end_s)
        self._decode(end_s)

    def _settle(self, end_s: float) -> None:
        """Complete the starts and flips that are due."""
        for worker in self.workers:
            if worker.state is State.STARTING and worker.ready_s <= end_s:
                self.started.append(worker.ready_s - worker.since_s)
                worker.state, worker.since_s, worker.free_s = State.READY, end_s, end_s
            elif worker.state is State.FLIPPING and worker.ready_s <= end_s:
                worker.state, worker.since_s = State.READY, end_s

    def _place(self, end_s: float) -> None:
        """Rows join the worker that expects them; those that have no room there, any other."""
        while self._unplaced:
            since_s, index, expecting = self._unplaced[0]
            active = [worker for worker in self.workers if worker.takes(Role.DECODE)]
            worker = min(active, key=_rows, default=None)
            if worker is None or not self._fits(worker, index):
                break
            self._unplaced.popleft()
            expecting.expected -= 1
            late = int(end_s - since_s > self.config.slo.gap_s)
            worker.join(index, self._prompts[index], self._outputs[index], late)
        computed = self._queue.computed
        while computed and computed[0][0] <= end_s:
            at_s, index, worker = heappop(computed)
            if self._fits(worker, index):
                worker.expected -= 1
                worker.join(index, self._prompts[index], self._outputs[index], 0)
            else:
                self._unplaced.append((at_s, index, worker))

    def _fits(self, worker: SimWorker, index: int) -> bool:
        hardware = self.config.hardware
        tokens = worker.context + self._prompts[index] + self._outputs[index]
        return len(worker.ends) < hardware.rows and tokens <= hardware.kv_tokens

    def _decode(self, end_s: float) -> None:
        config = self.config
        ended = held = 0
        for worker in self.workers:
            before = worker.position
            rows = len(worker.ends)
            for index, late in worker.advance(
                end_s, config.dt_s, config.hardware, config.slo.gap_s
            ):
                output = self._outputs[index]
                late_gaps = late > 0.01 * output
                late_first = bool(self._queue.late_first[index])
                self.tally.late_first += late_first
                self.tally.late_gaps += late_gaps
                self.tally.missed += late_first or late_gaps
                held += not (late_first or late_gaps)
                ended += 1
                self._totals[1] += output
            self._totals[2] += rows * (worker.position - before)
        self._totals[0] += ended
        if ended:
            self._recent.append((end_s, ended, held))

    def _account(self, is_minute: bool) -> None:
        tally = self.tally
        gpus = self.held_gpus
        tally.gpu_s += gpus * self.config.dt_s
        tally.most_gpus = max(tally.most_gpus, gpus)
        if is_minute:
            serving = [w for w in self.workers if w.state in (State.READY, State.FLIPPING)]
            prefill = sum(Role.PREFILL in worker.roles for worker in serving)
            decode = sum(Role.DECODE in worker.roles for worker in serving)
            share = self.attainment()
            tally.sizes.append((self.now, prefill, decode, gpus, 1.0 if share is None else share))

    def _count_unserved(self, until_s: float) -> None:
        """Count requests that were refused, or wait for their first token longer than the SLO, as
        missed. Those that may still meet it are not counted."""
        ended, before_s = int(self._totals[0]), until_s - self.config.slo.ttft_s
        late = sum(self._arrivals[index] < before_s for _, index, _ in self._unplaced)
        late += self._queue.unserved(self.workers, before_s)
        self.tally.refused = self._queue.n_refused + self._queue.n_ended
        self.tally.missed += late + self.tally.refused
        self.tally.requests = ended + late + self.tally.refused

    # Actions

    def _act(self, action: Action) -> None:
        tally = self.tally
        name = type(action).__name__.lower()
        tally.actions[name] = tally.actions.get(name, 0) + 1
        if not isinstance(action, Delete):  # the second half of a drain
            hour = int(self.now // 3600)
            tally.hours[hour] = tally.hours.get(hour, 0) + 1
        if isinstance(action, Start):
            self._start(action)
            return
        worker = next(w for w in self.workers if w.worker_id == action.worker_id)
        match action:
            case Cancel():
                self.workers.remove(worker)
            case Delete():
                tally.lost += worker.rows
                self.workers.remove(worker)
            case Drain():
                worker.state, worker.since_s = State.DRAINING, self.now
                self.last_down_s = self.now
            case Undrain():
                worker.state, worker.since_s = State.READY, self.now
            case Flip(roles=roles):
                worker.state, worker.since_s = State.FLIPPING, self.now
                worker.roles, worker.ready_s = roles, self.now + self.config.flip_s
                self.flipped_s.update(dict.fromkeys(roles, self.now))

    def _start(self, start: Start) -> None:
        fails = self._n_starts in self.config.failing
        ready_s = math.inf if fails else self.now + self.config.start_s
        self._n_starts += 1
        name = f"worker-{self._n_named}"
        self._n_named += 1
        self.workers.append(
            SimWorker(
                name, start.roles, State.STARTING, self.now, ready_s, start.gpus,
                started_s=self.now,
            )
        )  # fmt: skip


def _rows(worker: SimWorker) -> int:
    return len(worker.ends)
