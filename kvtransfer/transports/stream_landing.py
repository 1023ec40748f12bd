"""Receiver's end of the tcp and unix transports: one thread places bytes straight into pages.

The thread alone writes to granted pages, and only between two looks at its orders. So when it has
carried out a revoke, nothing of that grant is being written: its `Stopped` is proof.
"""

from __future__ import annotations

import selectors
import socket
import threading
from collections import Counter

from kvtransfer import reasons
from kvtransfer.checksum import Pool
from kvtransfer.plan import PageIds
from kvtransfer.transports.addresses import is_same_user, widen
from kvtransfer.transports.arrival import Arrival, LandingGround
from kvtransfer.transports.base import LandingEvent, Stopped, Wake
from kvtransfer.transports.frames import FrameError
from kvtransfer.transports.landing_table import LandingTable
from kvtransfer.transports.mailbox import Mailbox


class StreamLanding:
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
    ) -> None:
        assert pool.flags.c_contiguous and pool.ndim == 2  # noqa: PT018 -- one fact
        self.address = address
        self._mailbox: Mailbox[LandingEvent] = Mailbox()
        self._table = LandingTable(checksums=checksums)
        self._ground = LandingGround(
            receiver_epoch=receiver_epoch,
            flat=pool.data.cast("B"),
            page_bytes=pool.shape[1],
            checksums=checksums,
            table=self._table,
            take_orders=self._mailbox.take_orders,
        )
        self._listener = listener
        self._listener.setblocking(False)
        self._arrivals: set[Arrival] = set()
        self._selector = selectors.DefaultSelector()
        self._is_closing = False
        self._thread = threading.Thread(target=self._run, name="landing", daemon=True)
        self._thread.start()

    @property
    def dropped(self) -> Counter[str]:
        """Frames that were not for any page, by reason; a snapshot."""
        return Counter(self._table.dropped)

    def grant(self, sender_epoch: int, generation: int, pages: PageIds) -> None:
        self._mailbox.order(self._table.grant, sender_epoch, generation, pages)

    def check(self, generation: int, first: int, n: int) -> None:
        self._mailbox.order(self._check, generation, first, n)

    def revoke(self, generation: int) -> None:
        self._mailbox.order(self._revoke, generation)

    def poll(self) -> list[LandingEvent]:
        return self._mailbox.poll()

    def set_wake(self, wake: Wake) -> None:
        self._mailbox.set_wake(wake)

    def close(self) -> None:
        if self._thread.is_alive():
            self._mailbox.order(self._end)
            self._thread.join()
            self._mailbox.close()

    # -- on the thread ----------------------------------------------------------------------

    def _run(self) -> None:
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._mailbox.bell, selectors.EVENT_READ)
        while not self._is_closing:
            for key, _ in self._selector.select():
                if isinstance(key.data, Arrival):
                    self._mailbox.take_orders()
                    if key.data in self._arrivals:
                        self._read(key.data)
                elif key.fileobj is self._listener:
                    self._accept()
                else:
                    self._mailbox.quiet()
                    self._mailbox.take_orders()
        for arrival in list(self._arrivals):
            self._drop(arrival)
        self._listener.close()
        self._selector.close()

    def _accept(self) -> None:
        try:
            stream, _ = self._listener.accept()
        except OSError:  # it hung up before we looked
            self._table.dropped["accept"] += 1
            return
        if not is_same_user(stream):
            self._table.dropped["user"] += 1
            stream.close()
            return
        stream.setblocking(False)
        widen(stream)
        arrival = Arrival(stream, self._ground)
        self._arrivals.add(arrival)
        self._selector.register(stream, selectors.EVENT_READ, arrival)

    def _read(self, arrival: Arrival) -> None:
        try:
            is_up, news = arrival.read()
        except FrameError:
            self._table.dropped[reasons.MALFORMED] += 1
            self._drop(arrival)
        except OSError:  # reset: what was on its way is lost; the sender, or a timeout, sees to it
            self._drop(arrival)
        else:
            self._mailbox.tell(*news)
            if not is_up:
                self._drop(arrival)

    def _drop(self, arrival: Arrival) -> None:
        self._arrivals.remove(arrival)
        self._selector.unregister(arrival.stream)
        arrival.stream.close()

    def _check(self, generation: int, first: int, n: int) -> None:
        self._mailbox.tell(*self._table.check(generation, first, n))

    def _revoke(self, generation: int) -> None:
        self._table.revoke(generation)
        for arrival in self._arrivals:
            arrival.stop(generation)
        self._mailbox.tell(Stopped(generation))

    def _end(self) -> None:
        self._is_closing = True
