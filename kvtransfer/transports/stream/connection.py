"""One sender's connection to a stream landing: reads frames, writes their bytes into granted pages.

HEAD --- hello, fits ------> HEAD                 (once)
HEAD --- hello with a key -> PROOF --- proven ---> HEAD        (once, instead)
HEAD --- pages, claimed ---> BODY --- complete --> HEAD        bytes go into the sink's views
HEAD --- pages, refused ---> SCRAP -- drained ---> HEAD        bytes are discarded
BODY --- grant revoked ----> SCRAP
HEAD --- ring -------------> TEXT --- complete --> HEAD        (shm of devices, once)
HEAD --- slot -------------> HEAD                              its bytes are in the ring
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from twolane.kvtransfer.page_lane import PageLane, ReceiverLane
from twolane.kvtransfer.transport import Checked
from twolane.kvtransfer.transports.common.frames import (
    HEAD_BYTES,
    Frame,
    FrameError,
    Hello,
    Pages,
    RingAt,
    Slot,
    pack_freed,
    unpack,
)
from twolane.kvtransfer.transports.common.key_proof import ReceiverHandshake
from twolane.kvtransfer.transports.stream.device_destination import SharedSink
from twolane.kvtransfer.transports.stream.records import EncryptedReader, PlainReader, Reader
from twolane.kvtransfer.transports.stream.sink import Claim, Destination

_READ_BYTES = 256 * 1024  # of one read: larger reads measured 30 % slower over tcp
_BUDGET_BYTES = 8 * 1024 * 1024  # read before another connection gets its turn
_SCRAP = memoryview(bytearray(1024 * 1024))


@dataclass(frozen=True, slots=True)
class LandingSite:
    """What all connections of a landing share. Used by the landing's thread only."""

    receiver_epoch: int
    destination: Destination
    take_orders: Callable[[], None]  # runs the grants and revokes that came until now
    lane: ReceiverLane


