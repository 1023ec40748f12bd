"""A device's pool as the destination of a stream landing: slots first, then copies to the device.

    bytes --> slot --> [copy and checksum under way] --> fence --> landed; the slot is free

Each connection has its own ring, so that a sender that stops in the middle of a page delays no
other (`RingSink`). Over shm the slots are the sender's, mapped and pinned here (`SharedSink`).
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from twolane.kvtransfer.device import Bytes, CopyStream, DeviceError, DeviceMemory, Fence, Sums
from twolane.kvtransfer.digests import DEVICE_DIGESTS
from twolane.kvtransfer.transport import Checked
from twolane.kvtransfer.transports.common.claims import LandingTable
from twolane.kvtransfer.transports.common.frames import FrameError
from twolane.kvtransfer.transports.common.pinned_ring import STREAM_SLOT_BYTES, Ring, slot_pages
from twolane.kvtransfer.transports.common.shared_memory import map_peer_memory
from twolane.kvtransfer.transports.stream.sink import Claim, Sink, check_digest

_SPARE_RINGS = 4  # kept for later connections: pinning memory takes milliseconds

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Write:
    """A copy under way from a slot into granted pages."""

    claim: Claim
    sums: Sums | None
    fence: Fence
    done: Callable[[], None]  # the slot is no longer read


class DeviceDestination:
    """See `Destination`. `has_rings`: senders bring slots of their own (shm)."""

    def __init__(
        self,
        memory: DeviceMemory,
        table: LandingTable,
        *,
        checksums: bool,
        has_rings: bool = False,
        slot_bytes: int = STREAM_SLOT_BYTES,
    ) -> None:
        self.memory = memory
        self.page_bytes = memory.page_bytes
        self.table = table
        self.digests: tuple[str, ...] = DEVICE_DIGESTS if checksums else ()
        self._has_rings = has_rings
        self._slot_pages = slot_pages(memory.page_bytes, slot_bytes)
        self._copy_stream: CopyStream = memory.open_copy_stream()
        self._writes: deque[_Write] = deque()
        self._spare: list[Ring] = []
        self._sinks: set[RingSink | SharedSink] = set()  # those whose memory is in use
        if not has_rings:
            try:
                self._spare.append(self._new_ring())  # pinned before the first connection needs it
            except OSError:
                self._copy_stream.close()
                raise

    def open_sink(self, free_slot: Callable[[int], None]) -> Sink:
        made: RingSink | SharedSink
        made = SharedSink(self, free_slot) if self._has_rings else RingSink(self)
        self._sinks.add(made)
        return made

    @property
    def is_busy(self) -> bool:
        return bool(self._writes) or any(sink.is_left for sink in self._sinks)

    def write(self, claim: Claim, source: Bytes, done: Callable[[], None], *, sums: bool) -> None:
        """Begin to copy a full slot to the device."""
        try:
            self._copy_stream.from_host(source, claim.ids)
            summed = self._copy_stream.sum(claim.ids) if sums else None
        except DeviceError:
            summed = None
            claim = Claim(0, 0, claim.ids)  # a part may be under way; nothing counts as landed
        self._writes.append(_Write(claim, summed, self._copy_stream.mark(), done))

    def look(self) -> list[Checked]:
        news: list[Checked] = []
        while self._writes:
            write = self._writes[0]
            is_sound = True
            try:
                if not write.fence.is_done():
                    break
            except DeviceError:  # it failed and has not landed: the receiver's timeout ends it
                is_sound = False
            self._writes.popleft()
            write.done()
            claim = write.claim
            if is_sound and claim.generation:
                n = int(claim.ids.size)
                news += self.table.landed(claim.generation, claim.first, n, write.sums)
        for sink in [sink for sink in self._sinks if sink.is_left and not sink.n_writes]:
            self._sinks.remove(sink)
            try:
                sink.give_back()
            except OSError as error:  # that memory stays pinned; other connections go on
                _log.warning("the ring of a connection that is over stays pinned: %s", error)
        return news

    def is_writing(self, generation: int) -> bool:
        writes = (write.claim.generation for write in self._writes)
        return any(number in (generation, 0) for number in writes)  # guard: device copies

    def take_ring(self) -> Ring:
        """Raises OSError when no memory can be pinned."""
        return self._spare.pop() if self._spare else self._new_ring()

    def keep_ring(self, ring: Ring) -> None:
        if len(self._spare) < _SPARE_RINGS:
            self._spare.append(ring)
        else:
            ring.close()

    def close(self) -> None:
        self._copy_stream.close()
        self._writes.clear()
        for sink in self._sinks:
            sink.give_back()
        self._sinks.clear()
        for ring in self._spare:
            ring.close()
        self._spare.clear()

    def _new_ring(self) -> Ring:
        return Ring(self.memory, self._slot_pages)


class SlotSink(ABC):
    """What both kinds of device sinks share."""

    def __init__(self, destination: DeviceDestination) -> None:
        self._destination = destination
        self._digest = ""
        self.n_writes = 0  # from slots of this connection
        self.is_left = False

    def meet(self, digest: str) -> None:
        check_digest(digest, self._destination.digests)
        self._digest = digest

    def leave(self) -> None:
        """The connection is closed; its memory is freed when no copy reads it any more."""
        self.stop()
        self.is_left = True

    @abstractmethod
    def stop(self) -> None:
        """Take no more bytes of the body that is being read."""

    @abstractmethod
    def give_back(self) -> None:
        """Free the memory of this connection: no copy reads it. May raise DeviceError."""

    def _write(self, claim: Claim, source: Bytes, done: Callable[[], None]) -> None:
        def over() -> None:
            self.n_writes -= 1
            done()

        self.n_writes += 1
        self._destination.write(claim, source, over, sums=bool(self._digest))


class RingSink(SlotSink):
    """Bytes come over the socket, into this process's slots."""

    def __init__(self, destination: DeviceDestination) -> None:
        super().__init__(destination)
        self._ring: Ring | None = None
        self._claim: Claim | None = None
        self._at = 0  # pages of the claim that are in slots
        self._slot = -1  # the slot that is being filled

    def begin(self, claim: Claim) -> None:
        self._claim = claim
        self._at = 0
        if self._ring is None:
            self._ring = self._destination.take_ring()

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
            self._destination.keep_ring(self._ring)
            self._ring = None


