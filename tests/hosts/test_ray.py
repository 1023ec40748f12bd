"""A cluster on a real Ray over two hosts."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.hosts.answers import answers_at, one_machines_answers
from tests.hosts.certificates import FLAGS, give_certificates
from tests.hosts.fake_hosts import Network
from tests.hosts.load import Load, load_on, until
from tests.hosts.ray_hosts import RayHosts, wait_until
from twolane.admin import AdminClient
from twolane.status import ClusterStatus

AGENT, CONTROLLER = "ray::AgentActor", "ray::ControllerActor"  # titles
OPTIONS = "--host {ip} --ports 7300-7399 --insecure"
pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def ray() -> Iterator[RayHosts]:
    with tempfile.TemporaryDirectory() as log_dir, Network() as network:
        ray = RayHosts(network, Path(log_dir))
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
    give_certificates(ray.hosts, ["prefill-0", "decode-0"])
    options = f"--exact --threads 1 --prefill 1 --decode 1 --ports 7300-7399 {FLAGS}"
    (*_, ready) = ray.up(a, options)
    assert ready["kind"] == "ready"
    assert answers_at(a, ready["endpoint"]) == one_machines_answers()
    seen = status(ray)
    assert {w.worker_id: w.host for w in seen.workers} == {"prefill-0": "a", "decode-0": "b"}
    (peer,) = next(w for w in seen.workers if w.worker_id == "decode-0").transports
    assert peer.transport == "tcp"
    assert " b " in ray.twolane(a, "status")
    (*_, again) = ray.up(a, options)
    assert again == ready, "a second `up` finds the cluster"
    ray.down(a)
    wait_until(lambda: not (ray.ours(a) + ray.ours(b)), 10)


def test_down_ends_what_runs_on_a_host_whose_agent_is_lost(ray: RayHosts) -> None:
    a, b = ray.hosts
    ray.up(a, f"--engine fake --prefill 1 --decode 1 {OPTIONS.format(ip=a.ip)}")
    ray.kill(b, AGENT)  # a worker that an agent has found is no child of it, and lives on
    wait_until(lambda: len(ray.ours(b)) == 2, 60)
    ray.kill_actor("agent-b-")
    wait_until(lambda: ray.pids(b, AGENT) == [], 20)
    assert len(ray.ours(b)) == 1
    ray.down(a)
    wait_until(lambda: not (ray.ours(a) + ray.ours(b)), 10)


@asynccontextmanager
async def seats_held_once(ray: RayHosts) -> AsyncIterator[None]:
    """Each host has two seats: no third worker is ever there, as long as this lasts."""

    async def look() -> None:
        while True:
            for host in ray.hosts:
                assert len(ray.workers(host)) <= 2, f"{host.name} has {ray.ours(host)}"
            await asyncio.sleep(0.2)

    async with asyncio.TaskGroup() as tasks:
        looking = tasks.create_task(look())
        yield
        looking.cancel()


@asynccontextmanager
async def under_load(ray: RayHosts) -> AsyncIterator[Load]:
    """A cluster of fake engines, two workers of each role, and streams before, during and after."""
    a = ray.hosts[0]
    options = f"--engine fake --prefill 2 --decode 2 {OPTIONS.format(ip=a.ip)}"
    (*_, ready) = await asyncio.to_thread(ray.up, a, options)
    async with load_on(ready["endpoint"], streams=4) as load, seats_held_once(ray):
        await until(load, 4)
        yield load
        await until(load, 8)
    assert load.failures == []
    await asyncio.to_thread(ray.down, a)
    left: list[str] = []

    def is_all_over() -> bool:
        left[:] = ray.ours(a) + ray.ours(ray.hosts[1])
        return not left

    try:
        wait_until(is_all_over, 10)
    except AssertionError as error:
        raise AssertionError(f"left after `down`: {left}") from error


async def in_time(holds: Callable[[], bool], within_s: float) -> None:
    """Wait for it while the load runs."""
    await asyncio.to_thread(wait_until, holds, within_s)


async def kill_agents_and_the_controller(ray: RayHosts, load: Load) -> None:
    a, b = ray.hosts
    before = epochs(ray)
    everybody = 3 + 5  # the controller and two agents; the router and four workers
    term = ray.term(b)
    ray.kill(a, CONTROLLER)
    ray.kill(b, AGENT)
    await in_time(lambda: ray.term(b) > term and len(ray.ours(a) + ray.ours(b)) == everybody, 60)
    load.check(silence_s=5.0)
    assert epochs(ray) == before, "what served serves on"


async def kill_a_worker(ray: RayHosts, load: Load) -> None:
    before = epochs(ray)
    os.kill(ray.workers(ray.hosts[1])[0], signal.SIGKILL)

    def is_back() -> bool:
        now = epochs(ray)
        return len(now) == 4 and sum(now[name] != before[name] for name in now) == 1

    await in_time(is_back, 60)


async def lose_the_control_store(ray: RayHosts, load: Load, for_s: float = 5.0) -> None:
    a, before = ray.hosts[0], epochs(ray)
    ray.kill(a, "/gcs_server", signal.SIGSTOP)
    await asyncio.sleep(for_s)
    load.check(silence_s=5.0)
    ray.kill(a, "/gcs_server", signal.SIGCONT)
    await until(load, 4)
    assert epochs(ray) == before
    assert ray.n_alive() == 2


async def kill_a_raylet(ray: RayHosts, load: Load) -> None:
    """And start another one on its host."""
    b = ray.hosts[1]
    (old,) = ray.pids(b, AGENT)
    ray.kill(b, "/raylet")
    await until(load, 4)
    ray.start_on(b)

    def is_back() -> bool:
        its = ray.pids(b, AGENT)
        return len(its) == 1 and its != [old] and len(ray.ours(b)) == 3 and len(epochs(ray)) == 4

    await in_time(is_back, 90)


async def freeze_a_host(ray: RayHosts, load: Load, for_s: float = 8.0) -> None:
    a, b = ray.hosts
    before, processes = epochs(ray), ray.ours(a)
    b.freeze()
    await asyncio.sleep(for_s)
    load.check(silence_s=5.0)
    seen = {host.name: host for host in status(ray).hosts}
    assert seen["b"].state == "silent"
    assert {*seen["b"].workers} == {*before} - {*epochs(ray)}
    assert ray.ours(a) == processes, "nothing is started in place of what is silent"
    b.thaw()
    await in_time(lambda: len(epochs(ray)) == 4, 60)


async def kill_the_controller_while_a_host_is_frozen(ray: RayHosts, load: Load) -> None:
    """The next one knows whose seats are lost, and finds the host when it thaws."""
    a, b = ray.hosts
    term = ray.term(a)
    b.freeze()
    ray.kill(a, CONTROLLER)

    def is_seen() -> bool:
        seen = next((host for host in status(ray).hosts if host.name == "b"), None)
        return seen is not None and (seen.state, len(seen.workers)) == ("silent", 2)

    await in_time(lambda: ray.term(a) > term and is_seen(), 60)
    load.check(silence_s=5.0)
    b.thaw()
    await in_time(lambda: ray.term(b) > term and len(epochs(ray)) == 4, 60)


FAULTS = (
    kill_agents_and_the_controller,
    kill_a_worker,
    lose_the_control_store,
    freeze_a_host,
    kill_the_controller_while_a_host_is_frozen,
    kill_a_raylet,
)


async def test_no_answer_is_lost_with_agents_controller_control_store_host_or_raylet(
    ray: RayHosts,
) -> None:
    async with under_load(ray) as load:
        for fault in FAULTS:
            await fault(ray, load)


@pytest.mark.soak
@pytest.mark.timeout(3600)
async def test_no_answer_is_lost_in_fifty_faults(ray: RayHosts) -> None:
    source = random.Random(1)
    async with under_load(ray) as load:
        for _ in range(50):
            await source.choice(FAULTS)(ray, load)


@pytest.mark.soak
async def test_rays_control_store_may_be_away_for_longer_than_a_minute(ray: RayHosts) -> None:
    async with under_load(ray) as load:
        await lose_the_control_store(ray, load, 75.0)


@pytest.mark.soak
async def test_a_host_that_ray_calls_dead_keeps_its_seats(ray: RayHosts) -> None:
    async with under_load(ray) as load:
        await freeze_a_host(ray, load, 90.0)
        before = epochs(ray)
        b = ray.hosts[1] = ray.network.reboot(ray.hosts[1])
        ray.start_on(b)
        await in_time(lambda: len(epochs(ray)) == 4, 90)
        assert len({*epochs(ray).values()} & {*before.values()}) == 2
