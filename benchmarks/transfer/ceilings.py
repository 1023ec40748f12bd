"""Ceilings: rates of plain copies between GPUs and host memory, measured in the same run.

nvlink     one copy of 1 GiB to the other card's memory, by the copy engines
card       the same within this card
to_host    pinned memory, one copy of 256 MiB; from_host likewise
engines, kernel N
           1 GiB of scattered pages to the other card, by the copy engines, or by the kernel with N
           programs: what sets `twolane.worker.cuda.copy_cost.CopyCost` and
           `twolane.worker.cuda.copy_stream.CopyStreamConfig`
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.transfer.far_pool import far_pool
from benchmarks.transfer.pools import open_pool
from twolane.kvtransfer.device import CopyStream, DeviceMemory
from twolane.kvtransfer.transports.common.shared_memory import create_pool_memory
from twolane.worker.cuda.copy_cost import CopyCost

_GIB = 1 << 30
_PROGRAMS = (4, 8, 16, 24, 32, 64, 132)
_SIZES = {"768 KiB": 768 << 10, "8 MiB": 8 << 20}


def ceilings(far_device: str) -> dict[str, Any]:
    """Rates in GB/s, each the best of five."""
    found: dict[str, Any] = {}
    for name, page_bytes in _SIZES.items():
        n = _GIB // page_bytes
        pool = open_pool("cuda", 2 * n, page_bytes, fill=True)
        memory: Any = pool.transfers
        with far_pool(far_device, n, page_bytes) as address:
            found |= _between(memory, address, n, name)
        pool.close()
    return found


def _between(memory: Any, address: str, n: int, name: str) -> dict[str, Any]:
    from twolane.worker.cuda.copy_stream import CopyStreamConfig

    engines, kernel = CopyCost(kernel_start_s=1.0), CopyCost(run_start_s=1.0)
    peer = memory.open_peer(address)
    rng = np.random.default_rng(2)
    row, src, dst = np.arange(n), rng.permutation(2 * n)[:n], rng.permutation(n)
    found: dict[str, Any] = {}

    def rate(
        what: str, config: CopyStreamConfig, work: Callable[[CopyStream], None], n_bytes: int
    ) -> None:
        memory.config = config
        lane = memory.open_copy_stream()
        found[f"{what}, {name}"] = round(_best(lane, work) * n_bytes / 1e9, 1)
        lane.close()

    n_bytes = n * memory.page_bytes
    by_engines = CopyStreamConfig(cost=engines)
    rate("nvlink", by_engines, lambda lane: lane.to_peer(peer, row, row), n_bytes)
    rate("engines", by_engines, lambda lane: lane.to_peer(peer, src, dst), n_bytes)
    for programs in _PROGRAMS:
        config = CopyStreamConfig(cost=kernel, copy_programs=programs)
        rate(f"kernel {programs}", config, lambda lane: lane.to_peer(peer, src, dst), n_bytes)
    for programs in (16, 32, 132):
        config = CopyStreamConfig(sum_programs=programs)
        rate(f"sums {programs}", config, lambda lane: _ignore(lane.sum(src)), n_bytes)
    own = memory.open_peer(memory.export())
    rate("card", by_engines, lambda lane: lane.to_peer(own, row, row + n), n_bytes)
    found |= _host(memory, name)
    own.close()
    peer.close()
    return found


def _host(memory: DeviceMemory, name: str) -> dict[str, Any]:
    n = (256 << 20) // memory.page_bytes
    host = create_pool_memory(n * memory.page_bytes, "ceiling")
    buffer = host.array.reshape(n, memory.page_bytes)
    memory.pin(buffer)
    lane, pages = memory.open_copy_stream(), np.arange(n)
    out = _best(lane, lambda lane: lane.to_host(pages, buffer)) * buffer.nbytes / 1e9
    into = _best(lane, lambda lane: lane.from_host(buffer, pages)) * buffer.nbytes / 1e9
    lane.close()
    memory.unpin(buffer)
    host.close()
    return {f"to_host, {name}": round(out, 1), f"from_host, {name}": round(into, 1)}


def _best(lane: CopyStream, work: Callable[[CopyStream], None]) -> float:
    """The highest rate of calls, per second."""
    times = []
    for _ in range(6):
        began = time.perf_counter()
        work(lane)
        fence = lane.mark()
        while not fence.is_done():
            pass
        times.append(time.perf_counter() - began)
    return 1 / min(times[1:])


def _ignore(_: object) -> None:
    pass
