"""A device's pool as the ground of a stream landing: slots first, then copies to the device.

    bytes --> slot --> [copy, sum under way] --> fence --> landed       slot is free again

Each connection has a ring of its own, so that a sender which stops in mid-page keeps no other one
waiting. Over shm the slots are the sender's, mapped and pinned here.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from kvtransfer.device import Bytes, DeviceError, DeviceMemory, Fence, Lane, Sums
from kvtransfer.digests import DEVICE_DIGESTS
from kvtransfer.transports.base import Checked
from kvtransfer.transports.device_seats import RingSeat, SharedSeat
from kvtransfer.transports.landing_table import LandingTable
from kvtransfer.transports.ring import STREAM_SLOT_BYTES, Ring, slot_pages
from kvtransfer.transports.seat import Claim, Seat

_SPARE_RINGS = 4  # kept when their connections are over: to pin memory takes milliseconds

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Write:
    """A copy from a slot into granted pages, under way."""

    claim: Claim
    sums: Sums | None
    fence: Fence
    done: Callable[[], None]  # the slot is not read any more


class DeviceGround:
    """See `Ground`. `has_rings`: senders bring slots of their own (shm)."""

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
        self._lane: Lane = memory.open_lane()
        self._writes: deque[_Write] = deque()
        self._spare: list[Ring] = []
        self._seats: set[RingSeat | SharedSeat] = set()  # whose memory is still in use
        if not has_rings:
            try:
                self._spare.append(self._new_ring())  # pinned before anybody waits for it
            except OSError:
                self._lane.close()
                raise

    def seat(self, free_slot: Callable[[int], None]) -> Seat:
        made: RingSeat | SharedSeat
        made = SharedSeat(self, free_slot) if self._has_rings else RingSeat(self)
        self._seats.add(made)
        return made

    @property
    def is_busy(self) -> bool:
        return bool(self._writes) or any(seat.is_left for seat in self._seats)

    def write(self, claim: Claim, source: Bytes, done: Callable[[], None], *, sums: bool) -> None:
        """Begin the copy of a full slot."""
        try:
            self._lane.from_host(source, claim.ids)
            summed = self._lane.sum(claim.ids) if sums else None
        except DeviceError:
            summed = None
            claim = Claim(0, 0, claim.ids)  # some of it may be under way; none of it has landed
        self._writes.append(_Write(claim, summed, self._lane.mark(), done))

    def look(self) -> list[Checked]:
        news: list[Checked] = []
        while self._writes:
            write = self._writes[0]
            is_sound = True
            try:
                if not write.fence.is_done():
                    break
            except DeviceError:  # over, but not landed: the receiver's timeout sees to it
                is_sound = False
            self._writes.popleft()
            write.done()
            claim = write.claim
            if is_sound and claim.generation:
                n = int(claim.ids.size)
                news += self.table.landed(claim.generation, claim.first, n, write.sums)
        for seat in [seat for seat in self._seats if seat.is_left and not seat.n_writes]:
            self._seats.remove(seat)
            try:
                seat.give_back()
            except OSError as error:  # that memory is lost; the other senders' pages go on
                _log.warning("the ring of a connection that is over stays pinned: %s", error)
        return news

    def is_writing(self, generation: int) -> bool:
        writes = (write.claim.generation for write in self._writes)
        return any(number in (generation, 0) for number in writes)  # guard: device copies

    def take_ring(self) -> Ring:
        """Raises OSError when there is no memory to pin."""
        return self._spare.pop() if self._spare else self._new_ring()

    def keep_ring(self, ring: Ring) -> None:
        if len(self._spare) < _SPARE_RINGS:
            self._spare.append(ring)
        else:
            ring.close()

    def close(self) -> None:
        self._lane.close()
        self._writes.clear()
        for seat in self._seats:
            seat.give_back()
        self._seats.clear()
        for ring in self._spare:
            ring.close()
        self._spare.clear()

    def _new_ring(self) -> Ring:
        return Ring(self.memory, self._slot_pages)
