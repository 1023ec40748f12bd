"""An engine that hangs raises nothing, and its worker goes on to say that it lives."""

from __future__ import annotations

import asyncio

from tests.cluster.waiting import answer, answers, play, resumes
from twolane.deploy.virtual_cluster.cluster import Shape, VirtualCluster
from twolane.router.config import DispatchConfig


async def hang(cluster: VirtualCluster, name: str) -> None:
    """Every worker has done some steps before: kernels are built."""
    await answers(cluster, (100, 20) * 8)
    cluster.hung.add(name)


def state(cluster: VirtualCluster, name: str) -> str:
    (worker,) = [w for w in cluster.status().workers if w.worker.worker_id == name]
    return worker.state


def test_prefill_worker_whose_step_never_ends_costs_seconds_and_gets_nothing_more() -> None:
    async def scene(cluster: VirtualCluster) -> None:
        await hang(cluster, "p0")
        outcomes = await answers(cluster, (20,) * 40, every_s=0.5)
        assert max(o.took_s for o in outcomes) < 10.0
        assert state(cluster, "p0") == "suspect"
        late = outcomes[20:]
        assert all(o.ledger.attempts == 1 and o.ledger.prefill_worker == "p1" for o in late)

    play(Shape(roles=("p", "p", "d"), dispatch=DispatchConfig()), scene)


def test_decode_worker_whose_step_never_ends_costs_seconds_and_gets_nothing_more() -> None:
    async def scene(cluster: VirtualCluster) -> None:
        await hang(cluster, "d1")
        outcomes = await answers(cluster, (20,) * 40, every_s=0.5)
        assert max(o.took_s for o in outcomes) < 10.0
        assert state(cluster, "d1") == "suspect"
        late = outcomes[20:]
        assert all(o.ledger.attempts == 1 and o.ledger.decode_worker == "d2" for o in late)

    play(Shape(roles=("p", "d", "d"), n_pages=64, dispatch=DispatchConfig()), scene)


def test_restarted_worker_serves_again() -> None:
    async def scene(cluster: VirtualCluster) -> None:
        await hang(cluster, "p0")
        waiting = asyncio.create_task(answer(cluster, 20, 8, seed=1))
        while state(cluster, "p0") != "suspect":
            await asyncio.sleep(0.1)
        cluster.hung.clear()
        cluster.router.operations.report_gone(await cluster.kill("p0"))
        cluster.start("p0", "p")
        outcome = await waiting
        assert outcome.took_s < 10.0
        await cluster.settle()
        again = await answers(cluster, (20,) * 8)
        assert max(o.took_s for o in again) < 1.5
        assert all(o.ledger.attempts == 1 for o in again)

    play(Shape(dispatch=DispatchConfig()), scene)


def test_first_step_of_a_kind_has_more_time_and_not_for_ever() -> None:
    async def scene(cluster: VirtualCluster) -> None:
        cluster.hung.add("p0")
        waiting = asyncio.create_task(answer(cluster, 20, 8, seed=1))
        await asyncio.sleep(12.0)
        assert state(cluster, "p0") == "alive"
        await asyncio.sleep(5.0)
        assert state(cluster, "p0") == "suspect"
        waiting.cancel()

    play(Shape(dispatch=DispatchConfig()), scene)


def test_worker_whose_step_ended_late_after_all_serves_again() -> None:
    async def scene(cluster: VirtualCluster) -> None:
        await answers(cluster, (20,) * 4)
        watch = cluster.lives["p0"].worker._watch
        watch.begin([], asyncio.get_running_loop().time())
        await asyncio.sleep(70.0)
        assert state(cluster, "p0") == "suspect"
        watch.end(asyncio.get_running_loop().time())
        await asyncio.sleep(2.0)
        assert state(cluster, "p0") == "alive"
        assert not resumes(cluster)

    play(Shape(dispatch=DispatchConfig()), scene)
