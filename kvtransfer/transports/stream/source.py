"""Where a stream outlet reads pages: from host memory, or from a device through a ring of slots.

device   pages --> slot --> slot --> slot          a few batches ahead of the socket
socket                      sendmsg --> ...
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from twolane.kvtransfer.copy_plan import CopyPlan, PageIds, runs
from twolane.kvtransfer.device import DeviceError, Fence, SentMemory
from twolane.kvtransfer.digests import page_sums
from twolane.kvtransfer.layouts.sources import Source
from twolane.kvtransfer.transport import Checksums
from twolane.kvtransfer.transports.common.outlet_thread import NO_SUMS
from twolane.kvtransfer.transports.common.pinned_ring import (
    N_SLOTS,
    STREAM_SLOT_BYTES,
    Ring,
    slot_pages,
)
from twolane.kvtransfer.transports.common.thread import pause

_FRAME_BYTES = (
    1024 * 1024
)  # of one frame from host memory: it stays in the cache between checksum and send


@dataclass(frozen=True, slots=True)
class Batch:
    """Some pages of a post, ready to send. The user `release`s `slot` once they are sent or
    dropped."""

    views: list[memoryview]
    n_pages: int
    sums: Checksums
    slot: int


class PageSource(Protocol):
    """Used by the outlet's thread only."""

    page_bytes: int

    def read(self, plan: CopyPlan, may_wait: Callable[[], bool]) -> Generator[Batch, None, None]:
        """The plan's pages in order. Calls `may_wait` while no batch is ready; ends if that returns
        False."""
        ...

    def release(self, slot: int) -> None:
        """The batch in that slot is no longer needed."""
        ...

    def settle(self) -> None:
        """Drop what was read ahead. No page is being read when this returns."""
        ...

    def close(self) -> None: ...


class HostSource:
    """See `PageSource`: pages of host memory by way of `source`, which it owns. No checksums where
    `digest` is empty."""

    def __init__(self, source: Source, digest: str) -> None:
        self.page_bytes = source.page_bytes
        self._source = source
        self._sums = page_sums(digest) if digest else None

    def read(self, plan: CopyPlan, may_wait: Callable[[], bool]) -> Generator[Batch, None, None]:
        """A batch is valid until the next is asked for: converted pages may share one buffer."""
        assert plan.after is None, "no device computes pages of host memory"
        pages = plan.src
        size = self.page_bytes
        per_frame = min(max(1, _FRAME_BYTES // size), self._source.batch_pages)
        for at in range(0, len(pages), per_frame):
            pool, part = self._source.take(pages[at : at + per_frame])
            flat, ids = pool.data.cast("B"), part.tolist()
            views = [flat[ids[a] * size : (ids[a] + b - a) * size] for a, b in runs(part)]
            sums = self._sums(pool, part) if self._sums is not None else NO_SUMS
            yield Batch(views, len(ids), sums, -1)

    def release(self, slot: int) -> None:
        """There are no slots."""

    def settle(self) -> None:
        """Only the system call reads the views."""

    def close(self) -> None:
        """Owns no pool."""


@dataclass(frozen=True, slots=True)
class _Read:
    """A copy of pages into a slot."""

    slot: int
    n_pages: int
    sums: Checksums
    fence: Fence


class DeviceSource:
    """See `PageSource`: pages of a device, through a ring of pinned slots. Raises OSError when no
    memory can be pinned."""

    def __init__(
        self,
        memory: SentMemory,
        digest: str,
        *,
        slot_bytes: int = STREAM_SLOT_BYTES,
        n_slots: int = N_SLOTS,
    ) -> None:
        assert digest in ("", "mix64"), digest
        self.page_bytes = memory.page_bytes
        self.ring = Ring(memory, slot_pages(memory.page_bytes, slot_bytes), n_slots)
        self._is_summing = bool(digest)
        try:
            self._copy_stream = memory.open_copy_stream()
        except OSError:
            self.ring.close()
            raise
        self._reads: deque[_Read] = deque()
        self._is_closed = False

    def read(self, plan: CopyPlan, may_wait: Callable[[], bool]) -> Generator[Batch, None, None]:
        assert not self._reads, "one post at a time"
        ring, pages = self.ring, plan.src
        if plan.after is not None:
            self._copy_stream.after(plan.after)  # guard: mark
        parts = deque(pages[at : at + ring.pages] for at in range(0, len(pages), ring.pages))
        while parts or self._reads:
            while parts and ring.free:
                self._begin(parts.popleft())
            if not self._reads or not self._reads[0].fence.is_done():
                if not may_wait():
                    return
                continue
            done = self._reads.popleft()
            view = ring.slots[done.slot][: done.n_pages].data.cast("B")
            yield Batch([view], done.n_pages, done.sums, done.slot)

    def release(self, slot: int) -> None:
        self.ring.free.append(slot)

    def settle(self) -> None:
        """Runs no orders meanwhile: a copy to the host takes well under a millisecond, and one that
        waits for an event waits for a step that is running."""
        while self._reads:
            with suppress(DeviceError):  # a copy that failed has ended, too
                while not self._reads[0].fence.is_done():
                    pause()
            self.ring.free.append(self._reads.popleft().slot)

    def close(self) -> None:
        """May be called twice."""
        if not self._is_closed:
            self._is_closed = True
            self._copy_stream.close()
            self.ring.close()

    def _begin(self, pages: PageIds) -> None:
        """Raises `DeviceError` when the device refuses. A part may be under way nevertheless;
        `settle` waits for it."""
        slot, n = self.ring.free.popleft(), len(pages)
        sums = NO_SUMS
        try:
            if self._is_summing:
                sums = self._copy_stream.sum(pages)
            self._copy_stream.to_host(pages, self.ring.slots[slot][:n])
        finally:
            self._reads.append(_Read(slot, n, sums, self._copy_stream.mark()))
