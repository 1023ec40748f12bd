"""A router is lost or stops, and its clients' answers go on at another one, token for token."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from tests.cluster.test_virtual_cluster import Job, expected, make_jobs
from tests.cluster.virtual_routers import RoutedCluster, routed_cluster
from twolane.attempt_number import first_attempt
from twolane.deploy.virtual_cluster.cluster import Shape
from twolane.params import SamplingParams
from twolane.router.testing.client import resume
from twolane.rpc.params import params_to_proto
from twolane.testing.virtual_time import virtual_time_runner
from twolane.v1 import inference_pb2

LONG: Job = ([1, 2, 3, 4, 5], SamplingParams(max_tokens=200, seed=7))


def play(
    scene: Callable[[RoutedCluster], Awaitable[None]],
    roles: tuple[str, ...] = ("p", "d"),
    n_routers: int = 2,
    seed: int = 0,
) -> None:
    async def main() -> None:
        async with routed_cluster(Shape(roles=roles), n_routers, seed) as cluster:
            await scene(cluster)

    with virtual_time_runner(seed) as runner:
        runner.run(main())


async def asked_at(cluster: RoutedCluster, router_id: str, job: Job) -> asyncio.Task[list[int]]:
    """Begun at that router, and answered in part."""
    for name, life in cluster.routers.items():
        if name != router_id:
            life.pause()
    task = asyncio.create_task(cluster.ask_on(*job))
    status = cluster.routers[router_id].router.status
    while not any(request.output_tokens > 20 for request in status().requests):
        await asyncio.sleep(0.001)
    for life in cluster.routers.values():
        await life.resume() if life.is_paused else None
    return task


def test_killed_routers_answer_goes_on_without_a_new_attempt() -> None:
    async def scene(cluster: RoutedCluster) -> None:
        task = await asked_at(cluster, "r0", LONG)
        await cluster.routers["r0"].kill()
        assert await task == expected(LONG)
        counters = cluster.routers["r1"].router.status().counters
        assert (counters["adopted"], cluster.n_regenerated) == (1, 0)
        assert not any(name.startswith("resumes") for name in counters)
        await cluster.settle()

    play(scene)


@pytest.mark.parametrize("roles", [("pd",), ("p", "p", "d", "d"), ("pd", "p", "d")])
def test_crowd_of_a_killed_router_is_answered_by_another(roles: tuple[str, ...]) -> None:
    async def scene(cluster: RoutedCluster) -> None:
        jobs = make_jobs(24, seed=3, most_tokens=150)
        tasks = [asyncio.create_task(cluster.ask_on(*job)) for job in jobs]
        await asyncio.sleep(0.1)
        await cluster.routers["r0"].kill()
        for task, job in zip(tasks, jobs, strict=True):
            assert await task == expected(job)
        assert cluster.n_resumed
        await cluster.settle(within_s=8.0)

    play(scene, roles)


def test_paused_router_that_comes_back_disturbs_nothing() -> None:
    async def scene(cluster: RoutedCluster) -> None:
        task = await asked_at(cluster, "r0", LONG)
        cluster.routers["r0"].pause()
        await asyncio.sleep(0.2)
        await cluster.routers["r0"].resume()
        assert await task == expected(LONG)
        assert cluster.n_resumed == 1
        assert cluster.n_regenerated == 0
        await cluster.settle()

    play(scene)


def test_planned_stop_moves_streams_and_no_row_is_computed_again() -> None:
    async def scene(cluster: RoutedCluster) -> None:
        await asyncio.sleep(2.5)  # the routers know of each other
        task = await asked_at(cluster, "r0", LONG)
        stopping = cluster.routers["r0"]
        begun = asyncio.get_running_loop().time()
        await stopping.router.hand_over(5.0)
        assert asyncio.get_running_loop().time() - begun < 0.5
        await stopping.kill()
        assert await task == expected(LONG)
        assert (cluster.n_moved, cluster.n_regenerated) == (1, 0)
        counters = cluster.routers["r1"].router.status().counters
        assert not any(name.startswith("resumes") for name in counters)
        await cluster.settle()

    play(scene)


def test_router_alone_does_not_send_its_clients_away() -> None:
    async def scene(cluster: RoutedCluster) -> None:
        task = await asked_at(cluster, "r0", LONG)
        await cluster.router.hand_over(5.0)
        assert await task == expected(LONG)
        assert cluster.n_moved == 0

    play(scene, n_routers=1)


def test_answer_whose_rows_are_lost_with_its_router_is_computed_from_what_its_client_has() -> None:
    async def scene(cluster: RoutedCluster) -> None:
        task = await asked_at(cluster, "r0", LONG)
        await cluster.kill("d1")
        await cluster.routers["r0"].kill()
        cluster.start("d1", "d")
        assert await task == expected(LONG)
        assert cluster.n_regenerated == 1
        await cluster.settle(within_s=8.0)

    play(scene)


def test_restarted_router_takes_its_own_rows_over() -> None:
    async def scene(cluster: RoutedCluster) -> None:
        job = LONG[0], SamplingParams(max_tokens=1500, seed=7)
        task = await asked_at(cluster, "r0", job)
        await cluster.routers["r0"].kill()
        await cluster.start_router("r0")
        assert await task == expected(job)
        assert cluster.n_regenerated == 0

    play(scene, n_routers=1)


def test_attempts_after_a_takeover_have_names_of_their_own() -> None:
    """The worker dies after the takeover, and the paused router comes back and tries again too."""

    async def scene(cluster: RoutedCluster) -> None:
        task = await asked_at(cluster, "r0", LONG)
        cluster.routers["r0"].pause()
        successor = cluster.routers["r1"].router
        while not successor.status().requests:
            await asyncio.sleep(0.001)
        successor.operations.report_gone(await cluster.kill("d1"))
        cluster.start("d1", "d")
        await cluster.routers["r0"].resume()
        assert await task == expected(LONG)
        assert cluster.n_regenerated == 0
        assert first_attempt(1) in {number for _, number in cluster.witness.names}
        await cluster.settle(within_s=8.0)

    play(scene)


def test_answer_that_its_client_asks_for_again_at_the_same_router_goes_on_to_its_end() -> None:
    """What the first stream has left behind is cancelled two seconds later: not this."""

    async def scene(cluster: RoutedCluster) -> None:
        router = cluster.routers["r0"].router
        job: Job = ([1, 2, 3], SamplingParams(max_tokens=3_000, seed=7, ignore_eos=True))
        prompt, params = job
        asked = inference_pb2.GenerateRequest(
            token_ids=inference_pb2.TokenIds(ids=prompt), sampling=params_to_proto(params)
        )
        began = asyncio.get_running_loop().time()
        with await router.open(asked) as delivery:
            first = delivery.first()
            while len(delivery.request.answer.tokens) < 20:
                await asyncio.sleep(0.01)
            wanted = inference_pb2.ResumeRequest(
                submission_id=first.submission_id, resume_token=first.resume_token
            )
            tokens: list[int] = []
            async for response in resume(router, wanted):
                tokens += [token.token_id for token in response.tokens]
        assert tokens == expected(job)
        assert asyncio.get_running_loop().time() - began > 2.5
        assert not [name for name in router.status().counters if name.startswith("resumes")]
        await cluster.settle()

    play(scene)
