"""Of several controllers one acts, on a fake API server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tests.deploy.kubernetes.fake_api import LEASES, NAMESPACE, FakeApi
from tests.until import until
from twolane.deploy.errors import DeposedError, StartError
from twolane.deploy.kubernetes.api import ApiConfig, KubernetesApi
from twolane.deploy.kubernetes.hosts import KubernetesHosts
from twolane.deploy.kubernetes.lease import ControllerLease, LeaseConfig
from twolane.deploy.spec.host_sets import KubernetesOptions

CONFIG = LeaseConfig(name="c", renew_s=0.01)


class Clock:
    """Of one controller. It runs on while that controller is frozen. `n_asked`: how often."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.n_asked = 0

    def __call__(self) -> float:
        self.n_asked += 1
        return self.now_s


class World:
    def __init__(self, server: FakeApi, api: KubernetesApi) -> None:
        self.server = server
        self._api = api

    def lease(self, clock: Clock) -> ControllerLease:
        return ControllerLease(self._api, CONFIG, clock)

    @property
    def holder(self) -> str:
        return str(self.server.leases["c"]["spec"]["holderIdentity"])


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with (
        FakeApi() as server,
        KubernetesApi(ApiConfig(url=server.url, namespace=NAMESPACE)) as api,
    ):
        yield World(server, api)


async def looks_again(clock: Clock, task: asyncio.Task[None]) -> None:
    """Return when the controller has looked several times, or has ended."""
    n_asked = clock.n_asked
    await until(lambda: clock.n_asked >= n_asked + 3 or task.done())  # each look asks its clock


@asynccontextmanager
async def acquiring(lease: ControllerLease, clock: Clock) -> AsyncIterator[asyncio.Task[None]]:
    """It waits as long as it must; it has looked several times by now."""
    task = asyncio.create_task(lease.acquire())
    await looks_again(clock, task)
    yield task
    async with asyncio.timeout(60):
        await task


async def test_a_second_controller_waits_until_the_first_one_has_ended(world: World) -> None:
    clock = Clock()
    first, second = world.lease(Clock()), world.lease(clock)
    await first.acquire()
    async with acquiring(second, clock) as waiting:
        assert not waiting.done()
        assert (first.is_held, second.is_held) == (True, False)
        assert world.holder == first.holder
        await first.release()
        assert not first.is_held
    assert second.is_held
    spec = world.server.leases["c"]["spec"]
    assert (spec["holderIdentity"], spec["leaseTransitions"]) == (second.holder, 1)


async def test_a_lease_that_is_not_renewed_is_taken_after_it_has_lasted(world: World) -> None:
    clock = Clock()
    await world.lease(Clock()).acquire()
    async with acquiring(second := world.lease(clock), clock) as waiting:
        clock.now_s = CONFIG.lasts_s - 0.1
        await looks_again(clock, waiting)
        assert not waiting.done()
        clock.now_s = CONFIG.lasts_s
    assert second.is_held


async def test_a_lease_that_is_renewed_is_not_taken(world: World) -> None:
    first, clock = world.lease(Clock()), Clock()
    await first.acquire()
    async with acquiring(world.lease(clock), clock) as waiting:
        for _ in range(3):
            clock.now_s += CONFIG.lasts_s - 0.1
            await first.acquire()  # which renews it
            await looks_again(clock, waiting)
            assert not waiting.done()
        await first.release()


async def test_a_controller_that_was_frozen_does_not_hold_it_and_is_deposed(world: World) -> None:
    clock = Clock()
    await (first := world.lease(clock)).acquire()
    clock.now_s = CONFIG.held_s
    late = Clock()
    async with acquiring(second := world.lease(late), late):
        assert not first.is_held
        late.now_s = CONFIG.lasts_s
    with pytest.raises(DeposedError, match=second.holder):
        async with asyncio.timeout(30):
            await first.keep()
    assert not first.is_held
    await first.release()
    assert world.holder == second.holder, "it is not its own any more"


async def test_who_could_not_renew_in_time_holds_it_again_if_nobody_has_taken_it(
    world: World,
) -> None:
    clock = Clock()
    await (lease := world.lease(clock)).acquire()
    world.server.busy = 3
    clock.now_s = CONFIG.held_s
    keeping = asyncio.create_task(lease.keep())
    seen = [lease.is_held]
    async with asyncio.timeout(60):
        while not seen[-1]:
            await asyncio.sleep(0.01)
            seen.append(lease.is_held)
    assert seen[0] is False
    keeping.cancel()
    await asyncio.wait([keeping])


async def test_of_two_that_take_it_at_once_one_has_it(world: World) -> None:
    leases = [world.lease(Clock()) for _ in range(4)]
    tasks = [asyncio.create_task(lease.acquire()) for lease in leases]
    async with asyncio.timeout(60):
        for _ in leases:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            (held,) = [lease for lease in leases if lease.is_held]
            assert held.holder == world.holder
            tasks = [task for task in tasks if not task.done()]
            await held.release()
            if not tasks:
                break


async def test_a_controller_starts_with_the_lease_alone(world: World) -> None:
    broken = asyncio.get_running_loop().create_future()
    config = ApiConfig(url=world.server.url, namespace=NAMESPACE)

    def hosts() -> KubernetesHosts:
        return KubernetesHosts(KubernetesOptions(lease="c"), config, broken.set_exception)

    async with hosts():
        second = hosts()
        entering = asyncio.create_task(second.__aenter__())
        done, _ = await asyncio.wait([entering], timeout=0.3)
        assert not done
    async with asyncio.timeout(60):
        await entering
    await second.__aexit__(None, None, None)
    assert world.holder == ""
    assert not broken.done()


async def test_without_an_answer_no_controller_starts(world: World) -> None:
    world.server.busy = 1
    with pytest.raises(StartError, match="the Lease c"):
        await world.lease(Clock()).acquire()


async def test_a_token_that_cannot_be_read_now_and_a_broken_answer_end_no_controller(
    tmp_path: Path,
) -> None:
    token = tmp_path / "token"
    token.write_text("secret")
    is_broken = False

    async def lease(request: Request) -> Response:
        if is_broken:
            return Response("<html>a proxy</html>")
        return await server._lease(request)

    routes = [Route("/proxied" + LEASES + "/{name}", lease, methods=["GET", "PATCH"])]
    async with FakeApi(more=lambda _: routes) as server:
        server.leases["c"] = {"metadata": {"resourceVersion": "1"}, "spec": {}}
        config = ApiConfig(url=f"{server.url}/proxied", namespace=NAMESPACE, token=token)
        async with KubernetesApi(config) as api:
            clock = Clock()
            held = ControllerLease(api, CONFIG, clock)
            await held.acquire()
            keeping = asyncio.create_task(held.keep())
            token.rename(tmp_path / "former")
            await asyncio.sleep(10 * CONFIG.renew_s)
            is_broken = True
            (tmp_path / "former").rename(token)
            await asyncio.sleep(10 * CONFIG.renew_s)
            is_broken = False
            await looks_again(clock, keeping)
            assert not keeping.done()
            keeping.cancel()
