"""When to repeat a message: at once, then with doubling pauses."""

from __future__ import annotations

from twolane.kvtransfer.config import LeaseConfig


class Retry:
    """When one message is repeated next. Call `start` when it is first sent; `is_due` counts a
    repeat."""

    __slots__ = ("_at", "_first_s", "_most_s", "_pause_s")

    def __init__(self, config: LeaseConfig, now: float) -> None:
        self._first_s, self._most_s = config.retry_first_s, config.retry_most_s
        self._pause_s = self._first_s
        self._at = now

    def start(self, now: float) -> None:
        self._pause_s = self._first_s
        self._at = now + self._pause_s

    def is_due(self, now: float) -> bool:
        """True at most once in each pause; the next pause is twice as long."""
        if now < self._at:
            return False
        self._pause_s = min(self._pause_s * 2, self._most_s)
        self._at = now + self._pause_s
        return True

    def put_off(self, until: float) -> None:
        self._at = max(self._at, until)
