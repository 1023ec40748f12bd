"""Learns for how long, and for how many rows, it pays to wait before a prefill step.

Of a step of n tokens, `fixed_s + each_s * n` is learnt; of arrivals, the time from one to the next.
k rows of m tokens each wait, and the device is idle. If they wait for one row more,

    that row saves   a step's fixed cost, less the wait until it comes:   fixed_s - gap_s
    each row loses   that wait, and the time for the new row's tokens:    gap_s + m * each_s

so waiting pays while k * (gap_s + m * each_s) < fixed_s - gap_s: for few rows, which come close
together, and whose tokens cost less than a step without any.
"""

from __future__ import annotations

import math
from collections import deque

from twolane.prefill_worker.batching import BatchingConfig, Patience

_KEEP_STEP = 1 - 1 / 200  # each step's weight against the ones after it
_GAPS = 32  # between arrivals, whose median counts: in bursts it is the gap within one
_SMOOTHING = 1 / 8  # of the tokens of a row
_LEAST_STEPS = 16  # until there is a figure
_QUIET = 6.0  # the burst is over if nothing comes for so many gaps


class LearntBatching:
    """Call `arrived` and `started` for each row, `planned` and `done` for each step, and `patience`
    at each plan."""

    def __init__(self, config: BatchingConfig) -> None:
        self._config = config
        self._sums = [0.0] * 5  # weight, x, y, x * x, x * y of steps: x tokens, y seconds
        self._n_steps = 0
        self._in_flight: deque[tuple[int, float, bool]] = deque()
        self._done_s = -math.inf
        self._arrived_s = -math.inf
        self._gaps_s: deque[float] = deque(maxlen=_GAPS)
        self._gap_s = math.inf
        self._row_tokens = 0.0

    def arrived(self, now: float) -> None:
        """A row has come."""
        self._gaps_s.append(now - self._arrived_s)
        self._arrived_s = now
        self._gap_s = sorted(self._gaps_s)[len(self._gaps_s) // 2]

    def started(self, n_tokens: int) -> None:
        """A row has started, of which so many tokens are not cached."""
        share = _SMOOTHING if self._row_tokens else 1.0
        self._row_tokens += (n_tokens - self._row_tokens) * share

    def planned(self, n_tokens: int, now: float, *, is_alone: bool) -> None:
        """A step follows, with so many tokens of prompts, and `is_alone` with nothing else."""
        self._in_flight.append((n_tokens, now, is_alone))

    def done(self, now: float) -> None:
        """The oldest planned step has ended."""
        n_tokens, planned_s, is_alone = self._in_flight.popleft()
        took_s = now - max(planned_s, self._done_s)
        self._done_s = now
        if is_alone:
            new = (1.0, n_tokens, took_s, n_tokens * n_tokens, n_tokens * took_s)
            self._sums = [_KEEP_STEP * old + one for old, one in zip(self._sums, new, strict=True)]
            self._n_steps += 1

    @property
    def cost_s(self) -> tuple[float, float]:
        """Seconds of a step without tokens, and of each token; zeros until there is a figure."""
        weight, x, y, xx, xy = self._sums
        spread = weight * xx - x * x
        if self._n_steps < _LEAST_STEPS or spread <= 1e-6 * xx * weight:
            return 0.0, 0.0
        each_s = max(0.0, (weight * xy - x * y) / spread)
        return max(0.0, (y - each_s * x) / weight), each_s

    @property
    def patience(self) -> Patience:
        """Within the config's bounds."""
        fixed_s, each_s = self.cost_s
        lost_s = self._gap_s + self._row_tokens * each_s
        saved_s = fixed_s - self._gap_s
        rows = math.ceil(saved_s / lost_s) - 1 if saved_s > 0 and lost_s else 0
        if rows < 1:
            return Patience(0.0)
        return Patience(
            min(self._config.most_window_s, fixed_s),
            most_rows=min(rows, self._config.most_rows),
            quiet_s=_QUIET * self._gap_s,
        )
