"""A cluster on a real Ray over two hosts."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Iterator
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
pytestmark = pytest.mark.timeout(240)


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


async def test_agents_and_the_controller_may_be_killed(ray: RayHosts) -> None:
    a, b = ray.hosts
    async with under_load(ray):
        before = epochs(ray)
        assert len(before) == 4
        ray.kill(a, "ray::ControllerActor")
        ray.kill(b, "ray::AgentActor")
        await asyncio.to_thread(wait_until, lambda: len(ray.ours(a) + ray.ours(b)) == 3 + 5, 60)
        assert epochs(ray) == before, "what served serves on"
        victim = next(w for w in status(ray).workers if w.host == "b")
        b.run("kill -9 $(pgrep -f 'twolane.deploy worker' | head -1)")
        await asyncio.to_thread(
            wait_until, lambda: len(epochs(ray)) == 4 and epochs(ray) != before, 60
        )
        assert victim
