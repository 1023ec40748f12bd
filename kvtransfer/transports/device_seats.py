"""Seats over a device's pool: slots that a connection fills, or that its sender has filled."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING

from kvtransfer.device import Bytes
from kvtransfer.transports.base import Checked
from kvtransfer.transports.frames import FrameError
from kvtransfer.transports.pool_memory import map_peer_memory
from kvtransfer.transports.ring import Ring
from kvtransfer.transports.seat import Claim, check_digest

if TYPE_CHECKING:
    from kvtransfer.transports.device_ground import DeviceGround


_RING_ADDRESS = re.compile(r"/proc/\d+/fd/\d+:\d+:\d+")


class SlotSeat:
    """What both kinds of seats share."""

    def __init__(self, ground: DeviceGround) -> None:
        self._ground = ground
        self._digest = ""
        self.n_writes = 0  # from slots of this connection
        self.is_left = False

    def meet(self, digest: str) -> None:
        check_digest(digest, self._ground.digests)
        self._digest = digest

    def leave(self) -> None:
        """The ground gives its memory back when no copy reads it any more."""
        self.stop()
        self.is_left = True

    def stop(self) -> None:
        raise NotImplementedError

    def give_back(self) -> None:
        raise NotImplementedError

    def _write(self, claim: Claim, source: Bytes, done: Callable[[], None]) -> None:
        def over() -> None:
            self.n_writes -= 1
            done()

        self.n_writes += 1
        self._ground.write(claim, source, over, sums=bool(self._digest))


class RingSeat(SlotSeat):
    """Bytes come over the socket, into slots of ours."""

    def __init__(self, ground: DeviceGround) -> None:
        super().__init__(ground)
        self._ring: Ring | None = None
        self._claim: Claim | None = None
        self._at = 0  # pages of the claim that are in slots
        self._slot = -1  # that is being filled

    def begin(self, claim: Claim) -> None:
        self._claim = claim
        self._at = 0
        if self._ring is None:
            self._ring = self._ground.take_ring()

    def views(self) -> list[memoryview] | None:
        assert self._ring is not None
        assert self._claim is not None
        left = int(self._claim.ids.size) - self._at
        if not left:
            return None
        if not self._ring.free:
            return []
        self._slot = self._ring.free.popleft()
        n = min(left, self._ring.pages)
        return [self._ring.slots[self._slot][:n].data.cast("B")]

    def filled(self) -> list[Checked]:
        ring, claim, slot = self._ring, self._claim, self._slot
        assert ring is not None
        assert claim is not None
        ids = claim.ids[self._at : self._at + ring.pages]
        part = Claim(claim.generation, claim.first + self._at, ids)
        self._at += int(ids.size)
        self._slot = -1
        self._write(part, ring.slots[slot][: ids.size], lambda: ring.free.append(slot))
        return []

    def stop(self) -> None:
        if self._slot >= 0 and self._ring is not None:
            self._ring.free.append(self._slot)
        self._slot = -1
        self._claim = None

    def give_back(self) -> None:
        if self._ring is not None:
            self._ground.keep_ring(self._ring)
            self._ring = None


class SharedSeat(SlotSeat):
    """Bytes lie in slots of the sender's, which this process has mapped."""

    def __init__(self, ground: DeviceGround, free_slot: Callable[[int], None]) -> None:
        super().__init__(ground)
        self._free_slot = free_slot
        self._all: Bytes | None = None
        self._slots: list[Bytes] = []

    def map_ring(self, address: str, n_slots: int, pages: int) -> None:
        """Raises FrameError for what is no ring, DeviceError when it cannot be pinned."""
        size = self._ground.page_bytes
        if self._all is not None or not _RING_ADDRESS.fullmatch(address):
            raise FrameError("a second ring, or no address of one")
        try:
            mapped = map_peer_memory(address)
            self._slots = list(mapped.reshape(n_slots, pages, size))
        except (OSError, ValueError) as error:
            raise FrameError(f"no ring of {n_slots} x {pages} pages: {error}") from error
        self._ground.memory.pin(mapped)
        self._all = mapped

    def check_slot(self, slot: int, n_pages: int) -> None:
        """Raises FrameError."""
        if slot >= len(self._slots) or not 1 <= n_pages <= len(self._slots[slot]):
            raise FrameError(f"{n_pages} pages in slot {slot}")

    def take_slot(self, claim: Claim | None, slot: int) -> None:
        """The slot is full; None: of pages that are not for us."""
        if claim is None:
            self._free_slot(slot)
        else:
            source = self._slots[slot][: claim.ids.size]
            self._write(claim, source, lambda: None if self.is_left else self._free_slot(slot))

    def begin(self, claim: Claim) -> None:
        raise FrameError("pages over the socket of a shared ring")

    def views(self) -> list[memoryview] | None:
        return None

    def filled(self) -> list[Checked]:
        return []

    def stop(self) -> None:
        """Slots are handed over whole: nothing is half-way."""

    def give_back(self) -> None:
        if self._all is not None:
            self._ground.memory.unpin(self._all)
            self._all = None
            self._slots = []
