"""No wait without a way out: what stands still is noticed, and the request goes on elsewhere.

Every test states the bound that no request outlives, in seconds of virtual time.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence

import pytest

from engine.fake import expected_answer
from router.config import DispatchConfig
from tests.cluster.virtual_cluster import Outcome, Shape, VirtualCluster, virtual_cluster
from twolane.params import SamplingParams
from twolane.testing.virtual_time import virtual_time_runner

Scene = Callable[[VirtualCluster], Awaitable[None]]


def play(shape: Shape, scene: Scene) -> None:
    async def main() -> None:
        async with virtual_cluster(shape) as cluster:
            await scene(cluster)

    with virtual_time_runner() as runner:
        runner.run(main())


async def answer(
    cluster: VirtualCluster, n_prompt: int, n_answer: int, *, seed: int, after_s: float = 0.0
) -> Outcome:
    """A random prompt, and its right answer."""
    source = random.Random(seed)
    prompt = [source.randrange(256) for _ in range(n_prompt)]
    params = SamplingParams(max_tokens=n_answer, seed=seed)
    await asyncio.sleep(after_s)
    outcome = await cluster.outcome(prompt, params)
    assert outcome.tokens == expected_answer(prompt, params, n_answer)
    return outcome


async def answers(
    cluster: VirtualCluster, sizes: Sequence[int], n_answer: int = 8, *, every_s: float = 0.0
) -> list[Outcome]:
    """Prompts of these sizes, one every so often."""
    asked = [answer(cluster, n, n_answer, seed=i, after_s=i * every_s) for i, n in enumerate(sizes)]
    return await asyncio.gather(*asked)


def resumes(cluster: VirtualCluster) -> dict[str, int]:
    counters = cluster.status().counters
    return {name: n for name, n in counters.items() if name.startswith("resumes.")}


LONG = (3000,) * 6  # more than a prefill worker computes at once: some wait in its queue


def test_dial_that_fails_while_rows_wait_for_their_turn_costs_no_attempt() -> None:
    async def scene(cluster: VirtualCluster) -> None:
        cluster.dials_to_fail["d2"] = 2
        outcomes = await answers(cluster, LONG)
        assert max(o.took_s for o in outcomes) < 1.0
        assert not resumes(cluster)

    play(Shape(roles=("p", "d", "d"), n_pages=2048), scene)


def test_stream_that_is_reset_while_rows_wait_for_their_turn_costs_no_attempt() -> None:
    async def scene(cluster: VirtualCluster) -> None:
        asked = asyncio.create_task(answers(cluster, LONG))
        await asyncio.sleep(0.02)
        cluster.reset_streams("d2")
        outcomes = await asked
        assert max(o.took_s for o in outcomes) < 1.0
        assert not resumes(cluster)

    play(Shape(roles=("p", "d", "d"), n_pages=2048), scene)


@pytest.mark.parametrize("n_failures", [1, 3])
def test_transport_that_fails_to_open_costs_a_moment_and_not_the_pair(n_failures: int) -> None:
    async def scene(cluster: VirtualCluster) -> None:
        cluster.opens_to_fail["d1"] = n_failures
        outcomes = await answers(cluster, (20,) * 60, every_s=0.1)
        assert max(o.took_s for o in outcomes) < 2.0
        late = outcomes[30:]
        assert all(o.ledger.attempts == 1 for o in late)
        await cluster.settle()

    play(Shape(dispatch=DispatchConfig()), scene)


def test_pair_without_a_transport_sends_its_requests_elsewhere() -> None:
    async def scene(cluster: VirtualCluster) -> None:
        cluster.opens_to_fail["d1"] = 1_000_000
        outcomes = await answers(cluster, (20,) * 20, every_s=0.1)
        assert max(o.took_s for o in outcomes) < 2.0
        assert {o.ledger.decode_worker for o in outcomes} == {"d2"}

    play(Shape(roles=("p", "d", "d"), dispatch=DispatchConfig()), scene)
