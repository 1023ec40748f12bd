"""Pools of pages for tests, in the memory of a host, of the double, or of a card."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from twolane.kvtransfer.testing.device import DoubleMemory
from twolane.kvtransfer.transports.common.shared_memory import PoolMemory, create_pool_memory
from twolane.kvtransfer.transports.registry import AnyPool

KINDS = ("host", "double", "cuda")


@dataclass(frozen=True, slots=True)
class PoolForTest:
    """`pages[ids]` reads and `pages[ids] = bytes` writes, wherever they are."""

    kind: str
    transfers: AnyPool  # what the transfer lane is given
    pages: Any
    memory: PoolMemory | None  # of a host: what others may map
    close: Callable[[], None]


def open_pool(kind: str, n_pages: int, page_bytes: int, parts: int = 1) -> PoolForTest:
    """Zeroed. Of a card, in as many `parts` as ranks would have."""
    if kind == "host":
        memory = create_pool_memory(n_pages * page_bytes, "test")
        array = memory.array.reshape(n_pages, page_bytes)
        return PoolForTest(kind, array, array, memory, memory.close)
    if kind == "double":
        double = DoubleMemory(n_pages, page_bytes)
        return PoolForTest(kind, double, double.pages, None, double.close)
    import torch

    from twolane.engine.cuda.memory import RawMemory
    from twolane.engine.step import DevicePool
    from twolane.worker.cuda.memory import CudaMemory

    device = torch.device("cuda", torch.cuda.current_device())
    size = n_pages * page_bytes // parts
    raws = [RawMemory(size, device) for _ in range(parts)]
    pool = DevicePool(device.index, tuple(raw.address for raw in raws), size)

    def close() -> None:
        for raw in raws:
            raw.close()

    pages = CudaPages([raw.tensor.view(n_pages, page_bytes // parts) for raw in raws])
    return PoolForTest(kind, CudaMemory(pool, page_bytes), pages, None, close)


def force_copies(pool: PoolForTest, by: str) -> None:
    """From now on its pages go to peers by a `kernel`, on one multiprocessor alone so that it takes
    long, or by the copy `engines`; only a card has a choice."""
    if pool.kind != "cuda" or not by:
        return
    from twolane.worker.cuda.copy_cost import CopyCost
    from twolane.worker.cuda.copy_stream import CopyStreamConfig
    from twolane.worker.cuda.memory import CudaMemory

    assert isinstance(pool.transfers, CudaMemory)
    kernel = CopyStreamConfig(cost=CopyCost(run_start_s=1.0), copy_programs=1)
    engines = CopyStreamConfig(cost=CopyCost(kernel_start_s=1.0))
    pool.transfers.config = {"kernel": kernel, "engines": engines}[by]


class CudaPages:
    """Pages of a card, indexed as numpy arrays are; every access waits for the card."""

    def __init__(self, parts: list[Any]) -> None:
        self.parts = parts

    def __getitem__(self, ids: Any) -> Any:
        held = [part[self._on_card(ids)].cpu().numpy() for part in self.parts]
        return np.concatenate(held, axis=-1)

    def __setitem__(self, ids: Any, content: Any) -> None:
        import torch

        pages = self._on_card(ids)
        shape = (*pages.shape, sum(part.shape[1] for part in self.parts))
        whole = torch.from_numpy(np.array(np.broadcast_to(np.asarray(content, np.uint8), shape)))
        at = 0
        for part in self.parts:
            part[pages] = whole[..., at : at + part.shape[1]].to(part.device)
            at += part.shape[1]
        torch.cuda.synchronize(self.parts[0].device)

    def _on_card(self, ids: Any) -> Any:
        import torch

        return torch.as_tensor(np.asarray(ids, dtype=np.int64), device=self.parts[0].device)
