"""A token bucket: so much a second, and no more than a capacity at once."""

from __future__ import annotations

_ROUNDING = 1e-6  # of sums of many small amounts


class Bucket:
    """Starts full. May be overdrawn: a debt is paid off at the same rate."""

    def __init__(self, per_s: float, capacity: float, now: float) -> None:
        self.per_s = per_s
        self.capacity = capacity
        self._level = capacity
        self._at = now

    def tune(self, per_s: float, capacity: float, now: float) -> None:
        """From now on."""
        self._level = min(self.level(now), capacity)
        self.per_s, self.capacity = per_s, capacity

    def level(self, now: float) -> float:
        """What is in it; below 0 is a debt."""
        self._level = min(self.capacity, self._level + max(0.0, now - self._at) * self.per_s)
        self._at = max(self._at, now)
        return self._level

    def take(self, amount: float, now: float) -> None:
        """An amount below 0 gives back; what does not fit is lost."""
        self._level = min(self.capacity, self.level(now) - amount)

    def wait_s(self, amount: float, now: float) -> float:
        """Until `amount` may be taken. More than the capacity may be taken from a full bucket."""
        lacking = min(amount, self.capacity) - self.level(now)
        return lacking / self.per_s if lacking > _ROUNDING else 0.0
