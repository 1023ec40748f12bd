"""Sender's end of the shm transport between pools of devices: slots that both sides map.

    device --> slot of our ring --- its number over a unix socket ---> receiver --> its device
                  '<---------------- its number, when it is free ----------'

No CPU copies a byte. A post is complete when its pages are in slots: they are no longer read. After
a connection breaks, the receiver may still read its slots, so a new connection gets a new ring.
"""

from __future__ import annotations

import socket
from contextlib import suppress

from twolane.kvtransfer.device import SentMemory
from twolane.kvtransfer.transport import Checksums
from twolane.kvtransfer.transports.common.frames import (
    FREED_BYTES,
    MAX_SLOTS,
    RingAt,
    Slot,
    unpack_freed,
)
from twolane.kvtransfer.transports.common.outlet_thread import Job
from twolane.kvtransfer.transports.common.pinned_ring import SHARED_SLOT_BYTES
from twolane.kvtransfer.transports.stream.outlet import StreamOutlet
from twolane.kvtransfer.transports.stream.records import Writer
from twolane.kvtransfer.transports.stream.source import Batch, DeviceSource


class SharedOutlet(StreamOutlet):
    """See `Outlet`. Raises OSError when no memory can be pinned."""

    def __init__(
        self,
        address: str,
        sender_epoch: int,
        receiver_epoch: int,
        memory: SentMemory,
        *,
        digest: str,
    ) -> None:
        self._memory = memory
        self._digest = digest
        self._lent: set[int] = set()  # slots that the receiver may read
        self._answer = bytearray()  # bytes of a slot's number that came so far
        self._is_stale = False  # the ring belongs to a closed connection
        super().__init__(
            "unix", address, sender_epoch, receiver_epoch, self._new_source(), digest=digest
        )

    # -- on the thread ----------------------------------------------------------------------

    def _send(self, job: Job) -> Checksums | None:
        if self._stream is None:
            self._stream, self._writer = self._connect()
        return super()._send(job)

    def _send_batch(self, job: Job, at: int, batch: Batch) -> None:
        self._lent.add(batch.slot)
        frame = Slot(job.generation, batch.slot, at, batch.n_pages)
        self._send_frame([memoryview(frame.pack())])
        self._take_freed()

    def _may_wait(self) -> bool:
        self._take_freed()
        return super()._may_wait()

    def _connect(self) -> tuple[socket.socket, Writer]:
        if self._is_stale:
            self._source = self._new_source()
            self._is_stale = False
        stream, writer = super()._connect()
        assert isinstance(self._source, DeviceSource)
        ring = self._source.ring
        text = ring.address.encode()
        head = RingAt(len(ring.slots), len(text), ring.pages).pack()
        stream.sendall(head + text)  # some 100 bytes into an empty buffer
        return stream, writer

    def _hang_up(self) -> None:
        super()._hang_up()
        self._answer.clear()
        if self._lent:
            self._source.settle()
            self._source.close()
            self._lent.clear()
            self._is_stale = True

    def _take_freed(self) -> None:
        """Take back slots that the receiver has freed. Raises OSError when it hung up."""
        assert self._stream is not None
        with suppress(BlockingIOError):
            raw = self._stream.recv(FREED_BYTES * MAX_SLOTS)
            if not raw:
                raise ConnectionResetError("the receiver hung up")
            self._answer += raw
        while len(self._answer) >= FREED_BYTES:
            slot = unpack_freed(self._answer[:FREED_BYTES])
            del self._answer[:FREED_BYTES]
            if slot not in self._lent:
                raise ConnectionAbortedError(f"slot {slot} was not lent")
            self._lent.remove(slot)
            self._source.release(slot)

    def _new_source(self) -> DeviceSource:
        return DeviceSource(self._memory, self._digest, slot_bytes=SHARED_SLOT_BYTES)
