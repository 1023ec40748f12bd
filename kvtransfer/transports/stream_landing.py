"""Receiver's end of the tcp and unix transports: one thread places bytes straight into pages.

The thread alone writes to granted pages, and only between two looks at its orders. So when it has
carried out a revoke, nothing of that grant is being written: its `Stopped` is proof.
"""

from __future__ import annotations

import selectors
import socket
import time
from collections import Counter

from kvtransfer import reasons
from kvtransfer.checksum import Pool
from kvtransfer.plan import PageIds
from kvtransfer.transports.arrival import Arrival, LandingGround
from kvtransfer.transports.base import LandingEvent, Stopped
from kvtransfer.transports.doorway import Doorway, DoorwayConfig
from kvtransfer.transports.frames import FrameError
from kvtransfer.transports.landing_table import LandingTable
from kvtransfer.transports.thread import TransportThread


class StreamLanding(TransportThread[LandingEvent]):
    """See `Landing`. Takes over the listening socket."""

    sender_writes = False

    def __init__(
        self,
        listener: socket.socket,
        address: str,
        receiver_epoch: int,
        pool: Pool,
        *,
        checksums: bool,
        door: DoorwayConfig | None = None,
    ) -> None:
        assert pool.flags.c_contiguous and pool.ndim == 2  # noqa: PT018 -- one fact
        super().__init__("landing")
        self.address = address
        self._table = LandingTable(checksums=checksums)
        self._ground = LandingGround(
            receiver_epoch=receiver_epoch,
            flat=pool.data.cast("B"),
            page_bytes=pool.shape[1],
            checksums=checksums,
            table=self._table,
            take_orders=self._mailbox.take_orders,
        )
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._mailbox.bell, selectors.EVENT_READ)
        self._door = Doorway(
            listener,
            self._selector,
            lambda stream: Arrival(stream, self._ground),
            self._table.dropped,
            door or DoorwayConfig(),
        )
        self._start()

    @property
    def dropped(self) -> Counter[str]:
        """Frames that were not for any page, by reason; a snapshot."""
        return Counter(self._table.dropped)

    def grant(self, sender_epoch: int, generation: int, pages: PageIds) -> None:
        self._order(self._table.grant, sender_epoch, generation, pages)

    def check(self, generation: int, first: int, n: int) -> None:
        self._order(self._check, generation, first, n)

    def revoke(self, generation: int) -> None:
        self._order(self._revoke, generation)

    # -- on the thread ----------------------------------------------------------------------

    def _turn(self) -> None:
        wait_s = self._door.tick(time.monotonic())
        for key, _ in self._selector.select(wait_s):
            if isinstance(key.data, Arrival):
                self._mailbox.take_orders()
                if key.data in self._door.arrivals:
                    self._read(key.data)
            elif key.data is self._door:
                self._door.accept(time.monotonic())
            else:
                self._hear()

    def _leave(self) -> None:
        self._door.close()
        self._selector.close()

    def _read(self, arrival: Arrival) -> None:
        try:
            is_up, news = arrival.read()
        except FrameError:
            self._table.dropped[reasons.MALFORMED] += 1
            self._door.drop(arrival)
        except OSError:  # reset: what was on its way is lost; the sender, or a timeout, sees to it
            self._door.drop(arrival)
        else:
            self._mailbox.tell(*news)
            if not is_up:
                self._door.drop(arrival)

    def _check(self, generation: int, first: int, n: int) -> None:
        self._mailbox.tell(*self._table.check(generation, first, n))

    def _revoke(self, generation: int) -> None:
        self._table.revoke(generation)
        for arrival in self._door.arrivals:
            arrival.stop(generation)
        self._mailbox.tell(Stopped(generation))
