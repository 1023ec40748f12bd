"""What a router has said to a worker holds, whatever became of the stream that it was said on."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

import pytest

from twolane.deploy.virtual_cluster.cluster import Shape, VirtualCluster, virtual_cluster
from twolane.engine.fake import expected_answer
from twolane.errors import TwolaneError
from twolane.params import SamplingParams
from twolane.router.members.member import Member, MemberState
from twolane.testing.virtual_time import virtual_time_runner

PARAMS = SamplingParams(max_tokens=8, seed=1)


def play(scene: Callable[[VirtualCluster], Awaitable[None]], shape: Shape | None = None) -> None:
    async def main() -> None:
        async with virtual_cluster(shape or Shape()) as cluster:
            await scene(cluster)

    with virtual_time_runner() as runner:
        runner.run(main())


def member(cluster: VirtualCluster, worker_id: str) -> Member:
    members = cluster.router._dispatcher.members
    return next(m for m in members if m.worker_id == worker_id and m.state is not MemberState.GONE)


async def cut(cluster: VirtualCluster, worker_id: str) -> None:
    """The session breaks, and is not open again yet."""
    cluster.reset_streams(worker_id)
    while member(cluster, worker_id).is_open:
        await asyncio.sleep(0.0001)


async def ask(cluster: VirtualCluster, prompt: list[int]) -> list[int]:
    tokens = await cluster.ask(prompt, PARAMS)
    return [token.token_id for token in tokens]


def test_undo_of_a_drain_holds_when_the_session_was_down_just_then() -> None:
    async def scene(cluster: VirtualCluster) -> None:
        cluster.router.operations.drain("d1")
        await asyncio.sleep(1.5)
        assert cluster.lives["d1"].worker.load().draining
        await cut(cluster, "d1")
        cluster.router.operations.drain("d1", undo=True)
        async with asyncio.timeout(2.0):
            assert await ask(cluster, [1, 2, 3]) == expected_answer([1, 2, 3], PARAMS, 8)
        assert not cluster.lives["d1"].worker.load().draining

    play(scene)


def test_drain_holds_when_the_session_was_down_just_then() -> None:
    async def scene(cluster: VirtualCluster) -> None:
        await cut(cluster, "d1")
        cluster.router.operations.drain("d1")
        await asyncio.sleep(0.5)
        assert cluster.lives["d1"].worker.load().draining

    play(scene)


def test_worker_that_stops_is_not_called_back_by_an_earlier_undo() -> None:
    async def scene(cluster: VirtualCluster) -> None:
        worker = cluster.lives["d1"].worker
        cluster.router.operations.drain("d1")
        cluster.router.operations.drain("d1", undo=True)
        await asyncio.sleep(0.5)
        worker.drain()
        await cut(cluster, "d1")
        await asyncio.sleep(0.5)
        assert worker.load().draining
        assert worker.is_drained

    play(scene)


@pytest.mark.parametrize("is_cut", [False, True])
def test_proof_of_a_death_reaches_a_worker_whose_session_was_down(is_cut: bool) -> None:
    async def scene(cluster: VirtualCluster) -> None:
        async def one() -> None:
            try:
                await ask(cluster, [5] * 400)
            except TwolaneError:
                return

        cluster.stalled.add("d1")
        asking = asyncio.create_task(one())
        await asyncio.sleep(0.5)
        decode = cluster.lives["d1"].worker
        epoch = await cluster.kill("p0")
        await asyncio.sleep(0.01)
        if is_cut:
            await cut(cluster, "d1")
        cluster.router.operations.report_gone(epoch)
        cluster.stalled.clear()
        cluster.start("p0", "p")
        await asyncio.sleep(1.0)
        assert decode.context.pages.counts().quarantined == 0
        await asking

    play(scene, Shape(sender_writes=True))


def test_pages_that_come_free_are_given_away_at_once() -> None:
    async def scene(cluster: VirtualCluster) -> None:
        source = random.Random(3)
        prompts = [[source.randrange(256) for _ in range(2_500)] for _ in range(6)]
        started = asyncio.get_running_loop().time()
        answers = await asyncio.gather(*(ask(cluster, prompt) for prompt in prompts))
        assert asyncio.get_running_loop().time() - started < 1.0
        assert answers == [expected_answer(prompt, PARAMS, 8) for prompt in prompts]

    play(scene, Shape(n_pages=256))
