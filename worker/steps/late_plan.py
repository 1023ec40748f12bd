"""When a step is planned while the device computes another: as late as it may be.

    device   |==== k ====|======== k + 1 ========|==== k + 2 ====|
    loop                  apply, ship k           apply, ship k + 1
                          . . . pause . . . plan, submit k + 2
                                            |- margin -|

A row that comes while step k + 1 is computed would wait for the step after the next if k + 2 was
planned at once. The margin is for what is between a plan and the device, and for what else keeps
the process from it. It grows by 0.2 ms after a step that was nearly late, and shrinks by 2 us after
each other one: so one step in a hundred is nearly late.
"""

from __future__ import annotations

import math
from collections import deque

from twolane.worker.steps.step_runner import StepTimes

_SPARE_S = 0.0002  # a step that has waited in the device's queue for less is nearly late
_UP_S = 0.0002
_DOWN_S = 2e-6
_LEAST_S = 0.001
_FIRST_S = 0.004
_MOST_S = 0.010
_STEPS = 8  # the shortest of the last ones is expected


class LatePlan:
    """Call `note` when a step's results are there, then `pause_s`. It reads no clock."""

    def __init__(self) -> None:
        self.margin_s = _FIRST_S
        self._took_s: deque[float] = deque(maxlen=_STEPS)  # of steps in a row, all steady
        self._done_s = -math.inf  # when the newest results were there

    def note(self, times: StepTimes | None, *, is_steady: bool) -> None:
        """`is_steady`: the step is expected to take as long as the ones before and after it."""
        if times is None or not is_steady:
            self._took_s.clear()
        if times is None:
            return
        if is_steady and math.isfinite(self._done_s):
            spare_s = self._done_s - times.submitted_s
            self._took_s.append(times.done_s - max(self._done_s, times.submitted_s))
            if spare_s < _SPARE_S:
                self.margin_s = min(self.margin_s + _UP_S, _MOST_S)
            else:
                self.margin_s = max(self.margin_s - _DOWN_S, _LEAST_S)
        self._done_s = times.done_s

    def pause_s(self, now: float) -> float:
        """How long to wait before the next plan, if a step is in flight; 0: not at all."""
        if len(self._took_s) < _STEPS:
            return 0.0
        return max(0.0, self._done_s + min(self._took_s) - self.margin_s - now)
