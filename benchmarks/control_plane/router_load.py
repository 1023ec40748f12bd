"""The cost of a tick for a router with many requests in flight, some of which are due.

A cluster of 20 workers has run for five minutes, in which the n running requests arrived. Then
n/600 requests arrive and end between two ticks, as if each took half a minute:

    tick | ends, arrivals (not timed) | tick | ...       each 50 ms, heartbeats each second

Five minutes after its arrival a request counts as stalled, unless there was an event since. Of a
hundred requests that run at the beginning

    10    have a deadline within the next minute, and most of them miss it
    10    had no event since they arrived: they stall in turn, and are placed elsewhere

and of a hundred that end

     5    are cancelled: workers are told, and again at every new session for half a minute
    10    end without one worker's figures, which are awaited until they are overdue
"""

from __future__ import annotations

import random
import time

from benchmarks.control_plane.router_rig import DECODE, PREFILL, Rig
from twolane.router.config import AdmissionConfig, RouterConfig
from twolane.router.requests.request import Request, RequestState
from twolane.v1 import sampling_pb2

N_WORKERS, PROMPT_TOKENS = 20, 64
TICK_S, ANSWER_S, DEADLINES_S, BEFORE_S = 0.05, 30.0, 60.0, 300.0


class LoadedRouter:
    """Keeps `n_requests` in flight: call `tick_ms`, `turn_over`, `tick_ms`, ..."""

    def __init__(self, n_requests: int) -> None:
        admission = AdmissionConfig(max_prefill_backlog_tokens=10**12)
        self.rig = Rig(N_WORKERS, RouterConfig(admission=admission), rows=10**6)
        self.n_requests = n_requests
        self._a_tick = n_requests * TICK_S / ANSWER_S
        self._owed = 0.0  # requests that should have ended and arrived
        self._n_came = self._n_went = 0
        self._running: list[Request] = []
        self._rng = random.Random(1)
        begin_s = self.rig.now + BEFORE_S
        for nth in range(n_requests):
            self._come(begin_s + DEADLINES_S * nth / n_requests)
            self._pass(BEFORE_S / n_requests)
        self.rig.now = begin_s
        self.hear()
        for nth, request in enumerate(self._running):
            if nth % 10:
                self.rig.tell_token(request, role=PREFILL)
        self.rig.tick()

    def _pass(self, for_s: float) -> None:
        before, self.rig.now = self.rig.now, self.rig.now + for_s
        if int(before) != int(self.rig.now):
            self.hear()
            self.rig.tick()

    def hear(self) -> None:
        """A report from every worker, so that none is suspected."""
        for epoch in range(1, N_WORKERS + 1):
            self.rig.report(epoch)

    def turn_over(self) -> None:
        """What happens between two ticks."""
        self._owed += self._a_tick
        while self._owed >= 1:
            self._owed -= 1
            self._go()
            self._come(None)
        self.hear()

    def _come(self, deadline: float | None) -> None:
        self._n_came += 1
        is_bound = deadline is not None and self._n_came % 10 == 0
        left_s = deadline - self.rig.now if deadline is not None and is_bound else None
        self._running.append(self.rig.submit(self.rig.job(PROMPT_TOKENS, left_s)))

    def _go(self) -> None:
        """One request ends."""
        running, rng = self._running, self._rng
        while True:
            nth = rng.randrange(len(running))
            request, running[nth] = running[nth], running[-1]
            running.pop()
            if request.state is RequestState.RUNNING:
                break  # else its deadline has passed
        self._n_went += 1
        if self._n_went % 20 == 0:
            self.rig.end(request)
            return
        self.rig.tell_token(request, sampling_pb2.FINISH_REASON_LENGTH, role=DECODE)
        self.rig.tell_end(request, role=PREFILL)
        if self._n_went % 10:
            self.rig.tell_end(request, role=DECODE)

    def tick_ms(self) -> float:
        """CPU time of one tick."""
        start = time.process_time()
        self.rig.tick(TICK_S)
        return (time.process_time() - start) * 1e3
