"""Where a stream outlet's bytes come from: pages of host memory, or of a device by way of a ring.

device   pages --> slot --> slot --> slot          a few batches ahead of the wire
wire                        sendmsg --> ...
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

_FRAME_BYTES = 1024 * 1024  # of one frame from host memory: summed and sent from the cache


@dataclass(frozen=True, slots=True)
class Batch:
    """Some pages of a post, ready to go out. `slot` is `release`d when they have, or never will."""

    views: list[memoryview]
    n_pages: int
    sums: Checksums
    slot: int


class PageSource(Protocol):
    """Used by the outlet's thread alone."""

    page_bytes: int

    def read(self, plan: CopyPlan, may_wait: Callable[[], bool]) -> Generator[Batch, None, None]:
        """The plan's pages in order. `may_wait` is called while nothing is ready; False ends it."""
        ...

    def release(self, slot: int) -> None:
        """The bytes of the batch in that slot are not needed any more."""
        ...

    def settle(self) -> None:
        """No page is being read when this returns; what was read ahead is dropped."""
        ...

    def close(self) -> None: ...


class HostSource:
    """See `PageSource`: host memory as `source`, which is ours alone, hands it out. `digest` empty:
    no sums."""

    def __init__(self, source: Source, digest: str) -> None:
        self.page_bytes = source.page_bytes
        self._source = source
        self._sums = page_sums(digest) if digest else None

    def read(self, plan: CopyPlan, may_wait: Callable[[], bool]) -> Generator[Batch, None, None]:
        """A batch is over when the next is asked for: pages that are made may lie in one place."""
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
        """Nothing was taken."""

    def settle(self) -> None:
        """Views are read by the system call alone."""

    def close(self) -> None:
        """The pool is not ours."""


@dataclass(frozen=True, slots=True)
class _Read:
    """Pages on their way into a slot."""

    slot: int
    n_pages: int
    sums: Checksums
    fence: Fence


class DeviceSource:
    """See `PageSource`: through a ring of pinned slots. Raises OSError when there is no room."""

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
        """Does not listen to orders: a copy to the host takes well under a millisecond, and what
        waits for a mark waits for a step that is on its way."""
        while self._reads:
            with suppress(DeviceError):  # failed is over, which is what we wait for
                while not self._reads[0].fence.is_done():
                    pause()
            self.ring.free.append(self._reads.popleft().slot)

    def close(self) -> None:
        """Twice is fine."""
        if not self._is_closed:
            self._is_closed = True
            self._copy_stream.close()
            self.ring.close()

    def _begin(self, pages: PageIds) -> None:
        """Raises `DeviceError` when the device refuses; some of it may be under way nevertheless,
        and is waited for by `settle`."""
        slot, n = self.ring.free.popleft(), len(pages)
        sums = NO_SUMS
        try:
            if self._is_summing:
                sums = self._copy_stream.sum(pages)
            self._copy_stream.to_host(pages, self.ring.slots[slot][:n])
        finally:
            self._reads.append(_Read(slot, n, sums, self._copy_stream.mark()))
