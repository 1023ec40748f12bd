"""Slots of pinned host memory, through which pages of a device pass to or from a socket."""

from __future__ import annotations

from collections import deque

from twolane.kvtransfer.device import Bytes, SentMemory
from twolane.kvtransfer.transports.common.shared_memory import create_pool_memory

STREAM_SLOT_BYTES = 2 * 1024 * 1024  # of tcp and unix: a few system calls
SHARED_SLOT_BYTES = 8 * 1024 * 1024  # of shm, whose slots move at the rate of the PCIe bus
N_SLOTS = 4  # one fills, one waits, one empties, one is spare


def slot_pages(page_bytes: int, slot_bytes: int) -> int:
    """How many pages a slot holds: at least one, whatever its size."""
    return max(1, slot_bytes // page_bytes)


class Ring:
    """`slots[i]` is `[pages, page_bytes]`, in memory that other processes can map by `address`.

    Used by one thread. Raises OSError when the memory cannot be had or pinned.
    """

    def __init__(self, memory: SentMemory, pages: int, n_slots: int = N_SLOTS) -> None:
        self.pages = pages
        self.free = deque(range(n_slots))
        self._device = memory
        self._memory = create_pool_memory(n_slots * pages * memory.page_bytes, "ring")
        self._all: Bytes = self._memory.array
        try:
            memory.pin(self._all)
        except OSError:
            self._memory.close()
            raise
        self.slots: list[Bytes] = list(self._all.reshape(n_slots, pages, memory.page_bytes))
        self.address = self._memory.address

    def close(self) -> None:
        """Call once, when no copy stream uses it any more."""
        self._device.unpin(self._all)
        self._memory.close()
