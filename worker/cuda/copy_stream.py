"""Copies out of and into a GPU's pool, on a CUDA stream: by kernels and by copy engines."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import wraps
from typing import Concatenate, ParamSpec, TypeVar

import numpy as np
import torch

from twolane.engine.cuda.driver import Context, Copies, CudaError, Event
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

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyStreamConfig:
    """How much of the GPU copies may use."""

    cost: CopyCost = field(default_factory=CopyCost)
    copy_programs: int = 32  # of the copy kernel, at most one per SM
    sum_programs: int = 32
    convert_programs: int = 64
    priority: int = -1  # above the engine's stream, or the few programs would queue behind it


def _device_call(
    method: Callable[Concatenate[CudaCopyStream, P], R],
) -> Callable[Concatenate[CudaCopyStream, P], R]:
    """The device is current on this thread meanwhile, and CUDA's errors are `DeviceError`s."""

    @wraps(method)
    def call(self: CudaCopyStream, /, *args: P.args, **kwargs: P.kwargs) -> R:
        try:
            self._enter()
            return method(self, *args, **kwargs)
        except REFUSALS as error:
            raise DeviceError(str(error)) from error

    return call


class CudaFence:
    """See `Fence`. The driver's own event: torch's query blocks other threads."""

    def __init__(self, event: Event) -> None:
        self._event = event

    def is_done(self) -> bool:
        try:
            return self._event.is_done()
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

    @_device_call
    def warm_up(self) -> None:
        """Launch each kernel once: copies a page onto itself, which leaves its bytes as they
        are."""
        assert isinstance(self._origin, Pool)
        first, parts = np.zeros(1, dtype=np.int64), self._origin.parts
        self.sum(first)
        for copy in copies(parts, parts):
            self._by_kernel(copy, first, first)

    @_device_call
    def after(self, mark: Mark) -> None:
        assert isinstance(mark, torch.cuda.Event)
        self._stream.wait_event(mark)

    @_device_call
    def to_peer(self, peer: PeerPool, src: PageIds, dst: PageIds) -> None:
        assert isinstance(peer, CudaPeer)
        for parts, pages, span in self._origin.batches(src, self._stream):
            self._to_peer(copies(parts, peer.parts), pages, dst[span])

    @_device_call
    def to_host(self, pages: PageIds, buffer: Bytes) -> None:
        for parts, held, span in self._origin.batches(pages, self._stream):
            for copy in copies(parts, _part_of(buffer)):
                self._copies.submit(copy.commands(held, np.arange(span.start, span.stop)))

    @_device_call
    def from_host(self, buffer: Bytes, pages: PageIds) -> None:
        assert isinstance(self._origin, Pool), "converted pages are never written to"
        for copy in copies(_part_of(buffer), self._origin.parts):
            self._copies.submit(copy.commands(np.arange(len(buffer)), pages))

    @_device_call
    def sum(self, pages: PageIds) -> Sums:
        n, device = len(pages), self._device
        with torch.cuda.stream(self._stream):
            host = pinned_result(n)
            sums = torch.zeros(n, dtype=torch.int64, device=device)
            for parts, held, span in self._origin.batches(pages, self._stream):
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
            self._enter()
            event = Event()
            event.record(self._stream.cuda_stream)
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

    def _to_peer(self, shares: Sequence[Copy], src: PageIds, dst: PageIds) -> None:
        commands = [copy.commands(src, dst) for copy in shares]
        n_runs = sum([len(targets) for targets, _, _ in commands])
        n_bytes = len(src) * sum(copy.source.n_bytes for copy in shares)
        takes_kernel = self._config.cost.takes_kernel(n_bytes, n_runs)
        for copy, its in zip(shares, commands, strict=True):
            if takes_kernel:
                self._by_kernel(copy, src, dst)
            else:
                self._copies.submit(its)

    def _by_kernel(self, copy: Copy, src: PageIds, dst: PageIds) -> None:
        with torch.cuda.stream(self._stream):
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

    def _enter(self) -> None:
        """Make the device current on this thread."""
        if self._thread != threading.get_ident():
            self._context.enter()
            self._thread = threading.get_ident()


def _part_of(buffer: Bytes) -> Parts:
    return (Part(buffer.ctypes.data, 0, buffer.shape[1], buffer.shape[1]),)
