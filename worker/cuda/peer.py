"""Another worker's pool on a GPU, mapped by CUDA IPC: all its ranks' parts."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from twolane.engine.cuda.driver import Context, CudaError, close_memory, open_memory
from twolane.kvtransfer.device import DeviceError
from twolane.kvtransfer.link.process_identity import start_ticks
from twolane.worker.cuda.page_parts import Parts, parts_of

REFUSALS = (CudaError, RuntimeError)  # CUDA errors, from the driver or as raised by torch


class CudaPeer:
    """See `PeerPool`."""

    def __init__(
        self, context: Context, parts: Parts, n_pages: int, exported: Sequence[bytes] = ()
    ) -> None:
        self.parts = parts
        self.n_pages = n_pages
        self._context = context
        self._exported = exported  # the handle of each part; empty within one process

    def close(self) -> None:
        """Raises `DeviceError`."""
        exported, self._exported = self._exported, ()
        if exported:
            with device_errors(self._context):
                for handle, part in zip(exported, self.parts, strict=True):
                    close_memory(handle, part.address)


def open_peer(context: Context, address: str, page_bytes: int) -> CudaPeer:
    """The pool that `CudaMemory.export` described, with pages of that size. Raises
    `DeviceError`."""
    try:
        facts = json.loads(address)
        pid, ticks = int(facts["pid"]), int(facts["ticks"])
        addresses = [int(at) for at in facts["addresses"]]
        n_pages, their_bytes = int(facts["n_pages"]), int(facts["page_bytes"])
        handles = [bytes.fromhex(handle) for handle in facts["handles"]]
        device = str(facts["device"])
        if their_bytes != page_bytes or not 0 < len(addresses) == len(handles):
            raise ValueError(f"pages of {their_bytes} bytes, not {page_bytes}")
    except (ValueError, KeyError, TypeError) as error:
        raise DeviceError(f"no pool at {address[:80]!r}: {error}") from error
    with device_errors(context):
        if (pid, ticks) == (os.getpid(), start_ticks(os.getpid())):
            context.reach(device)
            return CudaPeer(context, parts_of(addresses, page_bytes), n_pages)
        opened: list[int] = []
        try:
            for handle in handles:
                opened.append(open_memory(handle))  # noqa: PERF401  # what was opened is closed
        except CudaError:
            for handle, at in zip(handles, opened, strict=False):
                close_memory(handle, at)
            raise
        return CudaPeer(context, parts_of(opened, page_bytes), n_pages, handles)


@contextmanager
def device_errors(context: Context) -> Iterator[None]:
    """Make the device current on this thread, and translate CUDA errors to `DeviceError`."""
    try:
        context.enter()
        yield
    except REFUSALS as error:
        raise DeviceError(str(error)) from error
