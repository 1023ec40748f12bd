"""A GPU's pool as the transfer lane sees it: `kvtransfer.device.DeviceMemory` over CUDA.

    export     handle of the raw allocation + offset, and whose it is; within one process the
               address itself, as nobody can open a handle of his own
    lane       a stream of its own, which no other stream waits for and which waits for none:
               pages are offered when the step that wrote them is known to be over
    copies     to peers as `CopyCost` says; to and from pinned memory by the copy engines

Imports torch and triton: only where there is a GPU.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import torch

from engine.cuda.driver import (
    Context,
    Copies,
    CudaError,
    close_memory,
    export_memory,
    open_memory,
    pin,
    unpin,
)
from engine.kernels.page_copy import copy_pages
from engine.kernels.page_sum import sum_pages
from engine.step import DevicePool
from kvtransfer.device import Bytes, DeviceError, PeerPool, Sums
from kvtransfer.host import start_ticks
from kvtransfer.plan import PageIds, runs
from kvtransfer.region import Region
from worker.copy_cost import CopyCost


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneConfig:
    """How much of the card copies may take."""

    cost: CopyCost = field(default_factory=CopyCost)
    copy_programs: int = 32  # of the kernel, at most one a multiprocessor
    sum_programs: int = 32
    priority: int = -1  # ahead of the engine's stream: few programs, that would else stand in line


class CudaPeer:
    """See `PeerPool`."""

    def __init__(self, context: Context, address: int, n_pages: int, exported: bytes) -> None:
        self.address = address
        self.n_pages = n_pages
        self._context = context
        self._exported = exported  # empty: of this process

    def close(self) -> None:
        exported, self._exported = self._exported, b""
        if exported:
            self._context.enter()
            close_memory(exported, self.address)


class CudaMemory:
    """See `DeviceMemory`. The pool is the engine's, and outlives this.

    Kernels are built and loaded when it is made, which takes seconds the first time: not when a
    peer connects, while others wait for this process to show signs of life.
    """

    kind = "cuda"

    def __init__(
        self, pool: DevicePool, page_bytes: int, *, config: LaneConfig | None = None
    ) -> None:
        self.address = pool.address
        self.n_pages = pool.n_bytes // page_bytes
        self.page_bytes = page_bytes
        self.config = config or LaneConfig()
        self.device = torch.device("cuda", pool.device)
        self._context = Context(pool.device)
        lane = self.open_lane()
        lane.warm_up()
        lane.close()

    @property
    def regions(self) -> tuple[Region, ...]:
        return (Region(self.address, self.n_pages * self.page_bytes, self.device.index),)

    def open_lane(self) -> CudaLane:
        return CudaLane(self, self._context)

    def enter(self) -> None:
        with _told(self._context):
            pass

    def export(self) -> str:
        with _told(self._context):
            handle = export_memory(self.address)
        facts = {
            "pid": os.getpid(),
            "ticks": start_ticks(os.getpid()),
            "address": self.address,
            "n_pages": self.n_pages,
            "device": self._context.uuid,
            "handle": handle.hex(),
        }
        return json.dumps(facts)

    def open_peer(self, address: str) -> CudaPeer:
        try:
            facts = json.loads(address)
            pid, ticks, at = int(facts["pid"]), int(facts["ticks"]), int(facts["address"])
            n_pages, handle = int(facts["n_pages"]), bytes.fromhex(facts["handle"])
            device = str(facts["device"])
        except (ValueError, KeyError, TypeError) as error:
            raise DeviceError(f"no pool at {address[:80]!r}") from error
        with _told(self._context):
            if (pid, ticks) == (os.getpid(), start_ticks(os.getpid())):
                self._context.reach(device)
                return CudaPeer(self._context, at, n_pages, b"")
            return CudaPeer(self._context, open_memory(handle), n_pages, handle)

    def pin(self, buffer: Bytes) -> None:
        with _told(self._context):
            pin(buffer.ctypes.data, buffer.nbytes)

    def unpin(self, buffer: Bytes) -> None:
        with _told(self._context):
            unpin(buffer.ctypes.data)


class CudaFence:
    """See `Fence`."""

    def __init__(self, event: torch.cuda.Event) -> None:
        self._event = event

    def is_done(self) -> bool:
        try:
            return bool(self._event.query())  # type: ignore[no-untyped-call]
        except RuntimeError as error:
            raise DeviceError(f"a copy failed: {error}") from error


class CudaLane:
    """See `Lane`."""

    def __init__(self, memory: CudaMemory, context: Context) -> None:
        self._memory = memory
        self._context = context
        self._config = memory.config
        self._thread = 0
        self._is_closed = False
        context.enter()
        self._stream = torch.cuda.Stream(  # type: ignore[no-untyped-call]
            memory.device, priority=memory.config.priority
        )
        self._copies = Copies(self._stream.cuda_stream)

    def warm_up(self) -> None:
        """Launch each kernel once: a page is copied onto itself, and keeps its bytes."""
        first = np.zeros(1, dtype=np.int64)
        self.sum(first)
        with self._launching():
            self._by_kernel(self._memory.address, first, first)

    def to_peer(self, peer: PeerPool, src: PageIds, dst: PageIds) -> None:
        assert isinstance(peer, CudaPeer)
        spans, size = runs(src, dst), self._memory.page_bytes
        with self._launching():
            if self._config.cost.takes_kernel(src.size * size, len(spans)):
                self._by_kernel(peer.address, src, dst)
                return
            for a, b in spans:
                source = self._memory.address + int(src[a]) * size
                self._copies.copy(peer.address + int(dst[a]) * size, source, (b - a) * size)

    def to_host(self, pages: PageIds, buffer: Bytes) -> None:
        size = self._memory.page_bytes
        with self._launching():
            for a, b in runs(pages):
                source = self._memory.address + int(pages[a]) * size
                self._copies.copy(buffer.ctypes.data + a * size, source, (b - a) * size)

    def from_host(self, buffer: Bytes, pages: PageIds) -> None:
        size = self._memory.page_bytes
        with self._launching():
            for a, b in runs(pages):
                target = self._memory.address + int(pages[a]) * size
                self._copies.copy(target, buffer.ctypes.data + a * size, (b - a) * size)

    def sum(self, pages: PageIds) -> Sums:
        host = torch.empty(pages.size, dtype=torch.int64, pin_memory=True)
        with self._launching():
            sums = torch.empty(pages.size, dtype=torch.int64, device=self._memory.device)
            sum_pages(
                self._memory.address,
                self._upload(pages),
                page_bytes=self._memory.page_bytes,
                out=sums,
                programs=self._config.sum_programs,
            )
            host.copy_(sums, non_blocking=True)
        filled: Sums = host.numpy().view(np.uint64)
        return filled

    def mark(self) -> CudaFence:
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(self._stream)
        return CudaFence(event)

    def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._stream.synchronize()

    # -- inside -----------------------------------------------------------------------------

    def _by_kernel(self, target: int, src: PageIds, dst: PageIds) -> None:
        copy_pages(
            self._memory.address,
            target,
            self._upload(src),
            self._upload(dst),
            page_bytes=self._memory.page_bytes,
            programs=self._config.copy_programs,
        )

    def _upload(self, pages: PageIds) -> torch.Tensor:
        held = torch.from_numpy(pages.astype(np.int32)).pin_memory()
        return held.to(self._memory.device, non_blocking=True)

    @contextmanager
    def _launching(self) -> Iterator[None]:
        """The lane's stream, on whichever thread this is. Raises `DeviceError`."""
        if self._thread != threading.get_ident():
            self._thread = threading.get_ident()
            self._context.enter()
        try:
            with torch.cuda.device(self._memory.device), torch.cuda.stream(self._stream):
                yield
        except (CudaError, RuntimeError) as error:
            raise DeviceError(str(error)) from error


@contextmanager
def _told(context: Context) -> Iterator[None]:
    """Driver calls of this thread are for the device. Raises `DeviceError`."""
    try:
        context.enter()
        yield
    except CudaError as error:
        raise DeviceError(str(error)) from error
