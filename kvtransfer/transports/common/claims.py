"""Decides where arriving bytes may be written, for transports whose receiver writes.

    arriving: (sender epoch, generation, first, n)       claim: its pages, once; or None: discard

Everything that comes off a wire passes `claim` before a byte of it touches the pool. A page is
claimed at most once under a generation, so a repeat cannot overwrite what was verified.
Not thread-safe.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
import numpy.typing as npt

from twolane.kvtransfer import reasons
from twolane.kvtransfer.copy_plan import PageIds
from twolane.kvtransfer.transport import Checked, Checksums


class _Entry:
    """One grant: which pages were claimed, which have landed, which checks wait for an answer."""

    def __init__(self, sender_epoch: int, pages: PageIds) -> None:
        self.sender_epoch = sender_epoch
        self.pages = pages
        self.claimed: npt.NDArray[np.bool_] = np.zeros(pages.size, dtype=bool)
        self.landed: npt.NDArray[np.bool_] = np.zeros(pages.size, dtype=bool)
        self.sums: Checksums = np.zeros(pages.size, dtype=np.uint64)
        self.owed: list[tuple[int, int]] = []  # (first, n) of checks that wait


class LandingTable:
    """The open grants of one landing."""

    def __init__(self, *, checksums: bool) -> None:
        self.dropped: Counter[str] = Counter()  # refused claims, by reason
        self._checksums = checksums
        self._entries: dict[int, _Entry] = {}  # by generation

    def grant(self, sender_epoch: int, generation: int, pages: PageIds) -> None:
        assert generation not in self._entries, "a generation is never used twice"
        self._entries[generation] = _Entry(sender_epoch, pages)

    def revoke(self, generation: int) -> None:
        self._entries.pop(generation, None)

    def claim(self, sender_epoch: int, generation: int, first: int, n: int) -> PageIds | None:
        """The pages that the caller may write these bytes to; None: none, and it is counted."""
        entry = self._entries.get(generation)  # guard: generation
        why_not = self._why_not(entry, sender_epoch, first, n)
        if entry is None or why_not:
            self.dropped[why_not] += 1
            return None
        entry.claimed[first : first + n] = True
        return entry.pages[first : first + n]

    def landed(self, generation: int, first: int, n: int, sums: Checksums | None) -> list[Checked]:
        """Claimed pages are complete, with these checksums. Returns the checks this answers."""
        entry = self._entries.get(generation)
        if entry is None:
            return []
        entry.landed[first : first + n] = True
        if sums is not None:
            entry.sums[first : first + n] = sums
        return self._answer(generation, entry)

    def check(self, generation: int, first: int, n: int) -> list[Checked]:
        """Ask to be told when these pages have landed. Returns what can be answered now."""
        entry = self._entries.get(generation)
        if entry is None:
            return []
        entry.owed.append((first, n))
        return self._answer(generation, entry)

    def _answer(self, generation: int, entry: _Entry) -> list[Checked]:
        here = [(a, n) for a, n in entry.owed if entry.landed[a : a + n].all()]
        entry.owed = [span for span in entry.owed if span not in here]
        return [
            Checked(generation, a, n, entry.sums[a : a + n].copy() if self._checksums else None)
            for a, n in here
        ]

    def _why_not(self, entry: _Entry | None, sender_epoch: int, first: int, n: int) -> str:
        if entry is None:
            return reasons.GENERATION
        if entry.sender_epoch != sender_epoch:  # guard: epoch
            return reasons.EPOCH
        if n < 1 or first < 0 or first + n > entry.pages.size:  # guard: range
            return reasons.MALFORMED
        if entry.claimed[first : first + n].any():  # guard: once
            return reasons.DUPLICATE
        return ""