class StreamConnection:
    """Non-blocking. `read` raises FrameError or OSError when the connection must be closed."""

    def __init__(self, stream: socket.socket, site: LandingSite) -> None:
        self.stream = stream
        self._site = site
        self._destination = site.destination
        self._sink = site.destination.open_sink(self._free_slot)
        self._reader: Reader = PlainReader(stream)
        self._handshake: ReceiverHandshake | None = None  # until the sender has proved the key
        self._epoch = 0  # of the sender; 0 until its hello
        self._head = bytearray(HEAD_BYTES)
        self._head_filled = 0
        self._pages: Pages | None = None  # the frame whose body is being read
        self._views: list[memoryview] = []  # of the body, not filled yet from `_at` on
        self._at = 0
        self._taken = 0  # bytes of the body that were read
        self._scrap_left = 0
        self._ring: RingAt | None = None  # whose text is being read
        self._text = bytearray()

    @property
    def is_known(self) -> bool:
        """Its hello was for this receiver, and it proved the key where one is needed."""
        return self._epoch != 0 and self._handshake is None

    @property
    def is_waiting(self) -> bool:
        """There is no room for its bytes yet: read again when copies under way have ended."""
        return self._pages is not None and not self._views

    def read(self) -> tuple[bool, list[Checked]]:
        """Read until the socket is empty or the turn is over. Returns whether the connection is
        still up, and the checks that this answers."""
        news: list[Checked] = []
        budget = _BUDGET_BYTES
        while budget > 0 or self._reader.is_ahead:
            if self.is_waiting:
                self._find_room()
                if self.is_waiting:
                    break
            handshake = self._handshake
            try:
                n = self._read_some() if handshake is None else self._prove(handshake)
            except BlockingIOError:
                break
            if n == 0:
                return False, news
            budget -= n
            if handshake is None:
                self._advance(n, news)
        return True, news

    def stop(self, generation: int) -> None:
        """Write nothing more into the pages of that grant."""
        if self._pages is not None and self._pages.generation == generation:
            self._scrap_left = self._pages.payload_bytes - self._taken
            self._end_body()
            self._sink.stop()

    def leave(self) -> None:
        """Close the connection."""
        self._sink.leave()
        self.stream.close()

    def _read_some(self) -> int:
        if self._pages is not None:
            most = max(1, _READ_BYTES // self._destination.page_bytes)
            return self._reader.read_into(self._views[self._at : self._at + most])
        if self._scrap_left:
            return self._reader.read_into([_SCRAP[: self._scrap_left]])
        if self._ring is not None:
            text = self.stream.recv(self._ring.address_bytes - len(self._text))
            self._text += text
            return len(text)
        return self._reader.read_into([memoryview(self._head)[self._head_filled :]])

    def _prove(self, handshake: ReceiverHandshake) -> int:
        """One step of the handshake. 0: the sender hung up. Raises UnprovenError."""
        data = self.stream.recv(handshake.wanted)
        reply = handshake.take(data)
        if reply:
            self.stream.sendall(reply)  # 64 bytes into an empty buffer
        if handshake.is_done:
            self._handshake = None
            if self._site.lane.name is PageLane.ENCRYPTED:
                self._reader = EncryptedReader(self.stream, handshake.cipher_key)
        return len(data)

    def _advance(self, n: int, news: list[Checked]) -> None:
        if self._pages is not None:
            self._taken += n
            self._advance_body(n)
            if self._at == len(self._views):
                news += self._sink.filled()
                self._find_room()
        elif self._scrap_left:
            self._scrap_left -= n
        elif self._ring is not None:
            if len(self._text) == self._ring.address_bytes:
                self._map(self._ring)
        else:
            self._head_filled += n
            if self._head_filled == HEAD_BYTES:
                self._head_filled = 0
                self._begin(unpack(self._head))

    def _advance_body(self, n: int) -> None:
        while n:
            view = self._views[self._at]
            if n < len(view):
                self._views[self._at] = view[n:]
                return
            n -= len(view)
            self._at += 1

    def _find_room(self) -> None:
        """Get views for the rest of the body: none while there is no room; end it if it is full."""
        views = self._sink.views()
        if views is None:
            self._end_body()
        else:
            self._views, self._at = views, 0

    def _end_body(self) -> None:
        self._pages = None
        self._views = []

    def _begin(self, frame: Frame) -> None:
        if isinstance(frame, Hello):
            self._meet(frame)
        elif not self._epoch:
            raise FrameError("no hello")
        elif isinstance(frame, Pages):
            self._begin_pages(frame)
        elif not isinstance(self._sink, SharedSink):
            raise FrameError("a ring or a slot does not belong to this transport")
        elif isinstance(frame, RingAt):
            self._ring = frame
        else:
            self._take_slot(self._sink, frame)

    def _meet(self, hello: Hello) -> None:
        if self._epoch or not hello.sender_epoch:
            raise FrameError("a second hello, or one without an epoch")
        if hello.receiver_epoch != self._site.receiver_epoch:
            raise FrameError(f"meant for epoch {hello.receiver_epoch:x}")
        if hello.page_bytes != self._destination.page_bytes:
            raise FrameError(
                f"pages of {hello.page_bytes} bytes; here {self._destination.page_bytes}"
            )
        lane = self._site.lane
        if hello.lane is not lane.name:  # guard: page lane
            raise FrameError(f"page lane {hello.lane}; here {lane.name}")
        self._sink.meet(hello.digest)
        self._epoch = hello.sender_epoch
        if lane.name is not PageLane.PLAIN:
            self._handshake = ReceiverHandshake(lane.key_for(self._epoch), bytes(self._head))

    def _begin_pages(self, frame: Pages) -> None:
        if frame.payload_bytes != frame.n_pages * self._destination.page_bytes:
            raise FrameError(f"{frame.n_pages} pages in {frame.payload_bytes} bytes")
        claim = self._claim(frame.generation, frame.first, frame.n_pages)
        if claim is None:
            self._scrap_left = frame.payload_bytes
            return
        self._sink.begin(claim)
        self._pages = frame
        self._taken = 0
        self._find_room()

    def _claim(self, generation: int, first: int, n_pages: int) -> Claim | None:
        self._site.take_orders()
        ids = self._destination.table.claim(self._epoch, generation, first, n_pages)
        return None if ids is None else Claim(generation, first, ids)

    def _map(self, ring: RingAt) -> None:
        assert isinstance(self._sink, SharedSink)
        address = self._text.decode("ascii", errors="replace")
        self._sink.map_ring(address, ring.n_slots, ring.slot_pages)
        self._ring = None

    def _take_slot(self, sink: SharedSink, frame: Slot) -> None:
        sink.check_slot(frame.slot, frame.n_pages)
        sink.take_slot(self._claim(frame.generation, frame.first, frame.n_pages), frame.slot)

    def _free_slot(self, slot: int) -> None:
        """Four bytes each, and never more than the ring has slots: they fit into the buffer."""
        with suppress(OSError):  # the sender is gone: the next read finds that out
            self.stream.send(pack_freed(slot))
