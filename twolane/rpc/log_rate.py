"""Limits the rate of similar log records."""

from __future__ import annotations

from collections.abc import Hashable

MAX_KINDS = 1_000


class LogRate:
    """Lets the first record of each kind pass, then at most one in `every_s`. It reads no clock:
    the caller passes the time in seconds."""

    def __init__(self, every_s: float = 10.0) -> None:
        self._every_s = every_s
        self._due: dict[Hashable, float] = {}
        self._n_held: dict[Hashable, int] = {}

    def take(self, kind: Hashable, now: float) -> int:
        """The number of records that this one stands for: itself and those suppressed before it. 0
        if it must be suppressed, too."""
        n_records = self._n_held.get(kind, 0) + 1
        if now < self._due.get(kind, now):
            self._n_held[kind] = n_records
            return 0
        if len(self._due) >= MAX_KINDS and kind not in self._due:
            self._due.clear()  # a record too many does no harm
            self._n_held.clear()
        self._due[kind] = now + self._every_s
        self._n_held.pop(kind, None)
        return n_records
