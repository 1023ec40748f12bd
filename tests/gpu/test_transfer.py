"""Pages of cards: copies of one process, and from another one that sees only its own card.

Two cards where there are two (NVLink), otherwise one twice. Expected on H200s: all of this in less
than three minutes; a killed sender's pages are free within a second of its end.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time

import numpy as np
import pytest

pytest.importorskip("triton")
pytest.importorskip("grpc")
pytest.importorskip("xxhash")

import torch

from benchmarks.transfer.far_pool import killable_pool
from tests.kvtransfer.pools import PoolForTest, open_pool
from tests.kvtransfer.receiving import SENTINEL, Receiving, receiving
from tests.kvtransfer.sender_process import PATIENT
from twolane.kvtransfer.copy_plan import CopyPlan
from twolane.kvtransfer.device import CopyStream, DeviceError
from twolane.kvtransfer.digests import mix64
from twolane.kvtransfer.transports.mapped.ipc_outlet import IpcOutlet
from twolane.worker.cuda.copy_cost import CopyCost
from twolane.worker.cuda.copy_stream import CopyStreamConfig
from twolane.worker.cuda.memory import CudaMemory

pytestmark = pytest.mark.gpu

SIZE, N_PAGES = 40 * 1024, 64
SENDER_CARD = str(torch.cuda.device_count() - 1)  # the receiver is on card 0
KERNEL = CopyStreamConfig(cost=CopyCost(run_start_s=1.0))
ENGINES = CopyStreamConfig(cost=CopyCost(kernel_start_s=1.0))


def filled(seed: int) -> PoolForTest:
    pool = open_pool("cuda", N_PAGES, SIZE)
    content = np.random.default_rng(seed).integers(0, 256, (N_PAGES, SIZE), np.uint8)
    pool.pages[np.arange(N_PAGES)] = content
    return pool


def wait(lane: CopyStream) -> None:
    fence = lane.mark()
    while not fence.is_done():
        pass


@pytest.mark.parametrize("config", [KERNEL, ENGINES])
def test_pages_go_to_a_pool_of_this_process_by_kernel_and_by_engines(
    config: CopyStreamConfig,
) -> None:
    source, target = filled(1), filled(2)
    assert isinstance(source.transfers, CudaMemory)
    assert isinstance(target.transfers, CudaMemory)
    source.transfers.config = config
    before = target.pages[np.arange(N_PAGES)]
    peer = source.transfers.open_peer(target.transfers.export())
    lane = source.transfers.open_copy_stream()
    rng = np.random.default_rng(3)
    src, dst = rng.permutation(N_PAGES)[:40], rng.permutation(N_PAGES)[:40]
    lane.to_peer(peer, src, dst)
    wait(lane)
    before[dst] = source.pages[src]
    assert (target.pages[np.arange(N_PAGES)] == before).all()
    lane.close()
    peer.close()
    source.close()
    target.close()


def test_sums_of_a_card_are_those_of_a_cpu_at_real_sizes() -> None:
    pool = open_pool("cuda", 5, 8 << 20)
    content = np.random.default_rng(4).integers(0, 256, (5, 8 << 20), np.uint8)
    pool.pages[np.arange(5)] = content
    assert isinstance(pool.transfers, CudaMemory)
    lane = pool.transfers.open_copy_stream()
    pages = np.array([4, 0, 3])
    sums = lane.sum(pages)
    wait(lane)
    assert sums.tolist() == mix64(content, pages).tolist()
    lane.close()
    pool.close()


def test_pages_pass_through_pinned_memory_unchanged() -> None:
    source, target = filled(5), filled(6)
    assert isinstance(source.transfers, CudaMemory)
    assert isinstance(target.transfers, CudaMemory)
    host = open_pool("host", 20, SIZE)
    source.transfers.pin(host.pages)
    out, into = source.transfers.open_copy_stream(), target.transfers.open_copy_stream()
    src, dst = np.arange(63, 43, -1), np.arange(1, 41, 2)
    out.to_host(src, host.pages)
    wait(out)
    into.from_host(host.pages, dst)
    wait(into)
    assert (target.pages[dst] == source.pages[src]).all()
    out.close()
    into.close()
    source.transfers.unpin(host.pages)
    for pool in (source, target, host):
        pool.close()


def test_an_address_that_leads_nowhere_is_a_device_error() -> None:
    pool = filled(7)
    assert isinstance(pool.transfers, CudaMemory)
    address = pool.transfers.export().replace(f'"pid": {os.getpid()}', '"pid": 1')
    broken = address[: address.rindex('"handles"')] + '"handles": ["' + "00" * 72 + '"]}'
    for text in ("", "{}", broken):
        with pytest.raises(DeviceError):
            pool.transfers.open_peer(text)
    pool.close()


@pytest.mark.parametrize("transport", ["cuda_ipc", "shm", "unix", "tcp"])
def test_rows_of_scattered_pages_arrive_from_another_process(transport: str) -> None:
    asyncio.run(move_rows(transport))


async def move_rows(transport: str) -> None:
    async with receiving(n_pages=1500, row_pages=500, kind="cuda", lease=PATIENT) as (side, tasks):
        sending = await side.start_sender(tasks, transport, 6, device=SENDER_CARD)
        await wait_long(side, lambda: len(side.landed) == 6)
        assert await asyncio.wait_for(sending.process.wait(), 30) == 0
        assert side.used == {"p": transport}
        assert side.pages.counts().free == side.pages.n_pages


@pytest.mark.parametrize(("here", "there"), [("host", "cuda"), ("cuda", "host")])
def test_a_cpu_and_a_card_verify_each_others_sums(here: str, there: str) -> None:
    asyncio.run(move_between(here, there))


async def move_between(here: str, there: str) -> None:
    async with receiving(n_pages=300, row_pages=100, kind=here, lease=PATIENT) as (side, tasks):
        await side.start_sender(tasks, "unix", 3, there, device=SENDER_CARD)
        await wait_long(side, lambda: len(side.landed) == 3)


@pytest.mark.parametrize("transport", ["cuda_ipc", "shm", "unix"])
def test_no_page_of_a_killed_sender_is_reused_before_it_is_gone(transport: str) -> None:
    asyncio.run(kill_senders(transport, n_kills=4, at_once=2))


def test_a_receiver_killed_in_mid_copy_leaves_the_senders_card_sound() -> None:
    source, other = filled(8), filled(9)
    memory = source.transfers
    assert isinstance(memory, CudaMemory)
    rng = np.random.default_rng(0)
    for _ in range(3):
        with killable_pool("0", 20_000, SIZE) as (address, kill):
            outlet = IpcOutlet(address, memory, digest="mix64")
            for post in range(400):
                src, dst = rng.integers(0, N_PAGES, 500), rng.permutation(20_000)[:500]
                outlet.post(post, 1, CopyPlan(0, src, dst))
            time.sleep(rng.uniform(0, 0.02))
            kill()
            outlet.cancel(1)
            outlet.close()
            assert len(outlet.poll()) == 400
        lane = memory.open_copy_stream()
        peer = memory.open_peer(other.transfers.export())  # type: ignore[union-attr]
        pages = rng.permutation(N_PAGES)
        lane.to_peer(peer, pages, np.arange(N_PAGES))
        wait(lane)
        assert (other.pages[np.arange(N_PAGES)] == source.pages[pages]).all()
        lane.close()
    source.close()
    other.close()


async def kill_senders(transport: str, *, n_kills: int, at_once: int) -> None:
    """Pages are marked when they are freed from quarantine: a later write would show."""
    rng = random.Random(transport)
    async with receiving(n_pages=40_000, row_pages=4_000, kind="cuda") as (side, tasks):
        in_the_middle = 0
        for _ in range(0, n_kills, at_once):
            side.landed.clear()
            side.pages.absolved.clear()
            senders = [
                await side.start_sender(tasks, transport, 0, device=SENDER_CARD)
                for _ in range(at_once)
            ]
            await wait_long(side, lambda: len(side.landed) > 2 * at_once)
            for sending in senders:
                for _ in range(200):
                    await asyncio.sleep(rng.uniform(0, 0.02))
                    if side.pages.counts().used:
                        break
                in_the_middle += bool(side.pages.counts().used)
                sending.signal(signal.SIGKILL)
            await wait_long(side, lambda: side.pages.counts().free == 40_000)
            await asyncio.sleep(0.1)
            freed = np.asarray(side.pages.absolved, dtype=np.int64)
            if freed.size:
                assert (side.pool[freed] == SENTINEL).all(), "written to after it was freed"
            side.pages.check_integrity()
        assert in_the_middle


async def wait_long(side: Receiving, condition: object) -> None:
    """A process with torch and a card takes seconds to start."""
    for _ in range(12):
        try:
            await side.wait_until("all of it", condition)
        except AssertionError:
            continue
        return
    await side.wait_until("all of it, within two minutes", condition)
