"""A token bucket: it fills at a constant rate up to its capacity. Where routers share a store, its
admit.lua computes the same.
"""

from __future__ import annotations

_ROUNDING = 1e-6  # tolerance for sums of many small amounts


class Bucket:
    """Starts full. It may be overdrawn; the debt is paid off at the same rate."""

    def __init__(self, per_s: float, capacity: float, now: float) -> None:
        self.per_s = per_s
        self.capacity = capacity
        self._level = capacity
        self._at = now

    def tune(self, per_s: float, capacity: float, now: float) -> None:
        """Change rate and capacity from now on."""
        self._level = min(self.level(now), capacity)
        self.per_s, self.capacity = per_s, capacity

    def level(self, now: float) -> float:
        """The present amount; negative for a debt."""
        self._level = min(self.capacity, self._level + max(0.0, now - self._at) * self.per_s)
        self._at = max(self._at, now)
        return self._level

    def take(self, amount: float, now: float) -> None:
        """Take `amount`. A negative amount is returned; what exceeds the capacity is lost."""
        self._level = min(self.capacity, self.level(now) - amount)

    def wait_s(self, amount: float, now: float) -> float:
        """The time until `amount` may be taken. A full bucket may be overdrawn by any amount."""
        lacking = min(amount, self.capacity) - self.level(now)
        return lacking / self.per_s if lacking > _ROUNDING else 0.0
