"""Measures how long steps take, and decides when a step in flight is late.

    step k      |== in flight ==|                       duration: from its own start, or from the
    step k + 1       |==========|== in flight ==|       end of the step before it, if that is later

An engine that hangs raises nothing, and heartbeats continue: only the age of the step in flight
shows it. The worker decides what is late, since it knows how long its steps take: the first step of
a kind may build kernels, and has more time. Time in which the worker's own loop was stopped (a
stopped process) counts little: the engine was stopped, too.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from operator import attrgetter

from twolane.engine.step import RowWork
from twolane.worker.config import StepWatchConfig
from twolane.worker.steps.pace import Pace

_SMOOTHING = 0.1  # weight of the newest step in the moving average
_MAX_LOOK_GAP_S = 1.0  # the most that counts between two calls of `look`
_n_new = attrgetter("n_new")
Kind = tuple[bool, bool]  # whether any row has one new position, and whether any has more


class StepWatch:
    """Call `begin` when a step is submitted, `end` when the oldest one's results are there, and
    `look` several times a second."""

    def __init__(self, config: StepWatchConfig) -> None:
        self._config = config
        self._in_flight: deque[tuple[Kind, float]] = deque()
        self._seen: set[Kind] = set()  # of completed steps
        self._last_end_s = -math.inf
        self._age_s = 0.0  # of the oldest step in flight, at the last `look`
        self._looked_at_s = 0.0
        self.step_s = 0.0  # moving average
        self.n_steps = 0  # completed
        self.pace = Pace()

    def begin(self, work: Sequence[RowWork], now: float) -> None:
        if not self._in_flight:
            self._age_s, self._looked_at_s = 0.0, now
        n_new = list(map(_n_new, work))
        self.pace.note_tokens(n_new, now)
        counts = set(n_new)
        kind = (1 in counts, max(counts, default=0) > 1)
        self._in_flight.append((kind, now))

    def end(self, now: float) -> float:
        """Returns the step's duration in seconds."""
        kind, begun_s = self._in_flight.popleft()
        took_s = now - max(begun_s, self._last_end_s)
        self._seen.add(kind)
        self._last_end_s = now
        self._age_s, self._looked_at_s = 0.0, now
        self.n_steps += 1
        self.pace.note_step(took_s)
        weight = _SMOOTHING if self.n_steps > 1 else 1.0
        self.step_s += weight * (took_s - self.step_s)
        return took_s

    @property
    def n_in_flight(self) -> int:
        return len(self._in_flight)

    def age_s(self, now: float) -> float:
        """Age of the oldest step in flight; 0 if there is none."""
        if not self._in_flight:
            return 0.0
        return self._age_s + min(now - self._looked_at_s, _MAX_LOOK_GAP_S)

    def look(self, now: float) -> None:
        self._age_s, self._looked_at_s = self.age_s(now), now

    @property
    def bound_s(self) -> float:
        """The age from which the oldest step in flight is late."""
        config = self._config
        is_first = bool(self._in_flight) and self._in_flight[0][0] not in self._seen
        least_s = config.first_late_s if is_first else config.late_s
        return max(least_s, config.late_factor * self.step_s)

    def is_late(self, now: float) -> bool:
        return self.age_s(now) > self.bound_s
