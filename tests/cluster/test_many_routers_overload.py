"""Several routers before the same workers, each of which knows its own requests at once and those
of the others by the workers' reports, lose little to one router that knows all."""

from __future__ import annotations

import asyncio
import random
from contextlib import aclosing

import pytest

from tests.cluster.virtual_routers import RoutedCluster, routed_cluster
from twolane.deploy.virtual_cluster.cluster import Shape
from twolane.errors import TwolaneError
from twolane.params import SamplingParams
from twolane.router.router import Router
from twolane.rpc.params import params_to_proto
from twolane.testing.virtual_time import virtual_time_runner
from twolane.v1 import inference_pb2

CAPACITY_PER_S = 300  # requests that the cluster below answers, about
TIME_LEFT_S = 1.0


async def answered(router: Router, asked: inference_pb2.GenerateRequest) -> int:
    """Tokens of an answer that came in time, else 0."""
    n_tokens = 0
    try:
        async with aclosing(router.generate(asked, time_left_s=TIME_LEFT_S)) as answer:
            async for response in answer:
                n_tokens += len(response.tokens)
    except TwolaneError:
        return 0
    return n_tokens


async def burst(cluster: RoutedCluster, rate_per_s: float, for_s: float) -> float:
    """Tokens a second of answers that came in time; each router gets its part of the requests."""
    rng, loop = random.Random(5), asyncio.get_running_loop()
    routers = [life.router for life in cluster.routers.values()]
    works, until = [], loop.time() + for_s
    while loop.time() < until:
        await asyncio.sleep(rng.expovariate(rate_per_s))
        prompt = [rng.randrange(200) for _ in range(rng.randint(50, 350))]
        params = SamplingParams(max_tokens=rng.randint(8, 56), seed=1, ignore_eos=True)
        asked = inference_pb2.GenerateRequest(
            token_ids=inference_pb2.TokenIds(ids=prompt), sampling=params_to_proto(params)
        )
        works.append(asyncio.create_task(answered(rng.choice(routers), asked)))
    n_tokens = sum(await asyncio.gather(*works))
    await cluster.settle(within_s=20.0)
    return n_tokens / for_s


def goodput(n_routers: int, overload: float, for_s: float) -> float:
    async def main() -> float:
        shape = Shape(roles=("p", "p", "d", "d"), n_pages=400)
        async with routed_cluster(shape, n_routers) as cluster:
            return await burst(cluster, overload * CAPACITY_PER_S, for_s)

    with virtual_time_runner() as runner:
        return runner.run(main())


@pytest.mark.parametrize(
    ("overload", "for_s", "least"),
    [
        (5.0, 1.2, 0.9),  # the routers' first estimates weigh more in a short run
        pytest.param(10.0, 1.5, 0.95, marks=[pytest.mark.soak, pytest.mark.timeout(900)]),
    ],
)
def test_three_routers_have_the_goodput_of_one_when_far_more_is_asked_than_can_be_answered(
    overload: float, for_s: float, least: float
) -> None:
    one, three = (goodput(n, overload, for_s) for n in (1, 3))
    print(
        f"goodput at {overload:g} times the load: one router {one:.0f} tokens/s, three {three:.0f}"
    )
    assert three >= least * one
