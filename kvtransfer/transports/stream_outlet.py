"""Sender's end of the tcp and unix transports: a thread a receiver, pages gathered by sendmsg.

A post is complete when the kernel has all its bytes: the pages are not read any more, though the
receiver may not have them yet. A cancelled post is completed with scrap bytes instead of pages, so
that neither a slow receiver nor a stopped one keeps a page.
"""

from __future__ import annotations

import errno
import socket

import numpy as np

from kvtransfer.checksum import page_checksums
from kvtransfer.plan import runs
from kvtransfer.sources import Source
from kvtransfer.transports.addresses import socket_to
from kvtransfer.transports.base import Checksums
from kvtransfer.transports.frames import Hello, Pages
from kvtransfer.transports.outlet_thread import NO_SUMS, Job, OutletThread

_MOST_VIEWS = 256  # of one sendmsg
_FRAME_BYTES = 1024 * 1024  # of one frame: small enough to be summed and sent from the cache
_SCRAP = memoryview(bytes(1024 * 1024))


class StreamOutlet(OutletThread):
    """See `Outlet`. Connects when there is something to send, and again after a break."""

    def __init__(
        self,
        transport: str,
        address: str,
        sender_epoch: int,
        receiver_epoch: int,
        source: Source,
        *,
        checksums: bool,
    ) -> None:
        super().__init__()
        self._transport = transport
        self._address = address
        self._source = source
        self._checksums = checksums
        self._hello = Hello(sender_epoch, receiver_epoch, source.page_bytes)
        self._stream: socket.socket | None = None
        self._start()

    # -- on the thread ----------------------------------------------------------------------

    def _carry_out(self, job: Job) -> Checksums | None:
        try:
            return self._send(job)
        except OSError:  # what the kernel had may be lost: the receiver's timeout sees to it
            self._hang_up()
            return None

    def _call_back(self) -> None:
        self._complete(None)  # what is left goes out as scrap

    def _leave(self) -> None:
        self._hang_up()
        super()._leave()

    def _send(self, job: Job) -> Checksums:
        size, plan = self._hello.page_bytes, job.plan
        per_frame = min(max(1, _FRAME_BYTES // size), self._source.batch_pages)
        sums: list[Checksums] = []
        for at in range(0, plan.n_pages, per_frame):
            self._mailbox.take_orders()
            if self._current is None:
                break
            pool, src = self._source.take(plan.src[at : at + per_frame])
            n = int(src.size)
            if self._checksums:
                sums.append(page_checksums(pool, src))
            frame = Pages(job.generation, n * size, plan.first + at, n)
            flat, ids = pool.data.cast("B"), src.tolist()
            views = [flat[ids[a] * size : (ids[a] + b - a) * size] for a, b in runs(src)]
            self._send_frame([memoryview(frame.pack()), *views])
        return np.concatenate(sums) if sums else NO_SUMS

    def _send_frame(self, views: list[memoryview]) -> None:
        """All of it. Once the job is cancelled, what is left goes out as scrap."""
        stream = self._stream or self._connect()
        at = 0
        is_scrap = False
        while at < len(views):
            if self._current is None and not is_scrap:
                at, views, is_scrap = 0, _scrap(sum(len(view) for view in views[at:])), True
            try:
                sent = stream.sendmsg(views[at : at + _MOST_VIEWS])
            except BlockingIOError:
                self._wait_open(stream)
                continue
            while sent:
                if sent < len(views[at]):
                    views[at] = views[at][sent:]
                    break
                sent -= len(views[at])
                at += 1

    def _connect(self) -> socket.socket:
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
            stream.sendall(self._hello.pack())  # 32 bytes into an empty buffer
        except OSError:
            stream.close()
            raise
        self._stream = stream
        return stream

    def _wait_open(self, stream: socket.socket) -> bool:
        """`_wait`; raises when we are closed meanwhile."""
        is_ready = self._wait(stream)
        if self._is_closing:
            raise ConnectionAbortedError("closed")
        return is_ready

    def _hang_up(self) -> None:
        if self._stream is not None:
            self._stream.close()
            self._stream = None


def _scrap(n_bytes: int) -> list[memoryview]:
    whole, rest = divmod(n_bytes, len(_SCRAP))
    return [_SCRAP] * whole + ([_SCRAP[:rest]] if rest else [])
