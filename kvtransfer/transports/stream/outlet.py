"""Sender's end of the tcp and unix transports: one thread a connection, pages sent by sendmsg.

A post is complete when its pages are no longer read: the kernel, or an encrypted record, has
all its bytes, though the receiver may not have them yet. When a post is cancelled, the rest of its
frame is filled with zero bytes instead of pages, so that a slow or stopped receiver pins no page.
Pages of a device pass through a ring of host memory, a few batches ahead of the socket
(`twolane.kvtransfer.transports.stream.source`). A connection begins with the handshake of its page
lane, unless that is plain.
"""

from __future__ import annotations

import errno
import logging
import select
import socket
import time
from contextlib import closing

import numpy as np

from twolane.kvtransfer.page_lane import PLAIN_SENDER, PageLane, PageLaneError, SenderLane
from twolane.kvtransfer.transport import Checksums
from twolane.kvtransfer.transports.common.addresses import socket_to
from twolane.kvtransfer.transports.common.frames import Hello, Pages
from twolane.kvtransfer.transports.common.key_proof import SenderHandshake
from twolane.kvtransfer.transports.common.outlet_thread import NO_SUMS, Job, OutletThread
from twolane.kvtransfer.transports.common.tcp_silence import drop, is_mute
from twolane.kvtransfer.transports.stream.records import (
    MOST_VIEWS,
    EncryptedWriter,
    PlainWriter,
    Writer,
)
from twolane.kvtransfer.transports.stream.source import Batch, PageSource

_log = logging.getLogger(__name__)

_LOOK_S = 1.0  # between two looks at a connection that takes nothing
HANDSHAKE_S = 5.0  # the receiver has so long to prove the key
_SCRAP = memoryview(bytes(1024 * 1024))


