"""A prefill worker's host is cut off: the pages that it was filling come back without it."""

from __future__ import annotations

import asyncio

import pytest

from tests.cluster.test_virtual_cluster import ask_all, make_jobs, play
from twolane.deploy.virtual_cluster.cluster import Shape, VirtualCluster
from twolane.kvtransfer import reasons
from twolane.kvtransfer.testing.memory import Faults

SLOW = Faults(delay_s=(0.1, 0.3))  # each page's bytes: a cut always meets some on their way
FREED_WITHIN_S = 6.0


def quarantined(cluster: VirtualCluster) -> int:
    return sum(life.worker.context.pages.counts().quarantined for life in cluster.lives.values())


async def cut_in_mid_transfer(cluster: VirtualCluster) -> None:
    """The network of p0 is cut while its bytes are on their way to both decode workers."""
    loop = asyncio.get_running_loop()
    while sum(outlet.n_moved for pair, outlet in cluster.outlets.items() if "p0" in pair) < 10:
        await asyncio.sleep(0.01)
    cluster.cut("p0")
    begun = loop.time()
    await asyncio.sleep(0.1)
    while loop.time() < begun + FREED_WITHIN_S and (
        quarantined(cluster) or not suspects_judged(cluster)
    ):
        await asyncio.sleep(0.05)
    assert suspects_judged(cluster)
    assert quarantined(cluster) == 0, "nobody was fenced, and nobody need be"


def suspects_judged(cluster: VirtualCluster) -> bool:
    """No decode worker holds pages for p0 any more."""
    epoch = cluster.lives["p0"].worker.context.epoch
    decodes = [life.worker.roles.decode for name, life in cluster.lives.items() if name[0] == "d"]
    return not any(
        key.sender_epoch == epoch
        for role in decodes
        if role is not None
        for key in role.receiver.keys()  # noqa: SIM118 -- it is no dict
    )


@pytest.mark.parametrize("seed", range(4))
def test_pages_of_a_host_that_is_cut_off_come_back_by_the_receiver_alone(seed: int) -> None:
    async def scene(cluster: VirtualCluster) -> None:
        asking = asyncio.ensure_future(ask_all(cluster, make_jobs(12, seed, most_tokens=10)))
        await cut_in_mid_transfer(cluster)
        async with asyncio.timeout(60.0):
            await asking  # every answer is right: the engine sees a stale page
        assert cluster.dropped(reasons.GENERATION) == 0
        cluster.heal("p0")
        await asyncio.sleep(1.0)
        assert cluster.dropped(reasons.GENERATION) >= 1, "bytes of the old grants arrived"
        seen = [life.worker.dropped() for life in cluster.lives.values()]
        n_told = sum(its.get("landing_generation", 0) for its in seen)
        assert n_told == cluster.dropped(reasons.GENERATION)
        await ask_all(cluster, make_jobs(8, seed + 100, most_tokens=10))
        await cluster.settle(within_s=20.0)

    play(Shape(roles=("p", "p", "d", "d"), transfer_faults=SLOW), scene, seed)


def test_pages_that_a_sender_writes_itself_wait_for_proof_of_its_end() -> None:
    """The same cut on transports of one host: there quarantine is all that keeps answers right."""

    async def scene(cluster: VirtualCluster) -> None:
        asking = asyncio.ensure_future(ask_all(cluster, make_jobs(12, 1, most_tokens=10)))
        with pytest.raises(AssertionError, match="nobody was fenced"):
            await cut_in_mid_transfer(cluster)
        epoch = await cluster.kill("p0")
        cluster.router.operations.report_gone(epoch)
        await asking
        await cluster.settle(within_s=20.0)

    shape = Shape(roles=("p", "p", "d", "d"), transfer_faults=SLOW, sender_writes=True)
    play(shape, scene)
