"""The link between two hosts is cut under load: every answer is what it must be, and no stream is
silent for long."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.hosts.by_hand import ByHand
from tests.hosts.fake_hosts import Host, Network
from tests.hosts.load import load_on, until

STREAMS = 6
SUSPICION_S = 3.0  # as it usually is
EMPTY_WITHIN_S = 6.0  # of the suspicion
Cut = Callable[[Network, Host, Host], None]

CUTS: dict[str, Cut] = {
    "both ways": lambda network, a, b: network.cut(a, b),
    "to b": lambda network, a, b: network.cut_one_way(a, b),
    "from b": lambda network, a, b: network.cut_one_way(b, a),
}


@pytest.fixture
async def cluster(network: Network, tmp_path: Path) -> ByHand:
    """The router on host a; a prefill and a decode worker on each of two."""
    a, b = network.host("a"), network.host("b")
    cluster = ByHand(tmp_path)
    cluster.router(a)
    for host in (a, b):
        cluster.worker(host, "prefill")
        cluster.worker(host, "decode")
    await cluster.until_alive(4)
    return cluster


async def until_quarantine_is_empty(cluster: ByHand) -> None:
    """Raises TimeoutError; AssertionError if a worker wants another proven dead."""
    async with asyncio.timeout(SUSPICION_S + EMPTY_WITHIN_S):
        await asyncio.sleep(SUSPICION_S)
        while True:
            looks = await cluster.looks()
            for name, look in looks.items():
                assert not look.load.fence_wanted, f"{name} wants a fence"
                assert not look.integrity_error, f"{name}: {look.integrity_error}"
            if not any(look.load.pages.quarantined for look in looks.values()):
                return
            await asyncio.sleep(0.1)


async def cut_and_heal(network: Network, cluster: ByHand, how: str, cut_for_s: float) -> None:
    """Under load, from before the cut until requests are placed on both hosts again."""
    a, b = network.hosts[:2]
    async with load_on(cluster.endpoint, streams=STREAMS) as load:
        await until(load, STREAMS)
        CUTS[how](network, a, b)
        await asyncio.gather(until_quarantine_is_empty(cluster), asyncio.sleep(cut_for_s))
        load.check(silence_s=5.0)
        network.heal()
        await cluster.until_alive(4, within_s=20)
        await until(load, 2 * STREAMS)
    load.check(silence_s=5.0)
    assert load.n_done > 3 * STREAMS
    assert cluster.status().counters.get("resumes.decode_worker_lost", 0) > 0


@pytest.mark.parametrize("how", ["both ways", "from b"])
async def test_a_cut_link_costs_no_answer_and_no_long_silence(
    network: Network, cluster: ByHand, how: str
) -> None:
    await cut_and_heal(network, cluster, how, 4.0)


@pytest.mark.soak
@pytest.mark.timeout(1800)
async def test_twenty_cuts_cost_no_answer_and_no_long_silence(
    network: Network, cluster: ByHand
) -> None:
    source = random.Random(1)
    for _ in range(20):
        await cut_and_heal(network, cluster, source.choice([*CUTS]), source.uniform(1, 20))


async def lossy(network: Network, cluster: ByHand, for_s: float) -> None:
    async with load_on(cluster.endpoint, streams=STREAMS) as load:
        await until(load, STREAMS)
        a, b = network.hosts[:2]
        network.loss(a, b, 30)
        await asyncio.sleep(for_s)
        load.check(silence_s=20.0)
        network.heal()
        await until(load, STREAMS)
    load.check(silence_s=20.0)


async def test_a_third_of_all_packets_lost_costs_no_answer(
    network: Network, cluster: ByHand
) -> None:
    await lossy(network, cluster, 8.0)


@pytest.mark.soak
@pytest.mark.timeout(600)
async def test_a_link_may_lose_packets_for_minutes(network: Network, cluster: ByHand) -> None:
    await lossy(network, cluster, 180.0)
    dropped = {
        name: n for name, n in cluster.status().counters.items() if name.startswith("dropped.")
    }
    assert dropped.get("dropped.old_attempt", 0) > 0, "what is over comes late, and is not believed"
    for name, look in (await cluster.looks()).items():
        assert not look.integrity_error, f"{name}: {look.integrity_error}"
