"""Sender's end of the tcp and unix transports: a thread a receiver, pages gathered by sendmsg.

A post is complete when the kernel has all its bytes: the pages are not read any more, though the
receiver may not have them yet. A cancelled post is completed with scrap bytes instead of pages, so
that neither a slow receiver nor a stopped one keeps a page.
"""

from __future__ import annotations

import errno
import select
import socket
import threading
from collections import deque
from dataclasses import dataclass

import numpy as np

from kvtransfer.checksum import Pool, page_checksums
from kvtransfer.plan import CopyPlan, runs
from kvtransfer.transports.addresses import socket_to
from kvtransfer.transports.base import Checksums, Posted, Wake
from kvtransfer.transports.frames import Hello, Pages
from kvtransfer.transports.mailbox import Mailbox

_MOST_VIEWS = 256  # of one sendmsg
_FRAME_BYTES = 1024 * 1024  # of one frame: small enough to be summed and sent from the cache
_SCRAP = memoryview(bytes(1024 * 1024))
_NO_SUMS: Checksums = np.empty(0, dtype=np.uint64)


@dataclass(frozen=True, slots=True)
class _Job:
    post: int
    generation: int
    plan: CopyPlan


class StreamOutlet:
    """See `Outlet`. Connects when there is something to send, and again after a break."""

    def __init__(
        self,
        transport: str,
        address: str,
        sender_epoch: int,
        receiver_epoch: int,
        pool: Pool,
        *,
        checksums: bool,
    ) -> None:
        self._transport = transport
        self._address = address
        self._pool = pool
        self._flat = pool.data.cast("B")
        self._checksums = checksums
        self._hello = Hello(sender_epoch, receiver_epoch, pool.shape[1])
        self._mailbox: Mailbox[Posted] = Mailbox()
        self._jobs: deque[_Job] = deque()
        self._current: _Job | None = None  # None too when it was completed before it was sent
        self._is_closing = False
        self._stream: socket.socket | None = None
        self._thread = threading.Thread(target=self._run, name="outlet", daemon=True)
        self._thread.start()

    def post(self, post: int, generation: int, plan: CopyPlan) -> None:
        if self._thread.is_alive():
            self._mailbox.order(self._jobs.append, _Job(post, generation, plan))
        else:
            self._mailbox.tell(Posted(post, False, _NO_SUMS))

    def cancel(self, generation: int) -> None:
        if self._thread.is_alive():
            self._mailbox.order(self._cancel, generation)

    def poll(self) -> list[Posted]:
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
        while not self._is_closing:
            if not self._jobs:
                self._wait(None)
                continue
            self._current = job = self._jobs.popleft()
            try:
                sums = self._send(job)
            except OSError:  # what the kernel had may be lost: the receiver's timeout sees to it
                self._hang_up()
                self._complete(ok=False)
            else:
                self._complete(ok=True, sums=sums)
        self._hang_up()
        self._mailbox.take_orders()
        self._mailbox.tell(*(Posted(job.post, False, _NO_SUMS) for job in self._jobs))

    def _complete(self, *, ok: bool, sums: Checksums = _NO_SUMS) -> None:
        """The current job's pages are not read any more. Only the first call of a job counts."""
        if self._current is not None:
            self._mailbox.tell(Posted(self._current.post, ok, sums))
            self._current = None

    def _send(self, job: _Job) -> Checksums:
        size, plan = self._hello.page_bytes, job.plan
        per_frame = max(1, _FRAME_BYTES // size)
        sums: list[Checksums] = []
        for at in range(0, plan.n_pages, per_frame):
            self._mailbox.take_orders()
            if self._current is None:
                break
            source = plan.src[at : at + per_frame]
            n = int(source.size)
            if self._checksums:
                sums.append(page_checksums(self._pool, source))
            frame = Pages(job.generation, n * size, plan.first + at, n)
            ids = source.tolist()
            views = [self._flat[ids[a] * size : (ids[a] + b - a) * size] for a, b in runs(source)]
            self._send_frame([memoryview(frame.pack()), *views])
        return np.concatenate(sums) if sums else _NO_SUMS

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
                self._wait(stream)
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
                self._wait(stream)
                error = stream.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if error:
                raise OSError(error, f"no connection to {self._address}")
            stream.sendall(self._hello.pack())  # 32 bytes into an empty buffer
        except OSError:
            stream.close()
            raise
        self._stream = stream
        return stream

    def _wait(self, stream: socket.socket | None) -> None:
        """For orders, or until the stream takes bytes. Raises when we are closed meanwhile."""
        poller = select.poll()  # not select(): file descriptors may be above 1,023
        poller.register(self._mailbox.bell, select.POLLIN)
        if stream is not None:
            poller.register(stream, select.POLLOUT)
        if any(fd == self._mailbox.bell.fileno() for fd, _ in poller.poll()):
            self._mailbox.quiet()
            self._mailbox.take_orders()
        if self._is_closing and stream is not None:
            raise ConnectionAbortedError("closed")

    def _cancel(self, generation: int) -> None:
        for job in [job for job in self._jobs if job.generation == generation]:
            self._jobs.remove(job)
            self._mailbox.tell(Posted(job.post, False, _NO_SUMS))
        if self._current is not None and self._current.generation == generation:
            self._complete(ok=False)

    def _hang_up(self) -> None:
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    def _end(self) -> None:
        self._is_closing = True


def _scrap(n_bytes: int) -> list[memoryview]:
    whole, rest = divmod(n_bytes, len(_SCRAP))
    return [_SCRAP] * whole + ([_SCRAP[:rest]] if rest else [])
