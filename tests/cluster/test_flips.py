"""Workers that change their role while they run, under virtual time."""

from __future__ import annotations

import asyncio
import random

import pytest

from tests.cluster.test_virtual_cluster import expected, ids, make_jobs, play
from twolane.deploy.virtual_cluster.cluster import Shape, VirtualCluster
from twolane.params import SamplingParams


def roles(cluster: VirtualCluster) -> dict[str, str]:
    names = {1: "p", 2: "d"}
    return {
        its.worker.worker_id: "".join(names[role] for role in its.roles)
        for its in cluster.status().workers
    }


async def until(
    cluster: VirtualCluster, worker_id: str, wanted: str, within_s: float = 1.0
) -> None:
    """Raises TimeoutError."""
    async with asyncio.timeout(within_s):
        while roles(cluster)[worker_id] != wanted:
            await asyncio.sleep(0.01)


def test_flipped_worker_serves_its_new_role_within_a_second_while_its_rows_run_out() -> None:
    async def scene(cluster: VirtualCluster) -> None:
        params = SamplingParams(max_tokens=900, seed=1, ignore_eos=True)
        running = [
            asyncio.create_task(cluster.ask([n + 1] * 20, params)) for n in range(4)
        ]  # two on each decode worker, for seconds
        await asyncio.sleep(0.5)
        flipped = cluster.lives["d+1"].worker
        assert len(flipped.roles.all[0].rows) == 2
        cluster.flip("d+1", "p")
        await until(cluster, "d+1", "p")
        assert flipped.offer.leaving == [flipped.roles.decode], "its rows are still there"
        prefilled = set()
        for n in range(6):
            one = await cluster.outcome([n + 40] * 300, SamplingParams(max_tokens=1, seed=n))
            prefilled.add(one.ledger.prefill_worker)
        assert prefilled == {"p+0", "d+1"}
        before = len(flipped.roles.all[0].rows)
        await cluster.ask([7] * 30, SamplingParams(max_tokens=4, seed=3))
        assert len(flipped.roles.all[0].rows) <= before, "no new row decodes there"
        answers = await asyncio.gather(*running)
        assert [len(answer) for answer in answers] == [900] * 4
        counters = cluster.status().counters
        resumed = {name: n for name, n in counters.items() if name.startswith("resumes.")}
        assert not resumed, "no row was computed again"
        assert flipped.offer.leaving == []
        await cluster.settle()

    play(Shape(roles=("p+", "d+", "d+"), n_pages=512, step_tokens=128), scene)


@pytest.mark.parametrize("seed", range(3))
def test_flips_at_any_instant_lose_and_change_no_token(seed: int) -> None:
    async def scene(cluster: VirtualCluster) -> None:
        source = random.Random(seed)
        jobs = make_jobs(60, seed)

        async def ask(n: int) -> list[int]:
            await asyncio.sleep(0.02 * n)
            return ids(await cluster.ask(*jobs[n]))

        async def flip() -> None:
            while True:
                await asyncio.sleep(source.uniform(0.01, 0.1))
                name = source.choice([*cluster.lives][2:])  # one of each role stays
                cluster.flip(name, source.choice(["p", "d", "pd"]))

        flipping = asyncio.create_task(flip())
        answers = await asyncio.gather(*(ask(n) for n in range(len(jobs))))
        flipping.cancel()
        assert answers == [expected(job) for job in jobs]
        counters = cluster.status().counters
        assert not [name for name in counters if name.startswith("failed")]
        await cluster.settle()

    play(Shape(roles=("p+", "d+", "p+", "d+", "pd"), n_pages=256), scene, seed)


def test_worker_that_cannot_take_a_role_keeps_its_own() -> None:
    async def scene(cluster: VirtualCluster) -> None:
        await cluster.ask([1, 2, 3], SamplingParams(max_tokens=2, seed=0))
        cluster.flip("d1", "p")
        await asyncio.sleep(1.0)
        assert roles(cluster)["d1"] == "d"
        assert cluster.lives["d1"].worker.dropped()["unable"] == 1
        await cluster.ask([4, 5, 6], SamplingParams(max_tokens=2, seed=0))

    play(Shape(roles=("p", "d")), scene)


def test_announce_that_was_under_way_does_not_undo_a_flip() -> None:
    async def scene(cluster: VirtualCluster) -> None:
        await cluster.ask([1, 2, 3], SamplingParams(max_tokens=2, seed=0))
        member = next(m for m in cluster.router.operations.members() if m.worker_id == "d+2")
        old = member.announce
        cluster.flip("d+2", "p")
        await until(cluster, "d+2", "p")
        cluster.router.announce(old)
        assert roles(cluster)["d+2"] == "p"

    play(Shape(roles=("p+", "d+", "d+")), scene)
