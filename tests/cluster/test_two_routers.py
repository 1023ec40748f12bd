"""Two routers before the same workers: neither reads, stops or throws out what is the other's."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from twolane.deploy.virtual_cluster.cluster import Shape, VirtualCluster, virtual_cluster
from twolane.engine.fake import expected_answer
from twolane.errors import DuplicateRequestError
from twolane.params import SamplingParams
from twolane.router.config import RouterConfig
from twolane.router.router import Router
from twolane.rpc.params import params_to_proto
from twolane.testing.virtual_time import virtual_time_runner
from twolane.v1 import inference_pb2
from twolane.worker.doors.announcer import Announcer

PARAMS = SamplingParams(max_tokens=60, seed=1)
MINE, THEIRS = [1, 2, 3], [4, 5, 6, 7]


async def ask(router: Router, prompt: list[int], request_id: str = "") -> list[int]:
    request = inference_pb2.GenerateRequest(
        request_id=request_id,
        token_ids=inference_pb2.TokenIds(ids=prompt),
        sampling=params_to_proto(PARAMS),
    )
    tokens: list[int] = []
    async for response in router.generate(request):
        tokens += [token.token_id for token in response.tokens]
    return tokens


@asynccontextmanager
async def second_router(cluster: VirtualCluster, router_id: str) -> AsyncIterator[Router]:
    """Workers announce themselves to it too."""

    async def announce() -> None:
        while True:
            for life in cluster.lives.values():
                router.announce(Announcer(life.worker, metrics_endpoint="").describe())
            await asyncio.sleep(1.0)

    async with Router(RouterConfig(router_id=router_id), cluster) as router:
        announcing = asyncio.create_task(announce())
        await asyncio.sleep(0.5)
        yield router
        announcing.cancel()


def play(scene: Callable[[VirtualCluster, Router], Awaitable[None]], router_id: str) -> None:
    async def main() -> None:
        async with virtual_cluster(Shape()) as cluster, second_router(cluster, router_id) as other:
            await scene(cluster, other)
            await cluster.settle()

    with virtual_time_runner() as runner:
        runner.run(main())


def test_one_id_at_two_routers_is_answered_by_one_and_refused_by_the_other_at_once() -> None:
    async def scene(cluster: VirtualCluster, other: Router) -> None:
        mine = asyncio.create_task(ask(cluster.router, MINE, "job-1"))
        await asyncio.sleep(0.01)
        started = asyncio.get_running_loop().time()
        try:
            await ask(other, THEIRS, "job-1")
            raise AssertionError("two requests ran under one id")
        except DuplicateRequestError:
            assert asyncio.get_running_loop().time() - started < 0.1
        assert await mine == expected_answer(MINE, PARAMS, 60)
        assert await ask(other, THEIRS, "job-1") == expected_answer(THEIRS, PARAMS, 60)

    play(scene, "router-1")


def test_two_routers_answer_side_by_side() -> None:
    async def scene(cluster: VirtualCluster, other: Router) -> None:
        prompts = [[n, n + 1, n + 2] for n in range(12)]
        routers = [cluster.router, other] * 6
        answers = await asyncio.gather(*map(ask, routers, prompts))
        for prompt, answer in zip(prompts, answers, strict=True):
            assert answer == expected_answer(prompt, PARAMS, 60)
        for router in (cluster.router, other):
            assert router.status().counters["attempts"] == 6
        assert not any(life.worker.dropped() for life in cluster.lives.values())

    play(scene, "router-1")


def test_second_router_of_the_same_id_disturbs_no_request_of_the_first() -> None:
    async def scene(cluster: VirtualCluster, other: Router) -> None:
        assert cluster.router.config.router_id == other.config.router_id
        for _ in range(10):
            assert await ask(cluster.router, MINE) == expected_answer(MINE, PARAMS, 60)
            await asyncio.sleep(1.0)
        assert not other.can_serve()
        counters = cluster.status().counters
        assert counters["attempts"] == 10
        assert not any(name.startswith("resumes") for name in counters)
        assert all(worker.state == "alive" for worker in cluster.status().workers)

    play(scene, "router-0")


def test_router_that_starts_again_under_its_id_is_served_at_once() -> None:
    async def main() -> None:
        async with virtual_cluster(Shape()) as cluster:
            for _ in range(3):
                await cluster.router.__aexit__(None, None, None)
                cluster.router = Router(RouterConfig(), cluster)
                await cluster.router.__aenter__()
                async with asyncio.timeout(2.5):
                    assert await ask(cluster.router, MINE) == expected_answer(MINE, PARAMS, 60)

    with virtual_time_runner() as runner:
        runner.run(main())
