"""Pools for measured transfers: in host memory, of the test double, or on a GPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from twolane.kvtransfer.testing.device import DoubleMemory
from twolane.kvtransfer.transports.common.shared_memory import PoolMemory, create_pool_memory
from twolane.kvtransfer.transports.registry import AnyPool


@dataclass(frozen=True, slots=True)
class MeasuredPool:
    """A pool. `memory`: the shared memory of a host pool, which other processes can map."""

    transfers: AnyPool
    memory: PoolMemory | None
    close: Callable[[], None]


def open_pool(
    kind: str, n_pages: int, page_bytes: int, *, fill: bool, parts: int = 1
) -> MeasuredPool:
    """Open a pool of random bytes (for a sender) or zeros (for a receiver). All its memory is
    touched before any measurement.

    A GPU pool has as many `parts` as there would be ranks. On a host, a sender's pool is private
    memory and a receiver's is shared memory, as in workers.
    """
    rng = np.random.default_rng(1)
    if kind == "host" and fill:
        own = rng.integers(0, 256, (n_pages, page_bytes), dtype=np.uint8)
        return MeasuredPool(own, None, lambda: None)
    if kind == "host":
        memory = create_pool_memory(n_pages * page_bytes, "benchmark")
        array = memory.array.reshape(n_pages, page_bytes)
        array[:] = 0
        return MeasuredPool(array, memory, memory.close)
    if kind == "double":
        double = DoubleMemory(n_pages, page_bytes)
        double.pages[:] = rng.integers(0, 256, double.pages.shape, dtype=np.uint8) if fill else 0
        return MeasuredPool(double, None, double.close)
    import torch

    from twolane.engine.cuda.memory import RawMemory
    from twolane.engine.step import DevicePool
    from twolane.worker.cuda.memory import CudaMemory

    device, size = torch.device("cuda", 0), n_pages * page_bytes // parts
    raws = [RawMemory(size, device) for _ in range(parts)]
    for raw in raws:
        if fill:
            raw.tensor.random_(0, 256)
    torch.cuda.synchronize(0)
    pool = DevicePool(0, tuple(raw.address for raw in raws), size)

    def close() -> None:
        for raw in raws:
            raw.close()

    return MeasuredPool(CudaMemory(pool, page_bytes), None, close)
