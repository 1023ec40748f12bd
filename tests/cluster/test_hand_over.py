"""A decode worker that is emptied: its answers go on elsewhere, as far as there is room."""

from __future__ import annotations

import asyncio

from tests.cluster.test_said_again import play
from twolane.deploy.virtual_cluster.cluster import Shape, VirtualCluster
from twolane.engine.fake import expected_answer
from twolane.params import SamplingParams

PARAMS = SamplingParams(max_tokens=400, seed=1)
PROMPT = [1, 2, 3]


def rows_at(cluster: VirtualCluster, name: str) -> int:
    return cluster.lives[name].worker.load().rows


async def begun(cluster: VirtualCluster, n: int) -> list[asyncio.Task[list[int]]]:
    async def one() -> list[int]:
        return [token.token_id for token in await cluster.ask(PROMPT, PARAMS)]

    tasks = [asyncio.create_task(one()) for _ in range(n)]
    while sum(rows_at(cluster, name) for name in cluster.lives) < n:
        await asyncio.sleep(0.01)
    return tasks


async def answered(tasks: list[asyncio.Task[list[int]]]) -> None:
    for answer in await asyncio.gather(*tasks):
        assert answer == expected_answer(PROMPT, PARAMS, 400)


def test_running_answers_are_resumed_elsewhere_and_the_ticket_comes_at_once() -> None:
    async def scene(cluster: VirtualCluster) -> None:
        tasks = await begun(cluster, 8)
        cluster.router.operations.drain("d1", hand_over=True)
        async with asyncio.timeout(1.0):
            while not cluster.router.operations.member("d1").load.drain.has_ticket:
                await asyncio.sleep(0.01)
        assert not any(task.done() for task in tasks)
        assert rows_at(cluster, "d2") == 8
        await answered(tasks)
        counters = cluster.status().counters
        assert 0 < counters["resumes.handed_over"] <= 8
        await cluster.settle()

    play(scene, Shape(roles=("p", "d", "d")))


def test_what_finds_no_room_elsewhere_runs_on_until_there_is_some() -> None:
    async def scene(cluster: VirtualCluster) -> None:
        tasks = await begun(cluster, 8)
        assert (rows_at(cluster, "d1"), rows_at(cluster, "d2")) == (4, 4)
        cluster.router.operations.drain("d1", hand_over=True)
        await asyncio.sleep(0.2)
        assert rows_at(cluster, "d1") == 3  # five rows at most, and four are there
        await answered(tasks)
        await cluster.settle()

    play(scene, Shape(roles=("p", "d", "d"), decode_rows=5))


def test_without_another_worker_nothing_is_handed_over_and_nothing_fails() -> None:
    async def scene(cluster: VirtualCluster) -> None:
        tasks = await begun(cluster, 3)
        cluster.router.operations.drain("d1", hand_over=True)
        await answered(tasks)
        assert not cluster.status().counters["resumes.handed_over"]

    play(scene)
