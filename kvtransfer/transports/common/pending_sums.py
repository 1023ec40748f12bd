"""Checksums of granted pages that a device is computing, for a landing to answer with."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from twolane.kvtransfer.device import DeviceError, Fence
from twolane.kvtransfer.transport import Checked, Checksums, LandingEvent
from twolane.kvtransfer.transports.common.mailbox import Mailbox


@dataclass(frozen=True, slots=True)
class _Sum:
    generation: int
    first: int
    sums: Checksums
    fence: Fence


class PendingSums:
    """Oldest first. Used by the landing's thread. False where it is empty."""

    def __init__(self, mailbox: Mailbox[LandingEvent]) -> None:
        self._mailbox = mailbox
        self._sums: deque[_Sum] = deque()

    def __len__(self) -> int:
        return len(self._sums)

    def add(self, generation: int, first: int, sums: Checksums, fence: Fence) -> None:
        """The `sums` of that grant's pages from `first` on are there when the fence is done."""
        self._sums.append(_Sum(generation, first, sums, fence))

    def look(self) -> bool:
        """Poll the oldest, and tell of them if they are done. False if they are not, or there are
        none. Those that the device failed to compute stay unanswered."""
        if not self._sums:
            return False
        oldest = self._sums[0]
        try:
            if not oldest.fence.is_done():
                return False
        except DeviceError:
            self._sums.popleft()
            return True
        self._sums.popleft()
        n = int(oldest.sums.size)
        self._mailbox.tell(Checked(oldest.generation, oldest.first, n, oldest.sums))
        return True
