"""A client's id that comes again, right after its first answer or amid it: each submission gets the
answer to its own prompt, and at once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import pytest

from twolane.deploy.virtual_cluster.cluster import Shape, VirtualCluster, virtual_cluster
from twolane.engine.fake import expected_answer
from twolane.params import SamplingParams
from twolane.testing.virtual_time import virtual_time_runner

FIRST, SECOND = [1, 2, 3, 4, 5], [9, 8, 7, 6, 5, 4, 3]
PARAMS = SamplingParams(max_tokens=10, seed=1)
PAIR, CROWD, BOTH = ("p", "d"), ("p", "p", "d", "d"), ("pd",)


def play(scene: Callable[[VirtualCluster], Awaitable[None]], roles: Sequence[str] = PAIR) -> None:
    async def main() -> None:
        async with virtual_cluster(Shape(roles=roles)) as cluster:
            await scene(cluster)
            await cluster.settle()

    with virtual_time_runner() as runner:
        runner.run(main())


async def answer(cluster: VirtualCluster, prompt: list[int]) -> None:
    """Asked under the one id, within a second, and right."""
    async with asyncio.timeout(1.0):
        tokens = await cluster.ask(prompt, PARAMS, request_id="order-7")
    assert [token.token_id for token in tokens] == expected_answer(prompt, PARAMS, 10)


@pytest.mark.parametrize("roles", [PAIR, CROWD, BOTH])
def test_id_of_an_answer_that_has_ended_is_good_for_another_prompt(roles: Sequence[str]) -> None:
    async def scene(cluster: VirtualCluster) -> None:
        for prompt in (FIRST, SECOND, FIRST):
            await answer(cluster, prompt)
        assert not any(life.worker.dropped() for life in cluster.lives.values())

    play(scene, roles)


@pytest.mark.parametrize("at_ms", range(1, 20, 3))
def test_streams_that_are_cut_do_not_bring_back_the_earlier_answer(at_ms: int) -> None:
    async def scene(cluster: VirtualCluster) -> None:
        await answer(cluster, FIRST)
        second = asyncio.create_task(answer(cluster, SECOND))
        await asyncio.sleep(at_ms / 1000)
        for worker_id in list(cluster.lives):
            cluster.reset_streams(worker_id)
        await second

    play(scene)


@pytest.mark.parametrize("roles", [PAIR, BOTH])
def test_client_that_hangs_up_and_asks_again_gets_the_answer_to_its_new_prompt(
    roles: Sequence[str],
) -> None:
    async def scene(cluster: VirtualCluster) -> None:
        for half_ms in range(40):
            left = asyncio.create_task(cluster.ask(FIRST * 60, PARAMS, request_id="order-7"))
            await asyncio.sleep(0.0005 * half_ms)
            left.cancel()
            await asyncio.wait([left])
            await answer(cluster, SECOND)

    play(scene, roles)
