"""Requests whose answers are checked, and whose time is taken, in a virtual cluster."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence

from twolane.deploy.virtual_cluster.cluster import Shape, VirtualCluster, virtual_cluster
from twolane.deploy.virtual_cluster.worker import Outcome
from twolane.engine.fake import expected_answer
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
    cluster: VirtualCluster,
    n_prompt: int,
    n_answer: int,
    *,
    seed: int,
    after_s: float = 0.0,
    priority: int = 0,
) -> Outcome:
    """A random prompt, and its right answer."""
    source = random.Random(seed)
    prompt = [source.randrange(256) for _ in range(n_prompt)]
    params = SamplingParams(max_tokens=n_answer, seed=seed)
    await asyncio.sleep(after_s)
    outcome = await cluster.outcome(prompt, params, priority=priority)
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
