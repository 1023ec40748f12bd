"""Remembers ended keys for a while, so that a late message cannot start one again."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

KeyT = TypeVar("KeyT", bound=Hashable)
EndT = TypeVar("EndT")


class Tombstones(Generic[KeyT, EndT]):
    """How each key ended. `tick` removes an entry `keep_s` after its latest `bury`."""

    def __init__(self, keep_s: float) -> None:
        self._keep_s = keep_s
        self._of: dict[KeyT, tuple[float, EndT]] = {}  # (kept until, end), oldest first

    def bury(self, key: KeyT, end: EndT, now: float) -> None:
        self._of.pop(key, None)
        self._of[key] = (now + self._keep_s, end)

    def find(self, key: KeyT) -> EndT | None:
        """How the key ended; None if it has no entry."""
        return self._of[key][1] if key in self._of else None

    def __contains__(self, key: KeyT) -> bool:
        return key in self._of

    def items(self) -> Iterator[tuple[KeyT, EndT]]:
        """All entries, oldest first."""
        for key, (_, end) in self._of.items():
            yield key, end

    def tick(self, now: float) -> None:
        """Remove expired entries: the oldest ones, because all are kept equally long."""
        while self._of:
            key, (until, _) = next(iter(self._of.items()))
            if now < until:
                return
            del self._of[key]