class SharedSink(SlotSink):
    """Bytes are in the sender's slots, which this process maps."""

    def __init__(self, destination: DeviceDestination, free_slot: Callable[[int], None]) -> None:
        super().__init__(destination)
        self._free_slot = free_slot
        self._all: Bytes | None = None
        self._slots: list[Bytes] = []

    def map_ring(self, address: str, n_slots: int, pages: int) -> None:
        """Raises FrameError for an invalid ring, DeviceError if it cannot be pinned."""
        size = self._destination.page_bytes
        if self._all is not None:
            raise FrameError("a second ring")
        try:
            mapped = map_peer_memory(address)
            self._slots = list(mapped.reshape(n_slots, pages, size))
        except (OSError, ValueError) as error:
            raise FrameError(f"no ring of {n_slots} x {pages} pages: {error}") from error
        self._destination.memory.pin(mapped)
        self._all = mapped

    def check_slot(self, slot: int, n_pages: int) -> None:
        """Raises FrameError."""
        if slot >= len(self._slots) or not 1 <= n_pages <= len(self._slots[slot]):
            raise FrameError(f"{n_pages} pages in slot {slot}")

    def take_slot(self, claim: Claim | None, slot: int) -> None:
        """The slot is full. Claim None: its pages were refused."""
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
        """Slots come whole: no body is being read."""

    def give_back(self) -> None:
        if self._all is not None:
            self._destination.memory.unpin(self._all)
            self._all = None
            self._slots = []
