"""The two ends of one measured transfer: a landing in a process of its own, an outlet here.

    this process                                   child
    rounds(): post, post, ... within the window    grant; bytes land; sums
              check, as each post completes   ->   check
              wait                            <-   all checked

A round moves every page of the pool once, from random places to random places. Its time counts from
the first post to the news that all has landed (and was summed and compared where sums are on).
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection

import numpy as np

from kvtransfer.plan import CopyPlan
from kvtransfer.transports.base import Checked
from kvtransfer.transports.pool_memory import create_pool_memory
from kvtransfer.transports.registry import OutletOpener, TransportConfig, open_landings
from twolane.v1 import transfer_pb2

P_EPOCH, D_EPOCH = 1, 2
WINDOW_BYTES, POST_BYTES = 64 << 20, 8 << 20  # as SenderConfig


@dataclass(frozen=True, slots=True)
class Setting:
    """One row of the table."""

    transport: str
    page_bytes: int
    checksums: bool
    pool_bytes: int
    n_rounds: int


def rounds(setting: Setting) -> list[float]:
    """Bytes a second of each round, after one that warms up."""
    context = get_context("spawn")
    here, there = context.Pipe()
    child = context.Process(target=_land, args=(setting, there), daemon=True)
    child.start()
    rng = np.random.default_rng(1)
    shape = (setting.pool_bytes // setting.page_bytes, setting.page_bytes)
    pool = rng.integers(0, 256, shape, dtype=np.uint8)
    config = TransportConfig(transports=(setting.transport,), checksums=setting.checksums)
    hello = transfer_pb2.ReceiverHello(
        epoch=D_EPOCH, transport=setting.transport, transport_address=here.recv()
    )
    outlet = OutletOpener(P_EPOCH, pool, config)(hello)
    woken = threading.Event()
    outlet.set_wake(woken.set)
    step = POST_BYTES // setting.page_bytes
    rates = []
    for generation in range(1, setting.n_rounds + 2):
        src, dst = rng.permutation(shape[0]), rng.permutation(shape[0])
        here.send(dst)
        assert here.recv() == "granted"
        begun = time.perf_counter()
        waiting = [
            CopyPlan(at, src[at : at + step], dst[at : at + step])
            for at in range(0, shape[0], step)
        ]
        under_way: dict[int, CopyPlan] = {}
        while waiting or under_way:
            while waiting and len(under_way) < WINDOW_BYTES // POST_BYTES:
                plan = waiting.pop(0)
                under_way[plan.first] = plan
                outlet.post(plan.first, generation, plan)
            woken.wait()
            woken.clear()
            for posted in outlet.poll():
                assert posted.ok
                plan = under_way.pop(posted.post)
                here.send((plan.first, plan.n_pages, posted.checksums))
        assert here.recv() == "landed"
        rates.append(setting.pool_bytes / (time.perf_counter() - begun))
    here.send(None)
    child.join()
    outlet.close()
    return rates[1:]


def _land(setting: Setting, pipe: Connection) -> None:
    memory = create_pool_memory(setting.pool_bytes, "benchmark")
    pool = memory.array.reshape(-1, setting.page_bytes)
    pool[:] = 0  # every page is mapped before the clock runs
    config = TransportConfig(transports=(setting.transport,), checksums=setting.checksums)
    landing = open_landings(D_EPOCH, pool, config, memory)[setting.transport]
    woken = threading.Event()
    landing.set_wake(woken.set)
    pipe.send(landing.address)
    generation = 0
    while (pages := pipe.recv()) is not None:
        generation += 1
        landing.grant(P_EPOCH, generation, pages)
        pipe.send("granted")
        sums = np.zeros(pages.size, dtype=np.uint64)
        announced = checked = 0
        while checked < pages.size:
            if announced < pages.size:
                first, n, expected = pipe.recv()
                announced += n
                if setting.checksums:
                    sums[first : first + n] = expected
                landing.check(generation, first, n)
            else:
                woken.wait()
                woken.clear()
            for event in landing.poll():
                if isinstance(event, Checked):
                    span = slice(event.first, event.first + event.n_pages)
                    assert event.checksums is None or (event.checksums == sums[span]).all()
                    checked += event.n_pages
        landing.revoke(generation)
        pipe.send("landed")
    landing.close()
    memory.close()
