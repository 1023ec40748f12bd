"""A GPU's pool as the transfer sees it: `twolane.kvtransfer.device.DeviceMemory` over CUDA.

    export     handles of the raw allocations + offsets, and their process; within one process the
               addresses themselves, since a process cannot open its own handles
    stream     a CUDA stream of its own. No other stream waits for it; it waits for the engine's
               event if pages are offered before they are computed
    copies     to peers by kernel or copy engines (`CopyCost`); to and from pinned memory by the
               copy engines
    ranks      a page is the concatenation of the ranks' pages, each copied from and to its part

Imports torch and triton, so it is imported only where there is a GPU.
"""

from __future__ import annotations

import json
import os

import torch

from twolane.engine.cuda.driver import Context, export_memory, pin, unpin
from twolane.engine.kernels.loading import load_kernels_once
from twolane.engine.step import DevicePool
from twolane.kvtransfer.device import Bytes, Region
from twolane.kvtransfer.link.process_identity import start_ticks
from twolane.layout import Layout
from twolane.worker.cuda.copy_stream import CopyStreamConfig, CudaCopyStream
from twolane.worker.cuda.page_converter import CudaPageConverter, Pool, Staging, makes_dtypes
from twolane.worker.cuda.page_parts import parts_of
from twolane.worker.cuda.peer import CudaPeer, device_errors, open_peer


class CudaMemory:
    """See `DeviceMemory`. The engine owns the pool, which outlives this.

    `page_bytes`: of all ranks.

    The constructor builds and loads the kernels, which takes seconds the first time and must not
    happen when a peer connects: others then wait for a sign of life from this process. Kernels that
    convert pages depend on the layout; a copy stream's thread builds them when it needs them.
    """

    kind = "cuda"

    def __init__(
        self, pool: DevicePool, page_bytes: int, *, config: CopyStreamConfig | None = None
    ) -> None:
        self.parts = parts_of(pool.addresses, page_bytes)
        self.n_pages = pool.n_bytes // self.parts[0].n_bytes
        self.page_bytes = page_bytes
        self.config = config or CopyStreamConfig()
        self.device = torch.device("cuda", pool.device)
        self._exports = pool.exports
        self._context = Context(pool.device)
        load_kernels_once()
        stream = self.open_copy_stream()
        stream.warm_up()
        stream.close()

    @property
    def regions(self) -> tuple[Region, ...]:
        device, n_pages = self.device.index, self.n_pages
        return tuple(Region(p.address, n_pages * p.n_bytes, device) for p in self.parts)

    def open_copy_stream(self) -> CudaCopyStream:
        return CudaCopyStream(self._context, self.device, Pool(self.parts), self.config)

    def makes_dtypes(self, dtype: str) -> tuple[str, ...]:
        return makes_dtypes(dtype)

    def made(self, source: Layout, target: Layout) -> CudaConvertedPages:
        assert source.ranks == len(self.parts)
        assert source.page_bytes == self.page_bytes
        addresses = [part.address for part in self.parts]
        with device_errors(self._context):
            converter = CudaPageConverter(addresses, source, target, self.device)
        return CudaConvertedPages(self, self._context, converter)

    def enter(self) -> None:
        with device_errors(self._context):
            pass

    def export(self) -> str:
        with device_errors(self._context):
            handles = self._exports or [export_memory(part.address) for part in self.parts]
            uuid = self._context.uuid
        facts = {
            "pid": os.getpid(),
            "ticks": start_ticks(os.getpid()),
            "addresses": [part.address for part in self.parts],
            "n_pages": self.n_pages,
            "page_bytes": self.page_bytes,
            "device": uuid,
            "handles": [handle.hex() for handle in handles],
        }
        return json.dumps(facts)

    def open_peer(self, address: str) -> CudaPeer:
        return open_peer(self._context, address, self.page_bytes)

    def pin(self, buffer: Bytes) -> None:
        with device_errors(self._context):
            pin(buffer.ctypes.data, buffer.nbytes)

    def unpin(self, buffer: Bytes) -> None:
        with device_errors(self._context):
            unpin(buffer.ctypes.data)


class CudaConvertedPages:
    """See `SentMemory`: the pool's pages, converted to another layout."""

    def __init__(self, memory: CudaMemory, context: Context, converter: CudaPageConverter) -> None:
        self.page_bytes = converter.page_bytes
        self._memory = memory
        self._context = context
        self._converter = converter

    def open_copy_stream(self) -> CudaCopyStream:
        memory, config = self._memory, self._memory.config
        staging = Staging(self._converter, config.convert_programs)
        return CudaCopyStream(self._context, memory.device, staging, config)

    def open_peer(self, address: str) -> CudaPeer:
        return open_peer(self._context, address, self.page_bytes)

    def pin(self, buffer: Bytes) -> None:
        self._memory.pin(buffer)

    def unpin(self, buffer: Bytes) -> None:
        self._memory.unpin(buffer)
