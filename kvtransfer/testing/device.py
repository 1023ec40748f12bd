"""The shipped double of a device's memory: numpy pages, copied late by each copy stream's thread.

    memory = DoubleMemory(n_pages, page_bytes, faults=DeviceFaults(...))
    memory.pages                      what the "device" holds: for tests to fill and to look at

It behaves as a device does: copies are under way after the call that gave them, a fence is done
when they are, memory that was not pinned is refused, and another process maps the pool by what
`export` says. A mark is a threading.Event. A copy stream can be stalled, fail its copies, or be
slow, and peers can be refused.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np

from twolane.kvtransfer.copy_plan import PageIds
from twolane.kvtransfer.device import Bytes, DeviceError, Mark, PeerPool, Region, Sums, region_of
from twolane.kvtransfer.digests import mix64
from twolane.kvtransfer.layouts.sources import MadePages, MakeConvert, Source, WholePages
from twolane.kvtransfer.transports.common.shared_memory import create_pool_memory, map_peer_memory
from twolane.layout import Layout


@dataclass(slots=True)
class DeviceFaults:
    """Changed by a test at any time."""

    copy_s: float = 0.0  # of each page
    refuses_peers: bool = False
    fails: bool = False  # copies fail: the fence after them reports it
    corrupts: bool = False  # flips one bit of each copied page


class DoublePeer:
    """See `PeerPool`."""

    def __init__(self, pages: Bytes) -> None:
        self.pages = pages
        self.n_pages = len(pages)
        self.is_closed = False

    def close(self) -> None:
        self.is_closed = True


class DoubleMemory:
    """See `DeviceMemory`. Close it when it is no longer used."""

    kind = "double"

    def __init__(
        self,
        n_pages: int,
        page_bytes: int,
        *,
        faults: DeviceFaults | None = None,
        converts: Mapping[str, MakeConvert] | None = None,
    ) -> None:
        self.n_pages = n_pages
        self.page_bytes = page_bytes
        self.faults = faults or DeviceFaults()
        self.converts = converts or {}  # by the dtype that they make of this pool's
        self.copy_streams: list[DoubleCopyStream] = []
        self._memory = create_pool_memory(n_pages * page_bytes, "double")
        self.pages: Bytes = self._memory.array.reshape(n_pages, page_bytes)
        self._pinned: dict[int, int] = {}  # address -> bytes

    @property
    def regions(self) -> tuple[Region, ...]:
        """It is host memory."""
        return (region_of(self.pages),)

    def open_copy_stream(self, source: Source | None = None) -> DoubleCopyStream:
        stream = DoubleCopyStream(self, source)
        self.copy_streams.append(stream)
        return stream

    def enter(self) -> None:
        """It is host memory."""

    def makes_dtypes(self, dtype: str) -> tuple[str, ...]:
        return (dtype, *self.converts)

    def made(self, source: Layout, target: Layout) -> DoubleMade:
        return DoubleMade(self, source, target)

    def export(self) -> str:
        return self._memory.address

    def open_peer(self, address: str) -> DoublePeer:
        return self.open_pages(address, self.page_bytes)

    def open_pages(self, address: str, page_bytes: int) -> DoublePeer:
        if self.faults.refuses_peers:
            raise DeviceError("no peer access (a fault of the double)")
        try:
            return DoublePeer(map_peer_memory(address).reshape(-1, page_bytes))
        except (OSError, ValueError) as error:
            raise DeviceError(f"no pool at {address}: {error}") from error

    def pin(self, buffer: Bytes) -> None:
        self._pinned[buffer.ctypes.data] = buffer.nbytes

    def unpin(self, buffer: Bytes) -> None:
        del self._pinned[buffer.ctypes.data]

    @property
    def n_pinned(self) -> int:
        """How many buffers are pinned."""
        return len(self._pinned)

    def check_pinned(self, buffer: Bytes) -> None:
        at, end = buffer.ctypes.data, buffer.ctypes.data + buffer.nbytes
        for start, n_bytes in list(self._pinned.items()):
            if start <= at and end <= start + n_bytes:
                return
        raise DeviceError("this host memory is not pinned")

    def stall(self) -> None:
        """The device stops in the middle of a copy, until `resume`."""
        for stream in self.copy_streams:
            stream.may_run.clear()

    def resume(self) -> None:
        for stream in self.copy_streams:
            stream.may_run.set()

    def close(self) -> None:
        self._memory.close()


class DoubleMade:
    """See `SentMemory`: pages that each copy stream converts in a memory of its own."""

    def __init__(self, memory: DoubleMemory, source: Layout, target: Layout) -> None:
        make = None if target.dtype == source.dtype else memory.converts[target.dtype]
        self._memory = memory
        self._source = partial(MadePages, memory.pages, source, target, make)
        self.page_bytes = self._source().page_bytes

    def open_copy_stream(self) -> DoubleCopyStream:
        return self._memory.open_copy_stream(self._source())

    def open_peer(self, address: str) -> DoublePeer:
        return self._memory.open_pages(address, self.page_bytes)

    def pin(self, buffer: Bytes) -> None:
        self._memory.pin(buffer)

    def unpin(self, buffer: Bytes) -> None:
        self._memory.unpin(buffer)


class DoubleFence:
    """See `Fence`."""

    def __init__(self) -> None:
        self.done = threading.Event()
        self.error = ""

    def is_done(self) -> bool:
        if not self.done.is_set():
            return False
        if self.error:
            raise DeviceError(self.error)
        return True


class DoubleCopyStream:
    """See `CopyStream`."""

    def __init__(self, memory: DoubleMemory, source: Source | None = None) -> None:
        self._memory = memory
        self._source: Source = source or WholePages(memory.pages)
        self._taken: tuple[Bytes, PageIds] = (memory.pages, np.empty(0, dtype=np.int64))
        self._work: deque[Callable[[], None]] = deque()
        self._bell = threading.Semaphore(0)
        self._is_closed = False
        self._error = ""
        self.may_run = threading.Event()
        self.may_run.set()
        self._thread = threading.Thread(target=self._run, name="double-copy-stream", daemon=True)
        self._thread.start()

    def after(self, mark: Mark) -> None:
        assert isinstance(mark, threading.Event)
        self._give(partial(_wait_for, mark))

    def to_peer(self, peer: PeerPool, src: PageIds, dst: PageIds) -> None:
        assert isinstance(peer, DoublePeer)
        self._copy(src, peer.pages, dst)

    def to_host(self, pages: PageIds, buffer: Bytes) -> None:
        self._memory.check_pinned(buffer)
        self._copy(pages, buffer, np.arange(len(buffer)))

    def from_host(self, buffer: Bytes, pages: PageIds) -> None:
        self._memory.check_pinned(buffer)
        assert isinstance(self._source, WholePages), "pages that are made are nobody's to write"
        for i, page in enumerate(pages.tolist()):
            self._give(partial(self._copy_page, buffer, i, self._memory.pages, page))

    def sum(self, pages: PageIds) -> Sums:
        sums = np.zeros(len(pages), dtype=np.uint64)

        def work(span: slice) -> None:
            sums[span] = mix64(*self._taken)

        for span in self._taking(pages):
            self._give(partial(work, span))
        return sums

    def mark(self) -> DoubleFence:
        fence = DoubleFence()

        def work() -> None:
            fence.error = self._error
            fence.done.set()

        self._give(work)
        return fence

    def forgive(self) -> None:
        """Later fences no longer report the errors so far."""
        self._error = ""

    def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._bell.release()
            self._thread.join()

    # -- inside -----------------------------------------------------------------------------

    def _taking(self, src: PageIds) -> Iterator[slice]:
        """Which of them are taken next: what is given before the next follows at once."""
        most = self._source.batch_pages
        for at in range(0, len(src), most):
            span = slice(at, min(len(src), at + most))
            self._give(partial(self._take, src[span]))
            yield span

    def _take(self, src: PageIds) -> None:
        self._taken = self._source.take(src)

    def _copy(self, src: PageIds, target: Bytes, dst: PageIds) -> None:
        for span in self._taking(src):
            for i, page in enumerate(dst[span].tolist()):
                self._give(partial(self._copy_taken, i, target, page))

    def _copy_taken(self, nth: int, target: Bytes, at: int) -> None:
        memory, pages = self._taken
        self._copy_page(memory, int(pages[nth]), target, at)

    def _copy_page(self, source: Bytes, page: int, target: Bytes, at: int) -> None:
        faults = self._memory.faults
        if faults.fails:
            self._error = "a copy failed (a fault of the double)"
            return
        half = source.shape[1] // 2
        target[at, :half] = source[page, :half]
        if faults.copy_s:
            time.sleep(faults.copy_s)
        target[at, half:] = source[page, half:]
        if faults.corrupts:
            target[at, 0] ^= 1

    def _give(self, work: Callable[[], None]) -> None:
        assert not self._is_closed, "a closed copy stream"
        self._work.append(work)
        self._bell.release()

    def _run(self) -> None:
        while True:
            self._bell.acquire()
            self.may_run.wait()
            if not self._work:  # closed, and all is done
                return
            self._work.popleft()()


def _wait_for(mark: threading.Event) -> None:
    mark.wait()
