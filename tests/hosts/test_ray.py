"""A cluster on a real Ray over two hosts."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.hosts.answers import answers_of, one_machines_answers
from tests.hosts.fake_hosts import Network
from tests.hosts.load import Load, load_on, until
from tests.hosts.ray_hosts import RayHosts, wait_until
from twolane.admin import AdminClient
from twolane.status import ClusterStatus

OPTIONS = "--host {ip} --ports 7300-7399 --insecure"
pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module")
def ray() -> Iterator[RayHosts]:
    with tempfile.TemporaryDirectory() as log_dir, Network() as network:
        ray = RayHosts([network.host("a"), network.host("b")], Path(log_dir))
        ray.start()
        yield ray


def status(ray: RayHosts) -> ClusterStatus:
    (socket,) = (ray.hosts[0].root / "tmp").glob("twolane-*/admin.sock")
    with AdminClient(f"unix:{socket}") as admin:
        return admin.status()


def epochs(ray: RayHosts) -> dict[str, int]:
    """Of the workers that are alive, by name."""
    return {w.worker_id: w.epoch for w in status(ray).workers if w.state == "alive"}


def test_a_cluster_over_two_hosts_answers_as_one_machine_does_and_leaves_nothing(
    ray: RayHosts,
) -> None:
    a, b = ray.hosts
    (*_, ready) = ray.up(a, f"--exact --prefill 1 --decode 1 {OPTIONS.format(ip=a.ip)}")
    assert ready["kind"] == "ready"
    assert answers_of(ready["endpoint"]) == one_machines_answers()
    seen = status(ray)
    assert {w.worker_id: w.host for w in seen.workers} == {"prefill-0": "a", "decode-0": "b"}
    (peer,) = next(w for w in seen.workers if w.worker_id == "decode-0").transports
    assert peer.transport == "tcp"
    assert " b " in ray.twolane(a, "status")
    (*_, again) = ray.up(a, f"--exact --prefill 1 --decode 1 {OPTIONS.format(ip=a.ip)}")
    assert again == ready, "a second `up` finds the cluster"
    ray.down(a)
    wait_until(lambda: not (ray.ours(a) + ray.ours(b)), 10)


@asynccontextmanager
async def under_load(ray: RayHosts) -> AsyncIterator[Load]:
    """A cluster of fake engines, two workers of each role, and streams before, during and after."""
    a = ray.hosts[0]
    options = f"--engine fake --prefill 2 --decode 2 {OPTIONS.format(ip=a.ip)}"
    (*_, ready) = await asyncio.to_thread(ray.up, a, options)
    async with load_on(ready["endpoint"], streams=4) as load:
        await until(load, 4)
        yield load
        await until(load, 8)
    assert load.failures == []
    await asyncio.to_thread(ray.down, a)
    wait_until(lambda: not (ray.ours(a) + ray.ours(ray.hosts[1])), 10)


async def in_time(holds: Callable[[], bool], within_s: float) -> None:
    """Wait for it while the load runs."""
    await asyncio.to_thread(wait_until, holds, within_s)


async def test_agents_and_the_controller_may_be_killed(ray: RayHosts) -> None:
    a, b = ray.hosts
    async with under_load(ray):
        before = epochs(ray)
        everybody = 3 + 5  # the controller and two agents; the router and four workers
        ray.kill(a, "ray::ControllerActor")
        ray.kill(b, "ray::AgentActor")
        await in_time(lambda: len(ray.ours(a) + ray.ours(b)) == everybody, 60)
        assert epochs(ray) == before, "what served serves on"
        b.run("kill -9 $(pgrep -f 'twolane.deploy worker' | head -1)")
        await in_time(lambda: len(epochs(ray)) == 4 and epochs(ray) != before, 60)


async def lose_the_control_store(ray: RayHosts, for_s: float) -> None:
    a, _b = ray.hosts
    async with under_load(ray) as load:
        before = epochs(ray)
        ray.kill(a, ".*gcs_server", "STOP")
        await asyncio.sleep(for_s)
        load.check(silence_s=5.0)
        ray.kill(a, ".*gcs_server", "CONT")
        await until(load, 4)
        assert epochs(ray) == before
        assert ray.n_alive() == 2


async def test_rays_control_store_may_be_away(ray: RayHosts) -> None:
    await lose_the_control_store(ray, 5.0)


@pytest.mark.soak
async def test_rays_control_store_may_be_away_for_longer_than_a_minute(ray: RayHosts) -> None:
    await lose_the_control_store(ray, 75.0)


async def test_what_a_killed_raylet_had_comes_back_with_the_next(ray: RayHosts) -> None:
    _a, b = ray.hosts
    async with under_load(ray) as load:
        before = epochs(ray)
        ray.kill(b, ".*raylet/raylet ")
        await until(load, 4)
        ray.start_on(b)
        await in_time(lambda: len(ray.ours(b)) == 3 and len(epochs(ray)) == 4, 90)
        print("raylet", before == epochs(ray))


async def freeze_a_host(ray: RayHosts, for_s: float) -> None:
    a, b = ray.hosts
    async with under_load(ray) as load:
        before = epochs(ray)
        processes = ray.ours(a)
        b.freeze()
        await asyncio.sleep(for_s)
        load.check(silence_s=5.0)
        seen = {host.name: host for host in status(ray).hosts}
        assert seen["b"].state == "silent"
        assert {*seen["b"].workers} == {name for name in before if name not in epochs(ray)}
        assert ray.ours(a) == processes, "nothing is started in place of what is silent"
        b.thaw()
        await in_time(lambda: len(epochs(ray)) == 4, 60)
        print("freeze", before == epochs(ray))


async def test_a_frozen_host_keeps_its_seats(ray: RayHosts) -> None:
    await freeze_a_host(ray, 8.0)


@pytest.mark.soak
async def test_a_host_that_ray_calls_dead_keeps_its_seats(ray: RayHosts) -> None:
    await freeze_a_host(ray, 90.0)
