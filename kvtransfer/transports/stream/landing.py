"""Receiver's end of the tcp and unix transports, and of shm between pools of devices: one thread
writes arriving bytes into pages.

Only this thread writes to granted pages, and it runs orders only between two writes; or a device
copies, and the thread polls each copy until it has ended. So when it has carried out a revoke, and
no copy of that grant is under way, nothing writes to those pages: its `Stopped` is proof.
"""

from __future__ import annotations

import selectors
import socket
import time
from collections import Counter

from twolane.kvtransfer import reasons
from twolane.kvtransfer.copy_plan import PageIds
from twolane.kvtransfer.page_lane import PLAIN_RECEIVER, ReceiverLane
from twolane.kvtransfer.transport import LandingEvent, Stopped
from twolane.kvtransfer.transports.common.frames import FrameError
from twolane.kvtransfer.transports.common.key_proof import UnprovenError
from twolane.kvtransfer.transports.common.listener import Listener, ListenerConfig
from twolane.kvtransfer.transports.common.thread import TransportThread, pause
from twolane.kvtransfer.transports.stream.connection import LandingSite, StreamConnection
from twolane.kvtransfer.transports.stream.sink import Destination


class StreamLanding(TransportThread[LandingEvent]):
    """See `Landing`. Owns the listening socket and the destination from here on."""

    sender_writes = False

    def __init__(
        self,
        listener: socket.socket,
        address: str,
        receiver_epoch: int,
        destination: Destination,
        *,
        lane: ReceiverLane = PLAIN_RECEIVER,
        limits: ListenerConfig | None = None,
    ) -> None:
        super().__init__("landing")
        self.address = address
        self.lane = lane
        self.digests = destination.digests
        self._destination = destination
        self._table = destination.table
        self._stopping: set[int] = set()  # revoked generations that the device still writes
        site = LandingSite(receiver_epoch, destination, self._mailbox.take_orders, lane)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._mailbox.bell, selectors.EVENT_READ)
        self._listener = Listener(
            listener,
            self._selector,
            lambda stream: StreamConnection(stream, site),
            self._table.dropped,
            limits or ListenerConfig(),
        )
        self._start()

    @property
    def dropped(self) -> Counter[str]:
        """How many frames and connections were refused, by reason; a snapshot."""
        return Counter(self._table.dropped)

    def grant(self, sender_epoch: int, generation: int, pages: PageIds) -> None:
        self._order(self._table.grant, sender_epoch, generation, pages)

    def check(self, generation: int, first: int, n: int) -> None:
        self._order(self._check, generation, first, n)

    def revoke(self, generation: int) -> None:
        self._order(self._revoke, generation)

    # -- on the thread ----------------------------------------------------------------------

    def _turn(self) -> None:
        wait_s = self._listener.tick(time.monotonic())
        ready = self._selector.select(0 if self._destination.is_busy else wait_s)
        was_read = False
        for key, _ in ready:
            if isinstance(key.data, StreamConnection):
                self._mailbox.take_orders()
                if key.data in self._listener.connections and not key.data.is_waiting:
                    self._read(key.data)
                    was_read = True
            elif key.data is self._listener:
                self._listener.accept(time.monotonic())
            else:
                self._mailbox.hear()
        if self._destination.is_busy:
            self._look(was_read=was_read)

    def _look(self, *, was_read: bool) -> None:
        """Poll the copies under way; pause if none has ended and nothing was read."""
        news = self._destination.look()
        self._mailbox.tell(*news)
        self._tell_stopped()
        if not news and not was_read:
            pause()
        for connection in [one for one in self._listener.connections if one.is_waiting]:
            self._read(connection)

    def _leave(self) -> None:
        self._listener.close()
        self._destination.close()
        self._selector.close()

    def _read(self, connection: StreamConnection) -> None:
        try:
            is_up, news = connection.read()
        except FrameError as error:
            is_unproven = isinstance(error, UnprovenError)
            self._table.dropped[reasons.UNPROVEN if is_unproven else reasons.MALFORMED] += 1
            self._listener.drop(connection)
        except (
            OSError
        ):  # reset: what was on its way is lost; the sender repeats it, or a timeout ends it
            self._listener.drop(connection)
        else:
            self._mailbox.tell(*news)
            if not is_up:
                self._listener.drop(connection)

    def _check(self, generation: int, first: int, n: int) -> None:
        self._mailbox.tell(*self._table.check(generation, first, n))

    def _revoke(self, generation: int) -> None:
        self._table.revoke(generation)
        for connection in self._listener.connections:
            connection.stop(generation)
        self._stopping.add(generation)
        self._tell_stopped()

    def _tell_stopped(self) -> None:
        for generation in [g for g in self._stopping if not self._destination.is_writing(g)]:
            self._stopping.remove(generation)
            self._mailbox.tell(Stopped(generation))
