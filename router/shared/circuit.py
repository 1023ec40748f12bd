"""Whether the store is asked at all: after a failure it is left alone for a while, and whoever
waits for answers does not find out that it is still down.

      up ──failure──▶ down ──1 s, 2, 4, 5, 5 …──▶ one try ──▶ up
                        ▲                             │ failure
                        └─────────────────────────────┘
"""

from __future__ import annotations

FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 5.0


class Circuit:
    """Begins down, to be tried at once. Times are of one clock, in seconds."""

    def __init__(self) -> None:
        self.is_up = False
        self.why = "not connected yet"  # while it is down
        self._pause_s = FIRST_PAUSE_S
        self._retry_at = float("-inf")

    def may_try(self, now: float) -> bool:
        """Whether the one that keeps the connection may try."""
        return self.is_up or now >= self._retry_at

    def failed(self, why: str, now: float) -> bool:
        """Returns whether it was up until now. A failure of something that began before the last
        one tells nothing new."""
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
        """The try went well. Returns whether it was down until now."""
        was_up = self.is_up
        self.is_up, self.why = True, ""
        return not was_up