class StreamOutlet(OutletThread):
    """See `Outlet`. Connects when there is something to send, and reconnects after a break, or when
    the connection has gone mute: a page is not sent behind others that do not get through."""

    def __init__(
        self,
        transport: str,
        address: str,
        sender_epoch: int,
        receiver_epoch: int,
        source: PageSource,
        *,
        digest: str,
        lane: SenderLane = PLAIN_SENDER,
        handshake_s: float = HANDSHAKE_S,
    ) -> None:
        super().__init__()
        self._transport = transport
        self._address = address
        self._source = source  # owned from here on
        self._hello = Hello(sender_epoch, receiver_epoch, source.page_bytes, digest, lane.name)
        self._lane = lane
        self._handshake_s = handshake_s
        self._stream: socket.socket | None = None  # connected; `_writer` writes to it
        self._writer: Writer | None = None
        self._last_refusal = ""  # of the page lane's handshake, as it was logged
        self._start()

    # -- on the thread ----------------------------------------------------------------------

    def _carry_out(self, job: Job) -> Checksums | None:
        try:
            return self._send(job)
        except PageLaneError as error:
            if str(error) != self._last_refusal:  # log it once, not at each post
                _log.warning("no pages to %s: %s", self._address, error)
            self._last_refusal = str(error)
            return None
        except OSError:  # what was sent may be lost: then the receiver's timeout ends it
            self._hang_up()
            return None
        finally:
            self._source.settle()

    def _call_back(self) -> None:
        self._source.settle()  # guard: pages read ahead
        self._complete(None)  # the rest of its frame is filled with zeros

    def _leave(self) -> None:
        self._hang_up()
        self._source.close()
        super()._leave()

    def _send(self, job: Job) -> Checksums | None:
        """Checksums of all pages; None if it was cancelled, or the outlet closed, before that."""
        sums: list[Checksums] = []
        at = job.plan.first
        with closing(self._source.read(job.plan, self._may_wait)) as batches:
            for batch in batches:
                self._mailbox.take_orders()
                if self._current is None:
                    self._source.release(batch.slot)
                    break
                sums.append(batch.sums)
                self._send_batch(job, at, batch)
                at += batch.n_pages
        if at < job.plan.first + job.plan.n_pages:
            return None
        return np.concatenate(sums) if sums else NO_SUMS

    def _send_batch(self, job: Job, at: int, batch: Batch) -> None:
        try:
            n_bytes = batch.n_pages * self._hello.page_bytes
            frame = Pages(job.generation, n_bytes, at, batch.n_pages)
            self._send_frame([memoryview(frame.pack()), *batch.views])
        finally:
            self._source.release(batch.slot)

    def _may_wait(self) -> bool:
        """No batch is ready yet: pause. False if the job is over: read no more."""
        self._nap()
        return self._current is not None and not self._is_closing

    def _send_frame(self, views: list[memoryview]) -> None:
        """Send the whole frame. Once the job is cancelled, the rest is filled with zeros."""
        if self._stream is not None and is_mute(self._stream):
            self._hang_up()
        if self._stream is None or self._writer is None:
            self._stream, self._writer = self._connect()
        stream, writer = self._stream, self._writer
        at = 0
        is_scrap = False
        while at < len(views) or writer.is_behind:
            if self._current is None and not is_scrap:
                # The receiver expects as many bytes as the frame's head says.
                head = views[:1] if at == 0 else []
                rest = sum(len(view) for view in views[at + len(head) :])
                at, views, is_scrap = 0, [*head, *_scrap(rest)], True
            try:
                sent = writer.write(views[at : at + MOST_VIEWS])
            except BlockingIOError:
                if not self._wait_open(stream, timeout_s=_LOOK_S) and is_mute(stream):
                    raise ConnectionResetError("the receiver's host does not answer") from None
                continue
            self.n_moved += sent
            while sent:
                if sent < len(views[at]):
                    views[at] = views[at][sent:]
                    break
                sent -= len(views[at])
                at += 1

    def _connect(self) -> tuple[socket.socket, Writer]:
        stream, target = socket_to(self._transport, self._address)
        try:
            error = stream.connect_ex(target)  # type: ignore[arg-type]  # str or tuple, by family
            if error == errno.EINPROGRESS:
                while not self._wait_open(stream):
                    if self._current is None:
                        raise ConnectionAbortedError("cancelled")
                error = stream.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if error:
                raise OSError(error, f"no connection to {self._address}")
            return stream, self._greet(stream)
        except OSError:
            stream.close()
            raise

    def _greet(self, stream: socket.socket) -> Writer:
        """Says hello and proves the key, where there is one. Raises `PageLaneError`."""
        hello = self._hello.pack()
        if self._lane.name is PageLane.PLAIN:
            stream.sendall(hello)  # 32 bytes into an empty buffer
            return PlainWriter(stream)
        handshake = SenderHandshake(self._lane.key, hello)
        stream.sendall(handshake.first)
        stream.sendall(handshake.finish(self._receive(stream, SenderHandshake.REPLY_BYTES)))
        if self._lane.name is PageLane.KEYED:
            return PlainWriter(stream)
        return EncryptedWriter(stream, handshake.cipher_key)

    def _receive(self, stream: socket.socket, n_bytes: int) -> bytes:
        """That many bytes of the receiver's handshake. Raises `PageLaneError` when they do not
        come in time or the receiver hangs up, ConnectionAbortedError when the job is cancelled."""
        taken = bytearray()
        until = time.monotonic() + self._handshake_s
        while len(taken) < n_bytes:
            left_s = until - time.monotonic()
            if left_s <= 0:
                raise PageLaneError(f"the receiver proved no key within {self._handshake_s:g} s")
            if not self._wait_open(stream, select.POLLIN, left_s):
                if self._current is None:
                    raise ConnectionAbortedError("cancelled")
                continue
            data = stream.recv(n_bytes - len(taken))
            if not data:
                raise PageLaneError("the receiver hung up before it proved the key")
            taken += data
        return bytes(taken)

    def _wait_open(
        self,
        stream: socket.socket,
        events: int = select.POLLOUT,
        timeout_s: float | None = None,
    ) -> bool:
        """`_wait_for`; raises ConnectionAbortedError when the outlet is closed meanwhile."""
        is_ready = self._wait_for(stream, events, timeout_s)
        if self._is_closing:
            raise ConnectionAbortedError("closed")
        return is_ready

    def _hang_up(self) -> None:
        if self._stream is not None:
            drop(self._stream) if is_mute(self._stream) else self._stream.close()
            self._stream = self._writer = None


def _scrap(n_bytes: int) -> list[memoryview]:
    whole, rest = divmod(n_bytes, len(_SCRAP))
    return [_SCRAP] * whole + ([_SCRAP[:rest]] if rest else [])
