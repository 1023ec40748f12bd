"""What the transfer lane asks of a pool in the memory of a device. Knows no CUDA.

    memory = ...                        a DeviceMemory: `twolane.worker.cuda.memory` on a GPU, and
                                        the shipped double, `twolane.kvtransfer.testing.device`
    memory.made(ours, theirs)           its pages as pages of another layout, for a sender
    copies = memory.open_copy_stream()  copies in order; no other stream waits for it
    copies.to_host(pages, buffer)       returns at once
    fence = copies.mark()               an event: done when all before it is

A page of several ranks is the concatenation of their pages, in the order of ranks: where each lies
is the memory's business, on our side and on a peer's.

Whoever uses a lane asks its fences from time to time; no other stream is ever made to wait for one,
so that a peer which is stuck holds up its own copies and no step of an engine.
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


Mark = object  # on a device: lanes may be told to wait for it (an engine's, `Step.written`)


@dataclass(frozen=True, slots=True)
class Region:
    """Memory of this process. Several of one pool are of one size: page p is the concatenation of
    the p-th part of each."""

    address: int
    n_bytes: int
    device: int | None = None  # ordinal of the GPU that it is on; None: host memory


def region_of(pool: Pool) -> Region:
    """Of a pool in host memory, which must outlive it."""
    assert pool.flags.c_contiguous
    return Region(pool.ctypes.data, pool.nbytes)


class DeviceError(OSError):
    """A device refused a mapping or a copy, or a copy failed. Says which."""


class Fence(Protocol):
    def is_done(self) -> bool:
        """All that its lane was given before is over: nothing of it reads or writes any more, also
        where this raises `DeviceError` because some of it failed."""
        ...


class PeerPool(Protocol):
    """Another worker's pool, mapped for writing."""

    @property
    def n_pages(self) -> int: ...

    def close(self) -> None:
        """Unmap it. The lanes that wrote to it are closed by then. Raises `DeviceError`. Twice is
        fine."""
        ...


class CopyStream(Protocol):
    """Copies of one thread, carried out in order. Only `close` waits, of a sound device.

    Of memory that was `made`, pages are named by what they are made of, as `CopyPlan.src` does;
    what they are made of does not change between a call and the `mark` after it.
    """

    def after(self, mark: Mark) -> None:
        """What is given from now on begins when the device has passed the mark. Raises
        `DeviceError`."""
        ...

    def to_peer(self, peer: PeerPool, src: PageIds, dst: PageIds) -> None:
        """Copy our pages to the peer's. Raises `DeviceError`."""
        ...

    def to_host(self, pages: PageIds, buffer: Bytes) -> None:
        """Copy pages into pinned memory `[n, page_bytes]`. Raises `DeviceError`."""
        ...

    def from_host(self, buffer: Bytes, pages: PageIds) -> None:
        """Copy pinned memory `[n, page_bytes]` into pages; not where they are made. Raises
        `DeviceError`."""
        ...

    def sum(self, pages: PageIds) -> Sums:
        """The mix64 of each page as it is then; filled once a later fence is done. Raises
        `DeviceError`."""
        ...

    def mark(self) -> Fence:
        """Never raises: a device that has no fence to give is waited for, and the fence tells."""
        ...

    def close(self) -> None:
        """Wait for all that was given. Never raises. Twice is fine."""
        ...


class SentMemory(Protocol):
    """Pages that a sender's ends read. Any thread may call; lanes are used by one thread each."""

    page_bytes: int  # of all ranks

    def open_copy_stream(self) -> CopyStream:
        """Raises `DeviceError`."""
        ...

    def open_peer(self, address: str) -> PeerPool:
        """The pool of that `export`, this process's own included, whose pages are as large. Raises
        `DeviceError`."""
        ...

    def pin(self, buffer: Bytes) -> None:
        """From now on lanes may copy from and to this host memory. Raises `DeviceError`."""
        ...

    def unpin(self, buffer: Bytes) -> None:
        """No lane uses it any more. Raises `DeviceError`."""
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
        """What libraries do on this thread from now on is about this device. Raises
        `DeviceError`."""
        ...

    def export(self) -> str:
        """How another process of this host maps the pool. Raises `DeviceError`."""
        ...

    def makes_dtypes(self, dtype: str) -> tuple[str, ...]:
        """KV dtypes of the pages that `made` makes of this pool's, which are of that dtype: at
        least its own."""
        ...

    def made(self, source: Layout, target: Layout) -> SentMemory:
        """This pool, whose layout is `source`, as pages of `target`, which `unfit` has nothing
        against. Each lane of it has a staging of its own, which goes when the lane closes.
        Raises `DeviceError`."""
        ...
