"""The recent rate at which the queue drains, from which RetryInfo and expected waits are
estimated."""

from __future__ import annotations

from collections import Counter, deque

WINDOW = 64  # number of recent dispatches
MAX_AGE_S = 10.0
ENOUGH = 8  # with fewer there is no estimate
LOWER_PRIORITY_SHARE = 1 / 8  # part of higher priorities' dispatches that counts


class DrainRate:
    """The rate of recent dispatches, by priority."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque(maxlen=WINDOW)
        self._by_priority: Counter[int] = Counter()  # of these

    def note(self, now: float, priority: int = 0) -> None:
        if len(self._seen) == WINDOW:
            self._forget_first()
        self._seen.append((now, priority))
        self._by_priority[priority] += 1

    def wait_s(self, n_ahead: float, now: float, priority: int | None = None) -> float | None:
        """The estimated wait behind `n_ahead` requests; None if there were too few recent
        dispatches.

        With a `priority`, dispatches of higher priorities count only in part: they do not bring a
        waiting request nearer while such requests keep arriving, but they may stop.
        """
        while self._seen and now - self._seen[0][0] > MAX_AGE_S:
            self._forget_first()
        if not n_ahead:
            return 0.0
        n_seen = len(self._seen)
        if n_seen < ENOUGH:
            return None
        n_his: float = n_seen
        if priority is not None:
            n_his = sum(n for seen, n in self._by_priority.items() if seen <= priority)
            n_his += (n_seen - n_his) * LOWER_PRIORITY_SHARE
        return n_ahead / n_his * max(now - self._seen[0][0], 1e-3)

    def _forget_first(self) -> None:
        _, priority = self._seen.popleft()
        self._by_priority[priority] -= 1
        if not self._by_priority[priority]:
            del self._by_priority[priority]
