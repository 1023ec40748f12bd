"""Pools of pages for tests, in the memory of a host, of the double, or of a card."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from kvtransfer.transports.double_device import DoubleMemory
from kvtransfer.transports.pool_memory import PoolMemory, create_pool_memory
from kvtransfer.transports.registry import AnyPool

KINDS = ("host", "double", "cuda")


@dataclass(frozen=True, slots=True)
class PoolForTest:
    """`pages[ids]` reads and `pages[ids] = bytes` writes, wherever they are."""

    kind: str
    transfers: AnyPool  # what the transfer lane is given
    pages: Any
    memory: PoolMemory | None  # of a host: what others may map
    close: Callable[[], None]


def open_pool(kind: str, n_pages: int, page_bytes: int) -> PoolForTest:
    """Zeroed."""
    if kind == "host":
        memory = create_pool_memory(n_pages * page_bytes, "test")
        array = memory.array.reshape(n_pages, page_bytes)
        return PoolForTest(kind, array, array, memory, memory.close)
    if kind == "double":
        double = DoubleMemory(n_pages, page_bytes)
        return PoolForTest(kind, double, double.pages, None, double.close)
    import torch

    from engine.cuda.memory import RawMemory
    from engine.step import DevicePool
    from worker.cuda_memory import CudaMemory

    raw = RawMemory(n_pages * page_bytes, torch.device("cuda", torch.cuda.current_device()))
    pool = DevicePool(raw.device.index or 0, (raw.address,), raw.n_bytes)
    pages = CudaPages(raw.tensor.view(n_pages, page_bytes))
    return PoolForTest(kind, CudaMemory(pool, page_bytes), pages, None, raw.close)


class CudaPages:
    """Pages of a card, indexed as numpy arrays are; every access waits for the card."""

    def __init__(self, tensor: Any) -> None:
        self.tensor = tensor

    def __getitem__(self, ids: Any) -> Any:
        return self.tensor[self._on_card(ids)].cpu().numpy()

    def __setitem__(self, ids: Any, content: Any) -> None:
        import torch

        held = torch.as_tensor(np.asarray(content, dtype=np.uint8), device=self.tensor.device)
        self.tensor[self._on_card(ids)] = held
        torch.cuda.synchronize(self.tensor.device)

    def _on_card(self, ids: Any) -> Any:
        import torch

        return torch.as_tensor(np.asarray(ids, dtype=np.int64), device=self.tensor.device)
