"""How long a pool is kept at the largest need of late: longer where needs come back.

    need   ▁▁█▁▁▁▁▁▁▁▁▁▁█      the worker was drained after `kept_s`, and had to be started again
             |-- kept --|
             |-- comes back --|   so the next one is kept for a little longer than this

What is learnt is forgotten within about an hour without another return.
"""

from __future__ import annotations

from collections import deque

_MARGIN = 1.2
_FORGET_S = 3600.0


class Kept:
    """The needs of one pool. Call `add` at rising times."""

    def __init__(self, kept_s: float, most_s: float) -> None:
        assert 0 < kept_s <= most_s
        self._least_s = kept_s
        self._most_s = most_s
        self._kept_s = kept_s
        self._needs: deque[tuple[float, int]] = deque()  # (time, workers), workers falling
        self._last_s: float | None = None

    @property
    def kept_s(self) -> float:
        return self._kept_s

    def add(self, now: float, workers: int) -> int:
        """The largest need of the last `kept_s`, with this one."""
        if self._last_s is not None:
            forgotten = min(1.0, (now - self._last_s) / _FORGET_S)
            self._kept_s += (self._least_s - self._kept_s) * forgotten
        self._last_s = now
        needs = self._needs
        while needs and needs[0][0] < now - self._most_s:
            needs.popleft()
        rises = bool(needs) and needs[-1][1] < workers
        while needs and needs[-1][1] < workers:
            needs.pop()
        if rises and needs and needs[-1][0] < now - self._kept_s:  # they went, and come back
            self._kept_s = min(self._most_s, _MARGIN * (now - needs[-1][0]))
        while needs and needs[-1][1] == workers:
            needs.pop()
        needs.append((now, workers))
        return next(most for at_s, most in needs if at_s >= now - self._kept_s)
