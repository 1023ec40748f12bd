"""The link between two hosts is cut under load: every answer is what it must be, and no stream is
silent for long."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import pytest

from tests.hosts.by_hand import ByHand
from tests.hosts.fake_hosts import Host, Network
from tests.hosts.load import load_on, until
from tests.hosts.page_ports import hold_pages, lanes_that_open, unacknowledged
from tests.own_time import own_time
from twolane.kvtransfer.page_lane import PageLane

pytestmark = pytest.mark.timeout(600)
STREAMS = 6
SUSPICION_S = 3.0  # as it usually is
# Counters of requests that went on elsewhere: what streamed already, and what had no token yet.
_MOVED = ("resumes.", "retargets")
Cut = Callable[[Network, Host, Host], None]


SILENCE_S = 5.0  # of a stream
EMPTY_WITHIN_S = 6.0  # of the suspicion
CUTS: dict[str, Cut] = {
    "both ways": lambda network, a, b: network.cut(a, b),
    "to b": lambda network, a, b: network.cut_one_way(a, b),
    "from b": lambda network, a, b: network.cut_one_way(b, a),
}


async def started(network: Network, tmp_path: Path, *roles: Sequence[str]) -> ByHand:
    """The router on host a; workers of these roles on each host."""
    hosts = [network.host(name) for name in "ab"[: len(roles)]]
    cluster = ByHand(hosts, tmp_path)
    cluster.router(hosts[0])
    for host, its in zip(hosts, roles, strict=True):
        for role in its:
            cluster.worker(host, role)
    await cluster.until_alive(sum(map(len, roles)))
    return cluster


@pytest.fixture
async def cluster(network: Network, tmp_path: Path) -> ByHand:
    both = ("prefill", "decode")
    return await started(network, tmp_path, both, both)


async def until_quarantine_is_empty(cluster: ByHand, hosts: Sequence[Host] = ()) -> None:
    """Of these hosts, or of all. Raises AssertionError, also if a worker wants another proven
    dead."""
    await asyncio.sleep(SUSPICION_S)
    with own_time() as took:
        while True:
            assert took.s() < EMPTY_WITHIN_S
            looks = await cluster.looks(hosts)
            for name, look in looks.items():
                assert not look.load.fence_wanted, f"{name} wants a fence"
                assert not look.integrity_error, f"{name}: {look.integrity_error}"
            if not any(look.load.pages.quarantined for look in looks.values()):
                return
            await asyncio.sleep(0.1)


async def cut_and_heal(network: Network, cluster: ByHand, how: str, cut: Awaitable[object]) -> None:
    """Under load, from before the cut until requests are placed on both hosts again. The link stays
    cut until `cut` has ended."""
    a, b = network.hosts[:2]
    async with load_on(cluster.endpoint, cluster.client_config, streams=STREAMS) as load:
        await until(load, STREAMS)
        CUTS[how](network, a, b)
        await asyncio.gather(until_quarantine_is_empty(cluster), cut)
        load.check(silence_s=SILENCE_S)
        network.heal()
        await cluster.until_alive(4)
        await until(load, 2 * STREAMS)
    load.check(silence_s=SILENCE_S)


def check_moved(cluster: ByHand) -> None:
    counters = cluster.status().counters
    moved = [number for name, number in counters.items() if name.startswith(_MOVED)]
    assert sum(moved) > 0, f"the cut struck no request: {counters}"


@pytest.mark.parametrize("how", ["both ways", "from b"])
async def test_a_cut_link_costs_no_answer_and_no_long_silence(
    network: Network, cluster: ByHand, how: str
) -> None:
    await cut_and_heal(network, cluster, how, cluster.until_alive(2))
    check_moved(cluster)


@pytest.mark.soak
@pytest.mark.timeout(1800)
async def test_twenty_cuts_cost_no_answer_and_no_long_silence(
    network: Network, cluster: ByHand
) -> None:
    source = random.Random(1)
    for _ in range(20):
        how, cut = source.choice([*CUTS]), asyncio.sleep(source.uniform(1, 20))
        await cut_and_heal(network, cluster, how, cut)
    check_moved(cluster)


async def freeze_with_pages_on_their_way(network: Network, cluster: ByHand) -> None:
    """Host b is frozen, and its kernel has bytes of pages for host a that cannot arrive yet."""
    a, b = network.hosts[:2]
    status = cluster.status()
    while True:
        hold_pages(network, status, b, a)
        async with asyncio.timeout(60):
            while not unacknowledged(status, b, a):
                await asyncio.sleep(0.02)
        b.freeze()
        if unacknowledged(status, b, a):
            return
        b.thaw()  # the sender had already given that connection up
        network.heal()


async def dropped_after_a_freeze(network: Network, cluster: ByHand) -> int:
    """How many frames decode-a refused because their grant was withdrawn while they were on their
    way from host b, which was frozen meanwhile and runs again now. None where what was on its way
    was a hello, or the rest of a frame whose head had arrived."""
    a, b = network.hosts
    await freeze_with_pages_on_their_way(network, cluster)
    await cluster.until_alive(2)
    await until_quarantine_is_empty(cluster, [a])
    before = (await cluster.looks([a]))["decode-a"].dropped["landing_generation"]
    status = cluster.status()
    network.heal()  # b's kernel sends them again, though no process of b runs
    async with asyncio.timeout(150):  # TCP pauses for 120 s at most
        while unacknowledged(status, b, a):
            await asyncio.sleep(0.1)
    end = asyncio.get_running_loop().time() + 5
    while True:
        look = (await cluster.looks([a]))["decode-a"]
        assert not look.integrity_error
        n_dropped = look.dropped["landing_generation"] - before
        if n_dropped or asyncio.get_running_loop().time() > end:
            b.thaw()
            await cluster.until_alive(3)
            return n_dropped
        await asyncio.sleep(0.1)


async def test_pages_that_arrive_after_their_grant_was_withdrawn_are_dropped_and_counted(
    network: Network, tmp_path: Path
) -> None:
    cluster = await started(network, tmp_path, ("prefill", "decode"), ("prefill",))
    assert lanes_that_open(cluster.status(), network.hosts[0]) == {PageLane.ENCRYPTED}
    async with load_on(cluster.endpoint, cluster.client_config, streams=STREAMS) as load:
        await until(load, STREAMS)
        n_dropped = 0
        for _ in range(8):
            n_dropped = n_dropped or await dropped_after_a_freeze(network, cluster)
        assert n_dropped, "no frame of a withdrawn grant was on its way in eight freezes"
        await until(load, 2 * STREAMS)  # each is compared with what it must be
    load.check(silence_s=SILENCE_S)


async def lossy(network: Network, cluster: ByHand, for_s: float) -> None:
    async with load_on(cluster.endpoint, cluster.client_config, streams=STREAMS) as load:
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
