"""How fast a worker steps and computes, over the last seconds: to find a slow one."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

_STEPS = 256  # of which the quantiles are
_STALE_STEPS = 16  # after so many more they are computed anew
WINDOW_S = 10


class Pace:
    """`note_tokens` as each step begins, `note_step` as each ends."""

    def __init__(self) -> None:
        self._steps: deque[float] = deque(maxlen=_STEPS)
        self._n_since = _STALE_STEPS
        self._quantiles = (0.0, 0.0)
        self._seconds: deque[tuple[int, list[int]]] = deque(maxlen=WINDOW_S + 1)

    def note_tokens(self, n_new: Iterable[int], now: float) -> None:
        """New positions of each row: one is a token of an answer, more are a prompt's."""
        second = int(now)
        if not self._seconds or self._seconds[-1][0] != second:
            self._seconds.append((second, [0, 0]))
        counts = self._seconds[-1][1]
        for n in n_new:
            counts[n == 1] += n

    def note_step(self, took_s: float) -> None:
        self._steps.append(took_s)
        self._n_since += 1

    def quantiles_s(self) -> tuple[float, float]:
        """The median and the 99th percentile of the last steps' durations; zeros without steps."""
        if self._n_since >= _STALE_STEPS and self._steps:
            ordered = sorted(self._steps)
            last = len(ordered) - 1
            self._quantiles = ordered[last // 2], ordered[round(0.99 * last)]
            self._n_since = 0
        return self._quantiles

    def tokens_per_s(self, now: float) -> tuple[float, float]:
        """Of prompts and of answers, over the whole seconds of the window that have passed."""
        first, this = int(now) - WINDOW_S, int(now)
        past = [counts for second, counts in self._seconds if first <= second < this]
        prefill, decode = (sum(counts[i] for counts in past) for i in (0, 1))
        return prefill / WINDOW_S, decode / WINDOW_S
