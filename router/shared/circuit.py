"""A circuit breaker for the store: after a failure the store is not called for a while, so that
requests do not wait for a store that is down.

      up ──failure──▶ down ──1 s, 2, 4, 5, 5 …──▶ one try ──▶ up
                        ▲                             │ failure
                        └─────────────────────────────┘
"""

from __future__ import annotations

FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 5.0


class Circuit:
    """Starts as down, and may be tried at once. Times are seconds of one clock."""

    def __init__(self) -> None:
        self.is_up = False
        self.why = "not connected yet"  # the reason while it is down
        self._pause_s = FIRST_PAUSE_S
        self._retry_at = float("-inf")

    def may_try(self, now: float) -> bool:
        """Whether the writing task, which reconnects, may call the store."""
        return now >= self.try_at

    @property
    def try_at(self) -> float:
        """When the writing task may call the store."""
        return float("-inf") if self.is_up else self._retry_at

    def failed(self, why: str, now: float) -> bool:
        """Record a failure. Returns whether the store was up until now. A failure before the next
        try is due changes nothing."""
        was_up = self.is_up
        self.is_up, self.why = False, why
        if was_up:
            self._pause_s = FIRST_PAUSE_S
        elif now < self._retry_at:
            return False
        self._retry_at = now + self._pause_s
        self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)
        return was_up

    def answered(self) -> bool:
        """Record a success. Returns whether the store was down until now."""
        was_up = self.is_up
        self.is_up, self.why = True, ""
        return not was_up
