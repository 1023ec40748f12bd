"""What KV transfers need of a pool in the memory of a device. Knows no CUDA.

    memory = ...                        a DeviceMemory: `twolane.worker.cuda.memory` on a GPU, and
                                        the shipped double, `twolane.kvtransfer.testing.device`
    memory.made(ours, theirs)           its pages as pages of another layout, for a sender
    copies = memory.open_copy_stream()  copies in order; no other stream waits for it
    copies.to_host(pages, buffer)       returns at once
    fence = copies.mark()               an event: done when all before it is

A page of several ranks is the concatenation of their pages, in the order of ranks; the memory knows
where each is, on our side and on a peer's.

Users of a copy stream poll its fences. No other stream waits for one, so that a stuck peer delays
only its own copies and no step of an engine.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from twolane.kvtransfer.copy_plan import PageIds
from twolane.kvtransfer.digests import Pool
from twolane.layout import Layout

Bytes = npt.NDArray[np.uint8]
Sums = npt.NDArray[np.uint64]


Mark = object  # a device event that copies can wait for (an engine's `Step.written`)


@dataclass(frozen=True, slots=True)
class Region:
    """A stretch of this process's memory. The regions of one pool have one size; page p is the
    concatenation of the p-th part of each."""

    address: int
    n_bytes: int
    device: int | None = None  # ordinal of the GPU that it is on; None: host memory


def region_of(pool: Pool) -> Region:
    """The region of a pool in host memory, which must outlive it."""
    assert pool.flags.c_contiguous
    return Region(pool.ctypes.data, pool.nbytes)


class DeviceError(OSError):
    """A device refused a mapping or a copy, or a copy failed; the message names it."""


class Fence(Protocol):
    def is_done(self) -> bool:
        """True when all copies before it have ended: none of them reads or writes any more. Also
        true of copies that failed, for which this raises `DeviceError`."""
        ...


class PeerPool(Protocol):
    """Another worker's pool, mapped for writing."""

    @property
    def n_pages(self) -> int: ...

    def close(self) -> None:
        """Unmap it. Close the copy streams that write to it before. Raises `DeviceError`. May be
        repeated."""
        ...


class CopyStream(Protocol):
    """Copies of one thread, carried out in order. On a sound device only `close` waits.

    Converted pages are named by their source pages, as in `CopyPlan.src`; these do not change
    between a call and the `mark` after it.
    """

    def after(self, mark: Mark) -> None:
        """Later copies begin when the device has passed this event. Raises `DeviceError`."""
        ...

    def to_peer(self, peer: PeerPool, src: PageIds, dst: PageIds) -> None:
        """Copy our pages to the peer's. Raises `DeviceError`."""
        ...

    def to_host(self, pages: PageIds, buffer: Bytes) -> None:
        """Copy pages into pinned memory `[n, page_bytes]`. Raises `DeviceError`."""
        ...

    def from_host(self, buffer: Bytes, pages: PageIds) -> None:
        """Copy pinned memory `[n, page_bytes]` into pages; not for converted ones. Raises
        `DeviceError`."""
        ...

    def sum(self, pages: PageIds) -> Sums:
        """The mix64 checksum of each page at that time; filled once a later fence is done. Raises
        `DeviceError`."""
        ...

    def mark(self) -> Fence:
        """An event after all copies so far. Never raises: if the device cannot record one, this
        waits, and the fence reports the error."""
        ...

    def close(self) -> None:
        """Wait for all copies. Never raises. May be repeated."""
        ...


class SentMemory(Protocol):
    """Pages that outlets read. Any thread may call; each copy stream belongs to one thread."""

    page_bytes: int  # of all ranks

    def open_copy_stream(self) -> CopyStream:
        """Raises `DeviceError`."""
        ...

    def open_peer(self, address: str) -> PeerPool:
        """The pool of that `export`, this process's own included, whose pages are as large. Raises
        `DeviceError`."""
        ...

    def pin(self, buffer: Bytes) -> None:
        """From now on copy streams may use this host memory. Raises `DeviceError`."""
        ...

    def unpin(self, buffer: Bytes) -> None:
        """Call when no copy stream uses it any more. Raises `DeviceError`."""
        ...


class DeviceMemory(SentMemory, Protocol):
    """The pages of one pool, sent and received."""

    kind: str  # of device: pools of one kind may be able to map each other
    n_pages: int

    @property
    def regions(self) -> tuple[Region, ...]:
        """All of the pool, for network cards that reach it."""
        ...

    def enter(self) -> None:
        """Make this device current on this thread, for libraries. Raises `DeviceError`."""
        ...

    def export(self) -> str:
        """How another process of this host maps the pool. Raises `DeviceError`."""
        ...

    def makes_dtypes(self, dtype: str) -> tuple[str, ...]:
        """KV dtypes of the pages that `made` makes of this pool's, which are of that dtype: at
        least its own."""
        ...

    def made(self, source: Layout, target: Layout) -> SentMemory:
        """This pool, whose layout is `source`, as pages of `target`, which `mismatch` has nothing
        against. Each copy stream of it has a staging buffer of its own, freed when it closes.
        Raises `DeviceError`."""
        ...
