"""Random schedules of several routers: whatever happens to them, to workers and to the store, every
answer is complete, and the laws of `tests.cluster.witness` hold at each message."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from tests.cluster.test_virtual_cluster import Job, expected, make_jobs
from tests.cluster.virtual_routers import RoutedCluster, RouterLife, routed_cluster
from twolane.deploy.virtual_cluster.cluster import Shape
from twolane.testing.virtual_time import virtual_time_runner

SHAPES = [("p", "d"), ("p", "p", "d", "d"), ("pd", "pd"), ("pd", "p", "d")]
N_SHORT, N_SOAK, N_PARTS = 12, 2_000, 20
Event = Callable[[RoutedCluster, random.Random], Coroutine[Any, Any, None]]


def lives(cluster: RoutedCluster) -> list[RouterLife]:
    """Routers that are there and neither paused nor dead."""
    return [life for life in cluster.routers.values() if not life.is_dead and not life.is_paused]


async def pause(cluster: RoutedCluster, rng: random.Random) -> None:
    """As SIGSTOP, and back: it goes on with all that it knew."""
    able = lives(cluster)
    if len(able) < 2:
        return
    life = rng.choice(able)
    life.pause()
    await asyncio.sleep(rng.choice([0.02, 0.3, 2.0, 6.0]))
    if not life.is_dead:
        await life.resume()


async def kill(cluster: RoutedCluster, rng: random.Random) -> None:
    able = lives(cluster)
    if not able:
        return
    life = rng.choice(able)
    await life.kill()
    await asyncio.sleep(rng.uniform(0.0, 1.0))
    await cluster.start_router(life.router.config.router_id)


async def stop(cluster: RoutedCluster, rng: random.Random) -> None:
    """A planned one, and a start."""
    able = lives(cluster)
    if len(able) < 2:
        return
    life = rng.choice(able)
    await life.router.hand_over(2.0)
    if not life.is_dead and not life.is_paused:
        await life.kill()
        await cluster.start_router(life.router.config.router_id)


async def partition(cluster: RoutedCluster, rng: random.Random) -> None:
    able = lives(cluster)
    if not able or not cluster.lives:
        return
    life, worker_id = rng.choice(able), rng.choice(sorted(cluster.lives))
    life.cut(worker_id)
    await asyncio.sleep(rng.choice([0.05, 1.0, 4.0]))
    life.heal(worker_id)


async def worker_dies(cluster: RoutedCluster, rng: random.Random) -> None:
    """Often one that decodes. Its launcher tells each router of its end, and tries until that
    hears it: a router that stood still, or another process in its place, hears it later."""
    able = [name for name in sorted(cluster.lives) if "d" in name or rng.random() < 0.3]
    if not able:
        return
    name = rng.choice(able)
    epoch = await cluster.kill(name)
    await asyncio.sleep(rng.uniform(0.0, 0.5))
    untold = {*cluster.routers}
    tell(cluster, untold, epoch)
    cluster.start(name, name.rstrip("0123456789"))
    while untold:
        await asyncio.sleep(0.5)
        tell(cluster, untold, epoch)


def tell(cluster: RoutedCluster, untold: set[str], epoch: int) -> None:
    """Those of the routers that hear it now are taken out of `untold`."""
    for router_id in sorted(untold):
        life = cluster.routers[router_id]
        if not life.is_dead and not life.is_paused:
            life.router.operations.report_gone(epoch)
            untold.discard(router_id)


async def store_lost(cluster: RoutedCluster, rng: random.Random) -> None:
    cluster.store.is_lost = True
    await asyncio.sleep(rng.uniform(0.1, 2.0))
    cluster.store.is_lost = False


EVENTS: list[Event] = [pause, pause, kill, stop, partition, worker_dies, store_lost]


async def misfortune(cluster: RoutedCluster, rng: random.Random) -> None:
    """For some seconds; what has begun is brought to its end."""
    async with asyncio.TaskGroup() as events:
        for _ in range(rng.randint(3, 16)):
            await asyncio.sleep(rng.uniform(0.0, 0.25))
            events.create_task(rng.choice(EVENTS)(cluster, rng))


async def run(cluster: RoutedCluster, seed: int) -> None:
    rng = random.Random(seed)
    jobs = make_jobs(12, seed=seed, most_tokens=150)

    async def client(job: Job) -> None:
        await asyncio.sleep(rng.uniform(0.0, 2.0))
        async with asyncio.timeout(60.0):
            assert await cluster.ask_on(*job) == expected(job)

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(misfortune(cluster, rng))
        for job in jobs:
            tasks.create_task(client(job))
    await cluster.settle(within_s=20.0)


def play(seed: int) -> RoutedCluster:
    async def main() -> RoutedCluster:
        shape = Shape(roles=SHAPES[seed % len(SHAPES)], sender_writes=bool(seed % 3 == 1))
        async with routed_cluster(shape, 2 + seed % 2, seed) as cluster:
            await run(cluster, seed)
        return cluster

    with virtual_time_runner(seed) as runner:
        return runner.run(main())


@pytest.mark.parametrize("seed", range(N_SHORT))
def test_answers_are_complete_and_have_one_owner_whatever_happens_to_routers(seed: int) -> None:
    play(seed)


@pytest.mark.soak
@pytest.mark.parametrize("part", range(N_PARTS))
@pytest.mark.timeout(3600)
def test_two_thousand_schedules(part: int) -> None:
    played = [play(seed) for seed in range(N_SHORT + part, N_SHORT + N_SOAK, N_PARTS)]
    assert sum(cluster.n_resumed for cluster in played) > len(played)
    assert sum(cluster.n_regenerated for cluster in played) > 0
    assert sum(cluster.n_moved for cluster in played) > 0
    assert sum(cluster.witness.n_taken for cluster in played) > 0
