"""Several routers drain one worker: the last word that an operator gave to any of them holds."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from tests.cluster.virtual_routers import RoutedCluster, RouterLife, routed_cluster
from twolane.deploy.virtual_cluster.cluster import Shape
from twolane.router.members.member import MemberState
from twolane.testing.virtual_time import virtual_time_runner

D = "d1"


def play(scene: Callable[[RoutedCluster], Awaitable[None]]) -> None:
    async def main() -> None:
        async with routed_cluster(Shape(), 2) as cluster:
            await scene(cluster)

    with virtual_time_runner() as runner:
        runner.run(main())


def drains(cluster: RoutedCluster) -> bool:
    return cluster.lives[D].worker.load().draining


def states(cluster: RoutedCluster) -> set[MemberState]:
    return {life.router.operations.member(D).state for life in cluster.routers.values()}


async def away(life: RouterLife) -> None:
    """It has no session with the worker."""
    life.cut(D)
    while life.router.operations.member(D).is_open:
        await asyncio.sleep(0.01)


async def back(life: RouterLife) -> None:
    life.heal(D)
    while not life.router.operations.member(D).is_open:
        await asyncio.sleep(0.01)
    await asyncio.sleep(1.5)  # a report of the worker, and what follows from it


@pytest.mark.parametrize("is_heard", [False, True])
def test_router_that_comes_back_repeats_no_drain_that_another_one_has_undone(
    is_heard: bool,
) -> None:
    async def scene(cluster: RoutedCluster) -> None:
        first, other = cluster.routers.values()
        first.router.operations.drain(D)
        if is_heard:
            await asyncio.sleep(1.5)
        else:  # it arrives, and its router does not know
            while not drains(cluster):
                await asyncio.sleep(0.0001)
        await away(first)
        other.router.operations.drain(D, undo=True)
        await asyncio.sleep(1.5)
        assert not drains(cluster)
        await back(first)
        assert not drains(cluster)
        assert states(cluster) == {MemberState.ALIVE}

    play(scene)


@pytest.mark.parametrize("is_heard", [False, True])
def test_router_that_comes_back_repeats_no_undo_of_a_drain_that_is_over(is_heard: bool) -> None:
    async def scene(cluster: RoutedCluster) -> None:
        first, other = cluster.routers.values()
        other.router.operations.drain(D)
        await asyncio.sleep(1.5)
        if is_heard:
            first.router.operations.drain(D, undo=True)
            await asyncio.sleep(1.5)
            assert not drains(cluster)
            await away(first)
        else:
            await away(first)
            first.router.operations.drain(D, undo=True)
            other.router.operations.drain(D, undo=True)
            await asyncio.sleep(1.5)
        other.router.operations.drain(D)
        await asyncio.sleep(1.5)
        await back(first)
        assert drains(cluster)
        assert states(cluster) == {MemberState.DRAINING}

    play(scene)


def test_drain_and_undo_that_did_not_arrive_are_said_again() -> None:
    async def scene(cluster: RoutedCluster) -> None:
        first, _ = cluster.routers.values()
        await away(first)
        first.router.operations.drain(D)
        await back(first)
        assert drains(cluster)
        await away(first)
        first.router.operations.drain(D, undo=True)
        await back(first)
        assert not drains(cluster)
        await away(first)
        first.router.operations.drain(D)
        first.router.operations.drain(D, undo=True)
        await back(first)
        assert not drains(cluster)
        assert states(cluster) == {MemberState.ALIVE}

    play(scene)


def test_worker_that_a_router_drained_starts_again_and_drains_at_all_of_them() -> None:
    async def scene(cluster: RoutedCluster) -> None:
        first, other = cluster.routers.values()
        first.router.operations.drain(D)
        await asyncio.sleep(1.5)
        epoch = await cluster.kill(D)
        for life in (first, other):
            life.router.operations.report_gone(epoch)
        cluster.start(D, "d")
        await asyncio.sleep(2.0)
        assert drains(cluster)
        assert states(cluster) == {MemberState.DRAINING}
        other.router.operations.drain(D, undo=True)
        await asyncio.sleep(1.5)
        assert not drains(cluster)
        epoch = await cluster.kill(D)
        for life in (first, other):
            life.router.operations.report_gone(epoch)
        cluster.start(D, "d")
        await asyncio.sleep(2.0)
        assert states(cluster) == {MemberState.ALIVE}

    play(scene)
