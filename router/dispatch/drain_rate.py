"""How fast the queue drains, as seen lately: what RetryInfo and expected waits rest on."""

from __future__ import annotations

from collections import deque

WINDOW = 64  # dispatches looked back on
MAX_AGE_S = 10.0
ENOUGH = 8  # fewer say nothing
LOWER_PRIORITY_SHARE = 1 / 8  # of what goes to higher priorities


class DrainRate:
    """Dispatches a second over the last few, by priority."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque(maxlen=WINDOW)

    def note(self, now: float, priority: int = 0) -> None:
        self._seen.append((now, priority))

    def wait_s(self, n_ahead: float, now: float, priority: int | None = None) -> float | None:
        """Estimated wait behind `n_ahead` requests, or None: unknown, too few were seen lately.

        Of somebody of that priority: what goes to higher ones, that come all the time, does not
        bring him nearer. But they may stop coming, so some of it counts.
        """
        while self._seen and now - self._seen[0][0] > MAX_AGE_S:
            self._seen.popleft()
        if not n_ahead:
            return 0.0
        n_seen = len(self._seen)
        if n_seen < ENOUGH:
            return None
        n_his: float = n_seen
        if priority is not None:
            n_his = sum(seen <= priority for _, seen in self._seen)
            n_his += (n_seen - n_his) * LOWER_PRIORITY_SHARE
        return n_ahead / n_his * max(now - self._seen[0][0], 1e-3)
