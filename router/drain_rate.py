"""How fast the queue drains, as seen lately: what RetryInfo and hopeless deadlines rest on."""

from __future__ import annotations

from collections import deque

WINDOW = 64  # dispatches looked back on
MAX_AGE_S = 10.0
ENOUGH = 8  # fewer say nothing


class DrainRate:
    """Dispatches a second over the last few."""

    def __init__(self) -> None:
        self._at: deque[float] = deque(maxlen=WINDOW)

    def note(self, now: float) -> None:
        self._at.append(now)

    def rate(self, now: float) -> float | None:
        """Dispatches a second, or None: too few were seen lately."""
        while self._at and now - self._at[0] > MAX_AGE_S:
            self._at.popleft()
        if len(self._at) < ENOUGH:
            return None
        return len(self._at) / max(now - self._at[0], 1e-3)

    def wait_s(self, n_ahead: int, now: float) -> float | None:
        """Estimated wait behind `n_ahead` requests, or None: unknown."""
        rate = self.rate(now)
        return None if rate is None else n_ahead / rate
