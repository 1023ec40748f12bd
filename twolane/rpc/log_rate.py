"""Which of many alike log records are written."""

from __future__ import annotations

from collections.abc import Hashable

MAX_KINDS = 1_000


class LogRate:
    """Of each kind the first record is written, then at most one in `every_s`. No clock here."""

    def __init__(self, every_s: float = 10.0) -> None:
        self._every_s = every_s
        self._due: dict[Hashable, float] = {}
        self._n_held: dict[Hashable, int] = {}

    def take(self, kind: Hashable, now: float) -> int:
        """How many records the one that is now to be written stands for: itself, and those held
        back before it. 0: hold it back."""
        n_records = self._n_held.get(kind, 0) + 1
        if now < self._due.get(kind, now):
            self._n_held[kind] = n_records
            return 0
        if len(self._due) >= MAX_KINDS and kind not in self._due:
            self._due.clear()  # a record too many is no harm
            self._n_held.clear()
        self._due[kind] = now + self._every_s
        self._n_held.pop(kind, None)
        return n_records
