"""How long steps take, and from when on one that is under way is late.

    step k      |== under way ==|                       took: from its own start, or from the end
    step k + 1       |==========|== under way ==|       of the one before it, if that is later

An engine that hangs raises nothing, and heartbeats go on: the age of the step under way is all that
tells. What is late is the worker's to say, since it knows how long its steps take: the first step
of a kind may build kernels, and is given more time. Time in which the worker's own loop stood still
(a stopped process) counts little: the engine stood still, too.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from operator import attrgetter

from twolane.engine.step import RowWork
from twolane.worker.config import StepWatchConfig

_SMOOTHING = 0.1  # weight of the newest step in the moving average
_MOST_A_LOOK_S = 1.0  # counts between two looks
_n_new = attrgetter("n_new")
Kind = tuple[bool, bool]  # whether any row has one new position, and whether any has more


class StepWatch:
    """`begin` when a step is submitted, `end` when the oldest one's results are there, and `look`
    several times a second."""

    def __init__(self, config: StepWatchConfig) -> None:
        self._config = config
        self._flying: deque[tuple[Kind, float]] = deque()
        self._seen: set[Kind] = set()  # of steps that ended
        self._last_end_s = -math.inf
        self._age_s = 0.0  # of the oldest step that is under way, when it was looked at
        self._looked_at_s = 0.0
        self.step_s = 0.0  # moving average
        self.n_steps = 0  # that ended

    def begin(self, work: Sequence[RowWork], now: float) -> None:
        if not self._flying:
            self._age_s, self._looked_at_s = 0.0, now
        counts = set(map(_n_new, work))
        kind = (1 in counts, max(counts, default=0) > 1)
        self._flying.append((kind, now))

    def end(self, now: float) -> float:
        """Returns what it took, in seconds."""
        kind, begun_s = self._flying.popleft()
        took_s = now - max(begun_s, self._last_end_s)
        self._seen.add(kind)
        self._last_end_s = now
        self._age_s, self._looked_at_s = 0.0, now
        self.n_steps += 1
        weight = _SMOOTHING if self.n_steps > 1 else 1.0
        self.step_s += weight * (took_s - self.step_s)
        return took_s

    def age_s(self, now: float) -> float:
        """Of the oldest step that is under way; 0 when there is none."""
        if not self._flying:
            return 0.0
        return self._age_s + min(now - self._looked_at_s, _MOST_A_LOOK_S)

    def look(self, now: float) -> None:
        self._age_s, self._looked_at_s = self.age_s(now), now

    @property
    def bound_s(self) -> float:
        """The oldest step that is under way is late from this age on."""
        config = self._config
        is_first = bool(self._flying) and self._flying[0][0] not in self._seen
        least_s = config.first_late_s if is_first else config.late_s
        return max(least_s, config.late_factor * self.step_s)

    def is_late(self, now: float) -> bool:
        return self.age_s(now) > self.bound_s
