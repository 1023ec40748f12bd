"""Copies out of and into a GPU's pool, on a CUDA stream: by kernels and by copy engines."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

import numpy as np
import torch

from twolane.engine.cuda.driver import Context, Copies, CudaError, is_event_done
from twolane.engine.kernels.pages.page_checksum import checksum_pages
from twolane.engine.kernels.pages.page_copy import copy_pages
from twolane.kvtransfer.copy_plan import PageIds
from twolane.kvtransfer.device import Bytes, DeviceError, Fence, Mark, PeerPool, Sums
from twolane.worker.cuda.copy_cost import CopyCost
from twolane.worker.cuda.page_converter import Origin, Pool, pinned_result, upload
from twolane.worker.cuda.page_parts import Copy, Part, Parts, copies
from twolane.worker.cuda.peer import REFUSALS, CudaPeer, device_errors

_SIDES = 3  # side streams, for copies that run in parallel

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyStreamConfig:
    """How much of the GPU copies may use."""

    cost: CopyCost = field(default_factory=CopyCost)
    copy_programs: int = 32  # of the copy kernel, at most one per SM
    sum_programs: int = 32
    convert_programs: int = 64
    priority: int = -1  # above the engine's stream, or the few programs would queue behind it


class CudaFence:
    """See `Fence`. Queries the driver directly: torch's query blocks other threads."""

    def __init__(self, event: torch.cuda.Event) -> None:
        self._event = event
        self._handle: int = event.cuda_event

    def is_done(self) -> bool:
        try:
            return is_event_done(self._handle)
        except CudaError as error:
            raise DeviceError(f"a copy failed: {error}") from error


class FailedFence:
    """See `Fence`. For copies that have ended with an unknown result."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def is_done(self) -> bool:
        raise DeviceError(f"copies could not be followed: {self._error}") from self._error


class CudaCopyStream:
    """See `CopyStream`. Raises `DeviceError` if no stream can be created."""

    def __init__(
        self, context: Context, device: torch.device, origin: Origin, config: CopyStreamConfig
    ) -> None:
        self._context = context
        self._device = device
        self._config = config
        self._origin = origin
        self._thread = 0
        self._is_closed = False
        with device_errors(context):
            self._stream, *self._sides = [
                torch.cuda.Stream(device, priority=config.priority)  # type: ignore[no-untyped-call]
                for _ in range(1 + _SIDES)
            ]
            self._copies = Copies(
                self._stream.cuda_stream, [stream.cuda_stream for stream in self._sides]
            )

    def warm_up(self) -> None:
        """Launch each kernel once: copies a page onto itself, which leaves its bytes as they
        are."""
        assert isinstance(self._origin, Pool)
        first, parts = np.zeros(1, dtype=np.int64), self._origin.parts
        self.sum(first)
        with self._launching():
            for copy in copies(parts, parts):
                self._by_kernel(copy, first, first)

    def after(self, mark: Mark) -> None:
        assert isinstance(mark, torch.cuda.Event)
        with self._launching():
            self._stream.wait_event(mark)

    def to_peer(self, peer: PeerPool, src: PageIds, dst: PageIds) -> None:
        assert isinstance(peer, CudaPeer)
        with self._launching():
            for parts, pages, span in self._origin.batches(src):
                self._to_peer(copies(parts, peer.parts), pages, dst[span])

    def to_host(self, pages: PageIds, buffer: Bytes) -> None:
        with self._launching():
            for parts, held, span in self._origin.batches(pages):
                for copy in copies(parts, _part_of(buffer)):
                    self._by_engines(copy, held, np.arange(span.start, span.stop))

    def from_host(self, buffer: Bytes, pages: PageIds) -> None:
        assert isinstance(self._origin, Pool), "converted pages are never written to"
        with self._launching():
            for copy in copies(_part_of(buffer), self._origin.parts):
                self._by_engines(copy, np.arange(len(buffer)), pages)

    def sum(self, pages: PageIds) -> Sums:
        n, device = len(pages), self._device
        with self._launching():
            host = pinned_result(n)
            sums = torch.zeros(n, dtype=torch.int64, device=device)
            for parts, held, span in self._origin.batches(pages):
                ids = upload(held, device)
                for part in parts:
                    checksum_pages(
                        part.address,
                        ids,
                        page_bytes=part.n_bytes,
                        stride=part.stride,
                        bytes_before=part.first,
                        out=sums[span],
                        programs=self._config.sum_programs,
                    )
            host.copy_(sums, non_blocking=True)
        filled: Sums = host.numpy().view(np.uint64)
        return filled

    def mark(self) -> Fence:
        self._origin.forget()
        try:
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record(self._stream)
            return CudaFence(event)
        except REFUSALS as error:
            with suppress(*REFUSALS):  # refused too: the context is gone, and its work with it
                self._stream.synchronize()
            return FailedFence(error)

    def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        try:
            self._stream.synchronize()
            self._copies.close()
            self._origin.close()
        except REFUSALS as error:  # the context is gone, and its work with it
            _log.warning("a copy stream of %s was not closed cleanly: %s", self._device, error)

    # -- inside -----------------------------------------------------------------------------

    def _to_peer(self, shares: list[Copy], src: PageIds, dst: PageIds) -> None:
        n_runs = sum(len(copy.spans(src, dst)) for copy in shares)
        n_bytes = len(src) * sum(copy.source.n_bytes for copy in shares)
        takes_kernel = self._config.cost.takes_kernel(n_bytes, n_runs)
        carry_out = self._by_kernel if takes_kernel else self._by_engines
        for copy in shares:
            carry_out(copy, src, dst)

    def _by_engines(self, copy: Copy, src: PageIds, dst: PageIds) -> None:
        spans = np.array(copy.spans(src, dst), dtype=np.int64)
        begins = spans[:, 0]
        self._copies.submit(
            copy.target.address + dst[begins] * copy.target.stride,
            copy.source.address + src[begins] * copy.source.stride,
            (spans[:, 1] - begins) * copy.source.n_bytes,
        )

    def _by_kernel(self, copy: Copy, src: PageIds, dst: PageIds) -> None:
        copy_pages(
            copy.source.address,
            copy.target.address,
            upload(src, self._device),
            upload(dst, self._device),
            page_bytes=copy.source.n_bytes,
            source_stride=copy.source.stride,
            target_stride=copy.target.stride,
            programs=self._config.copy_programs,
        )

    @contextmanager
    def _launching(self) -> Iterator[None]:
        """Make the copy stream current on this thread. Raises `DeviceError`."""
        try:
            if self._thread != threading.get_ident():
                self._context.enter()
                self._thread = threading.get_ident()
            with torch.cuda.device(self._device), torch.cuda.stream(self._stream):
                yield
        except REFUSALS as error:
            raise DeviceError(str(error)) from error


def _part_of(buffer: Bytes) -> Parts:
    return (Part(buffer.ctypes.data, 0, buffer.shape[1], buffer.shape[1]),)
