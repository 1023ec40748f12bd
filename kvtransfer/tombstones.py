"""Keys that are over, remembered for a while: nothing late may bring one back to life."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from kvtransfer.key import Key


@dataclass(frozen=True, slots=True)
class Tombstone:
    """How a key ended. `committed` is the generation that succeeded, 0 when none did."""

    reason: str
    committed: int
    until: float


class Tombstones:
    """Late ASSIGN, RESERVE and DONE of these keys are answered from here."""

    def __init__(self, keep_s: float) -> None:
        self._keep_s = keep_s
        self._of: dict[Key, Tombstone] = {}  # oldest first: all are kept equally long

    def bury(self, key: Key, reason: str, now: float, *, committed: int = 0) -> None:
        self._of.pop(key, None)
        self._of[key] = Tombstone(reason, committed, now + self._keep_s)

    def find(self, key: Key) -> Tombstone | None:
        return self._of.get(key)

    def committed_of(self, sender_epoch: int) -> Iterator[Key]:
        """Keys from that sender that succeeded not long ago."""
        for key, tombstone in self._of.items():
            if key.sender_epoch == sender_epoch and tombstone.committed:
                yield key

    def tick(self, now: float) -> None:
        while self._of:
            key, tombstone = next(iter(self._of.items()))
            if now < tombstone.until:
                return
            del self._of[key]
