"""The two ends of a measured transfer: a landing in a child process, and an outlet in this one.

    this process                                   child
    rounds(): post, post, ... within the window    grant; bytes land; sums
              check, as each post completes   ->   check
              wait                            <-   all checked

A round moves pages from random places to random places, in runs (`Shape`). It is timed from the
first post to the message that all pages have landed (and that their checksums were compared, if
checksums are on). Messages between the two carry bytes, not arrays: to pickle even an empty array
takes longer than the rest of the message. Pools are in host memory or on GPUs: ours on the first
GPU that this process sees, the child's on `child_device`.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import numpy as np

from benchmarks.transfer.pools import open_pool
from twolane.kvtransfer.config import MIB
from twolane.kvtransfer.copy_plan import CopyPlan
from twolane.kvtransfer.page_lane import PageLane
from twolane.kvtransfer.transport import Checked, Outlet
from twolane.kvtransfer.transports.registry import OutletOpener, TransportConfig, open_landings
from twolane.v1 import transfer_pb2

P_EPOCH, D_EPOCH = 1, 2


@dataclass(frozen=True, slots=True)
class Shape:
    """The pages that a round moves."""

    n_pages: int
    run_pages: int = 1


@dataclass(frozen=True, slots=True)
class Setting:
    """The configuration of both ends. Window and post sizes are SenderConfig's for that kind of
    pool.
    """

    transport: str
    page_bytes: int
    checksums: bool
    pool_bytes: int
    n_rounds: int
    kind: str = "host"
    sockets: int = 1
    lane: PageLane = PageLane.PLAIN  # of tcp
    child_device: str = ""  # as CUDA_VISIBLE_DEVICES says it

    @property
    def pool_pages(self) -> int:
        return self.pool_bytes // self.page_bytes

    @property
    def window_bytes(self) -> int:
        return 64 * MIB if self.kind == "host" else 512 * MIB

    @property
    def post_pages(self) -> int:
        post_bytes = 8 * MIB if self.kind == "host" else 256 * MIB
        return max(1, post_bytes // self.page_bytes)

    def config(self) -> TransportConfig:
        return TransportConfig(
            transports=(self.transport,),
            checksums=self.checksums,
            sockets=self.sockets,
            page_lane=self.lane,
        )

    def places(self, shape: Shape, rng: np.random.Generator) -> Any:
        """The page numbers of a round on one side."""
        starts = rng.permutation(self.pool_pages // shape.run_pages)
        wanted = -(-shape.n_pages // shape.run_pages)
        runs = starts[:wanted, None] * shape.run_pages + np.arange(shape.run_pages)
        return runs.reshape(-1)[: shape.n_pages]


class Rate(NamedTuple):
    """The rate of a round, in bytes per second."""

    landed: float  # until the receiver's news that all has landed (and was summed and compared)
    sent: float  # until the sender knows that its pages are not read any more; where it writes into
    # the receiver's memory, they are there


def rounds(setting: Setting, shapes: Sequence[Shape] = ()) -> list[list[Rate]]:
    """The rates of all rounds of each shape, after a warm-up round. Without shapes a round moves
    the whole pool."""
    context = get_context("spawn")
    here, there = context.Pipe()
    child = context.Process(target=_land, args=(setting, there), daemon=True)
    child.start()
    pool = open_pool(setting.kind, setting.pool_pages, setting.page_bytes, fill=True)
    address, digests, page_key = here.recv()
    hello = transfer_pb2.ReceiverHello(
        epoch=D_EPOCH,
        transport=setting.transport,
        transport_address=address,
        checksums=digests,
        page_lane=setting.lane,
        page_key=page_key,
    )
    outlet = OutletOpener(P_EPOCH, pool.transfers, setting.config())(hello)
    woken = threading.Event()
    outlet.set_wake(woken.set)
    rng = np.random.default_rng(1)
    rates = []
    shapes = shapes or [Shape(setting.pool_pages)]
    in_order = [shape for shape in shapes for _ in range(setting.n_rounds + 1)]
    for generation, shape in enumerate(in_order, 1):
        src, dst = setting.places(shape, rng), setting.places(shape, rng)
        here.send(dst)
        assert here.recv() == "granted"
        begun = time.perf_counter()
        _send(setting, outlet, woken, here, generation, src, dst)
        sent_s = time.perf_counter() - begun
        assert here.recv() == "landed"
        n_bytes = src.size * setting.page_bytes
        rates.append(Rate(n_bytes / (time.perf_counter() - begun), n_bytes / sent_s))
    here.send(None)
    child.join()
    outlet.close()
    pool.close()
    each = setting.n_rounds + 1
    return [rates[at + 1 : at + each] for at in range(0, len(rates), each)]


def _send(
    setting: Setting,
    outlet: Outlet,
    woken: threading.Event,
    here: Connection,
    generation: int,
    src: Any,
    dst: Any,
) -> None:
    step = setting.post_pages
    most = max(1, setting.window_bytes // (step * setting.page_bytes))
    waiting = [
        CopyPlan(at, src[at : at + step], dst[at : at + step]) for at in range(0, src.size, step)
    ]
    under_way: dict[int, CopyPlan] = {}
    while waiting or under_way:
        while waiting and len(under_way) < most:
            plan = waiting.pop(0)
            under_way[plan.first] = plan
            outlet.post(plan.first, generation, plan)
        woken.wait()
        woken.clear()
        for posted in outlet.poll():
            assert posted.ok
            plan = under_way.pop(posted.post)
            here.send((plan.first, plan.n_pages, posted.checksums.tobytes()))


def _land(setting: Setting, pipe: Connection) -> None:
    if setting.child_device:
        os.environ["CUDA_VISIBLE_DEVICES"] = setting.child_device
    held = open_pool(setting.kind, setting.pool_pages, setting.page_bytes, fill=False)
    landings = open_landings(D_EPOCH, held.transfers, setting.config(), held.memory)
    landing = landings[setting.transport]
    woken = threading.Event()
    landing.set_wake(woken.set)
    pipe.send((landing.address, landing.digests, landing.lane.key_for(P_EPOCH)))
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
                    sums[first : first + n] = np.frombuffer(expected, dtype=np.uint64)
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
    held.close()
