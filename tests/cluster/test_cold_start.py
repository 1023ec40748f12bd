"""Requests that come when no worker is there, and a controller starts one for them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.cluster.test_virtual_cluster import play
from twolane.deploy.virtual_cluster.cluster import Shape, VirtualCluster
from twolane.engine.fake import expected_answer
from twolane.errors import OverloadedError, UnavailableError
from twolane.params import SamplingParams
from twolane.v1 import cluster_pb2

PARAMS = SamplingParams(max_tokens=4, seed=1)


def supervise(cluster: VirtualCluster, *, wakes: bool) -> cluster_pb2.Traffic:
    scaler = cluster_pb2.ScalerStatus(mode="on", ttft_s=0.5, gap_s=0.02, wakes=wakes)
    request = cluster_pb2.SuperviseRequest(controller_id="c", scaler=scaler)
    return cluster.router.operations.supervise(request).traffic


@asynccontextmanager
async def controlled(cluster: VirtualCluster, *, wakes: bool = True) -> AsyncIterator[None]:
    """A controller calls each second."""

    async def call() -> None:
        while True:
            supervise(cluster, wakes=wakes)
            await asyncio.sleep(1.0)

    calling = asyncio.create_task(call())
    await asyncio.sleep(0)
    try:
        yield
    finally:
        calling.cancel()


@pytest.mark.parametrize("away_s", [1.0, 300.0], ids=["gone", "forgotten"])
def test_first_request_of_an_empty_cluster_waits_for_the_worker_that_starts(away_s: float) -> None:
    async def scene(cluster: VirtualCluster) -> None:
        async with controlled(cluster):
            await cluster.ask([1, 2, 3], PARAMS)
            await cluster.kill("pd0")
            await asyncio.sleep(40.0 + away_s)
            assert supervise(cluster, wakes=True).waiting == 0
            assert cluster.router.can_serve(), "a balancer may send it requests"
            asking = asyncio.create_task(cluster.ask([5, 6, 7], PARAMS))
            await asyncio.sleep(90.0)
            assert supervise(cluster, wakes=True).waiting == 1
            cluster.start("pd1", "pd")
            answer = [token.token_id for token in await asking]
            assert answer == expected_answer([5, 6, 7], PARAMS, 4)
            assert supervise(cluster, wakes=True).waiting == 0

    play(Shape(roles=("pd",)), scene)


def test_nobody_waits_longer_where_no_worker_will_start() -> None:
    async def scene(cluster: VirtualCluster) -> None:
        async with controlled(cluster, wakes=False):
            await cluster.ask([1, 2, 3], PARAMS)
            await cluster.kill("pd0")
            await asyncio.sleep(40.0)
            assert not cluster.router.can_serve()
            with pytest.raises(UnavailableError):
                async with asyncio.timeout(12.0):
                    await cluster.ask([5, 6, 7], PARAMS)

    play(Shape(roles=("pd",)), scene)


def test_word_of_a_controller_that_is_gone_holds_nobody() -> None:
    async def scene(cluster: VirtualCluster) -> None:
        async with controlled(cluster):
            await cluster.ask([1, 2, 3], PARAMS)
        await cluster.kill("pd0")
        await asyncio.sleep(50.0)
        assert cluster.router.can_serve(), "it may come back"
        await asyncio.sleep(50.0)
        assert not cluster.router.can_serve()
        with pytest.raises(UnavailableError):
            async with asyncio.timeout(12.0):
                await cluster.ask([5, 6, 7], PARAMS)

    play(Shape(roles=("pd",)), scene)


def test_only_so_many_wait_for_a_worker_of_their_model() -> None:
    async def scene(cluster: VirtualCluster) -> None:
        async with controlled(cluster):
            await cluster.ask([1, 2, 3], PARAMS)
            await cluster.kill("pd0")
            await asyncio.sleep(300.0)
            most = cluster.router.config.admission.max_queued
            asking = [asyncio.create_task(cluster.ask([5, 6], PARAMS)) for _ in range(most)]
            await asyncio.sleep(1.0)
            with pytest.raises(OverloadedError, match=f"{most} requests wait"):
                await cluster.ask([5, 6], PARAMS)
            for task in asking:
                task.cancel()
            await asyncio.wait(asking)
            assert supervise(cluster, wakes=True).waiting == 0

    play(Shape(roles=("pd",)), scene)


def test_router_counts_what_comes_and_what_holds_the_slo() -> None:
    async def scene(cluster: VirtualCluster) -> None:
        async with controlled(cluster):
            await cluster.ask([1, 2, 3], PARAMS)
            first = supervise(cluster, wakes=True)
            assert (first.requests, first.prompt_tokens, first.answers) == (1, 3, 1)
            assert (first.answer_tokens, first.held) == (4, 1)
            scaler = cluster_pb2.ScalerStatus(ttft_s=1e-6, gap_s=1e-6)
            strict = cluster_pb2.SuperviseRequest(controller_id="c", scaler=scaler)
            cluster.router.operations.supervise(strict)
            await cluster.ask([4] * 40, PARAMS)
            after = cluster.router.operations.supervise(strict).traffic
            assert (after.answers, after.held) == (2, 1)

    play(Shape(roles=("pd",)), scene)
