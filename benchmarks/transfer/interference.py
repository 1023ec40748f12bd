"""How much slower an engine gets while pages move from or to its GPU.

prefill 1 x 8,192    alone, and while pages of its pool stream out to the other GPU
decode 64 x 1,024    alone, and while the other GPU's process streams pages in

Pages are sent as by the cuda_ipc transport: in slices on their own copy stream, four in flight.
Both ways of copying are measured; in a worker `CopyCost` picks one of them.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.connection import Connection
from statistics import median
from typing import Any

import numpy as np

from benchmarks.transfer.far_pool import far_pool
from benchmarks.transfer.pools import open_pool
from twolane.kvtransfer.copy_plan import CopyPlan
from twolane.kvtransfer.transports.mapped.ipc_outlet import IpcOutlet
from twolane.worker.cuda.copy_cost import CopyCost

_SPARE_PAGES = 256  # of a pool, that are written to
_COSTS = {"engines": CopyCost(kernel_start_s=1.0), "kernel": CopyCost(run_start_s=1.0)}


def interference_figures(far_device: str) -> dict[str, Any]:
    """Milliseconds of a prefill and of a decode step, by what streams at the same time."""
    from benchmarks.engine.points import LLAMA_8B, Point, Rows, decode_s, prefill_s
    from benchmarks.engine.steps import shape_folder
    from twolane.engine.config import EngineConfig
    from twolane.engine.cuda.startup.load import load_cuda_engine
    from twolane.worker.cuda.copy_stream import CopyStreamConfig
    from twolane.worker.cuda.memory import CudaMemory

    prefill, decode = Point.parse("prefill:1x8192"), Point.parse("decode:64x1024")
    n_rows = max(point.rows * point.row_pages for point in (prefill, decode))
    found: dict[str, Any] = {}
    with shape_folder(LLAMA_8B) as folder:
        engine = load_cuda_engine(
            EngineConfig(
                model_dir=folder, dtype="bfloat16", load_format="random", exact=False,
                n_pages=n_rows + _SPARE_PAGES,
            )
        )  # fmt: skip
    assert engine.device_pool is not None
    size = engine.spec.page_bytes

    def prefill_ms() -> float:
        rows = Rows(prefill, engine.spec)
        return 1e3 * median(prefill_s(engine, rows) for _ in range(7))

    def decode_ms() -> float:
        return 1e3 * median(decode_s(engine, Rows(decode, engine.spec)))

    prefill_ms()
    found["prefill alone, ms"] = round(prefill_ms(), 2)
    found["decode alone, ms"] = round(decode_ms(), 3)
    for name, cost in _COSTS.items():
        memory = CudaMemory(engine.device_pool, size, config=CopyStreamConfig(cost=cost))
        with far_pool(far_device, _SPARE_PAGES, size) as address:
            with _streaming(memory, address) as moved:
                found[f"prefill, pages out by {name}, ms"] = round(prefill_ms(), 2)
            found[f"pages out by {name}, GB/s"] = round(moved[0], 1)
        with _far_stream(memory.export(), far_device, size, name) as pipe:
            found[f"decode, pages in by {name}, ms"] = round(decode_ms(), 3)
            pipe.send("end")
            found[f"pages in by {name}, GB/s"] = round(pipe.recv(), 1)
    engine.close()
    return found


@contextmanager
def _streaming(memory: Any, address: str) -> Iterator[list[float]]:
    """A block during which random pages are copied to the pool at `address`. After it the list
    holds the rate in GB/s."""
    outlet = IpcOutlet(address, memory, digest="")
    rate = [0.0]
    end = threading.Event()
    thread = threading.Thread(target=_stream, args=(memory, outlet, end, rate), daemon=True)
    thread.start()
    try:
        yield rate
    finally:
        end.set()
        thread.join()
        outlet.close()


def _stream(memory: Any, outlet: IpcOutlet, end: threading.Event, rate: list[float]) -> None:
    """Copy into the last `_SPARE_PAGES` of the target. These may belong to a row, so zeros are
    written."""
    rng, woken = np.random.default_rng(5), threading.Event()
    outlet.set_wake(woken.set)
    n_bytes, began, post, under_way = 0, time.perf_counter(), 0, 0
    while not end.is_set() or under_way:
        while under_way < 8 and not end.is_set():
            post, under_way = post + 1, under_way + 1
            src = rng.integers(0, memory.n_pages, 8)
            dst = rng.permutation(_SPARE_PAGES)[:8] + outlet.n_peer_pages - _SPARE_PAGES
            outlet.post(post, 1, CopyPlan(0, src, dst))
        woken.wait()
        woken.clear()
        done = len(outlet.poll())
        under_way -= done
        n_bytes += 8 * done * memory.page_bytes
    rate[0] = n_bytes / (time.perf_counter() - began) / 1e9


@contextmanager
def _far_stream(address: str, device: str, page_bytes: int, cost: str) -> Iterator[Connection]:
    """Another process copies from its GPU into our pool until it is told to stop."""
    context = get_context("spawn")
    here, there = context.Pipe()
    args = (there, address, device, page_bytes, cost)
    child = context.Process(target=_send_from_afar, args=args, daemon=True)
    child.start()
    assert here.recv() == "streaming"
    try:
        yield here
    finally:
        child.join()


def _send_from_afar(
    pipe: Connection, address: str, device: str, page_bytes: int, cost: str
) -> None:
    os.environ["CUDA_VISIBLE_DEVICES"] = device
    from twolane.worker.cuda.copy_stream import CopyStreamConfig

    pool = open_pool("cuda", _SPARE_PAGES, page_bytes, fill=False)
    memory: Any = pool.transfers
    memory.config = CopyStreamConfig(cost=_COSTS[cost])
    with _streaming(memory, address) as rate:
        time.sleep(0.2)
        pipe.send("streaming")
        pipe.recv()
    pipe.send(rate[0])
    pool.close()
