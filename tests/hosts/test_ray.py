"""A cluster on a real Ray over two hosts."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path

import pytest

from tests.cluster.real_cluster import fake_model
from tests.hosts.answers import answers_at, one_machines_answers
from tests.hosts.certificates import FLAGS, give_certificates
from tests.hosts.fake_hosts import Host, Network
from tests.hosts.load import Load, load_on, until
from tests.hosts.ray_hosts import RayHosts, wait_until
from tests.own_time import own_time
from twolane.admin import AdminClient
from twolane.status import ClusterStatus, HostInfo

AGENT, CONTROLLER = "ray::AgentActor", "ray::ControllerActor"  # titles
OPTIONS = "--host {ip} --ports 7300-7399 --insecure"
SILENCE_S = 5.0  # of own time
# Steps that leave the machine idle: where somebody always waits for a core, hardly any own time
# passes, and no silence is long.
PACE = {"fake_step_s": 0.02, "fake_paced": True}
N_ANSWER = 200  # takes four seconds
LOADED = f"--engine fake --model /tmp/model --prefill 2 --decode 2 {OPTIONS}"
# On host a. A host is off when the tests have killed it, and say so.
FENCE_COMMAND = "--fence-command 'test -e /tmp/$TWOLANE_HOST.off'"
pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def ray() -> Iterator[RayHosts]:
    with tempfile.TemporaryDirectory() as log_dir, Network() as network:
        ray = RayHosts(network, Path(log_dir))
        ray.start()
        for host in ray.hosts:
            fake_model(host.root / "tmp", **PACE)
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
    wait_until(lambda: not (ray.ours(a) + ray.ours(b)))


def insecure(ray: RayHosts) -> list[str]:
    """Whose listeners the status calls insecure."""
    lines = status(ray).insecure_listeners
    return [
        "router" if " at " in line else line.split(" (")[0].removeprefix("the agent of ")
        for line in lines
    ]


def test_what_ray_reports_is_not_among_the_lines_of_our_commands(ray: RayHosts) -> None:
    a = ray.hosts[0]
    with ray.reporting_errors():
        options = f"--engine fake --colocated 1 --log-dir /tmp/up {OPTIONS.format(ip=a.ip)}"
        ray.up(a, options)  # every line is JSON
        assert "test error" in (a.root / "tmp/up/launcher.log").read_text()
        ray.down(a)


def test_down_ends_what_runs_on_a_host_whose_agent_is_lost(ray: RayHosts) -> None:
    a, b = ray.hosts
    ray.up(a, f"--engine fake --prefill 1 --decode 1 {OPTIONS.format(ip=a.ip)}")
    wait_until(lambda: {*insecure(ray)} == {"a", "b", "decode-0", "prefill-0", "router"})
    old = ray.kill(b, AGENT)  # a worker that an agent has found is no child of it, and lives on
    wait_until(lambda: ray.pids(b, AGENT) not in ([], old) and len(ray.ours(b)) == 2)
    ray.kill_actor("agent-b-")
    wait_until(lambda: ray.pids(b, AGENT) == [])
    assert len(ray.workers(b)) == 1
    ray.down(a)
    wait_until(lambda: not (ray.ours(a) + ray.ours(b)))


@asynccontextmanager
async def seats_held_once(ray: RayHosts) -> AsyncIterator[None]:
    """No two processes of one name run at the same time on either host, as long as this lasts:
    a name is a seat."""

    async def look() -> None:
        while True:
            before = {pid: name for host in ray.hosts for pid, name in ray.names(host).items()}
            after = {pid for host in ray.hosts for pid in host.pids()}
            both = Counter(name for pid, name in before.items() if pid in after)
            assert not [name for name, n in both.items() if n > 1], f"held twice: {before}"
            await asyncio.sleep(0.2)

    async with asyncio.TaskGroup() as tasks:
        looking = tasks.create_task(look())
        yield
        looking.cancel()


@asynccontextmanager
async def under_load(ray: RayHosts) -> AsyncIterator[Load]:
    """A cluster of fake engines, two workers of each role, and streams before, during and after."""
    a = ray.hosts[0]
    options = f"{LOADED.format(ip=a.ip)} {FENCE_COMMAND}"
    (*_, ready) = await asyncio.to_thread(ray.up, a, options)
    loaded = load_on(ready["endpoint"], streams=4, n_answer=N_ANSWER)
    async with loaded as load, seats_held_once(ray):
        await until(load, 4)
        yield load
        await until(load, 8)
    assert load.failures == []
    await asyncio.to_thread(ray.down, a)
    await in_time(ray, lambda: not ray.ours(a) + ray.ours(ray.hosts[1]))


async def in_time(ray: RayHosts, holds: Callable[[], bool]) -> None:
    """Wait for it while the load runs."""
    shows = partial(map, ray.ours, ray.hosts)
    await asyncio.to_thread(wait_until, holds, shows=lambda: [*shows()])


async def whole(ray: RayHosts) -> dict[str, int]:
    """The epochs of all four workers. On a busy machine one may be suspected for a moment."""
    await in_time(ray, lambda: len(epochs(ray)) == 4)
    return epochs(ray)


async def start_on(ray: RayHosts, host: Host) -> None:
    ray.start_on(host)
    await in_time(ray, lambda: ray.is_on(host, 1))


async def kill_agents_and_the_controller(ray: RayHosts, load: Load) -> None:
    a, b = ray.hosts
    before = await whole(ray)
    everybody = 3 + 5  # the controller and two agents; the router and four workers
    term = ray.term(b)
    ray.kill(a, CONTROLLER)
    ray.kill(b, AGENT)
    await in_time(ray, lambda: ray.term(b) > term and len(ray.ours(a) + ray.ours(b)) == everybody)
    load.check(silence_s=SILENCE_S)
    await in_time(ray, lambda: epochs(ray) == before)  # what served serves on


async def kill_a_worker(ray: RayHosts, load: Load) -> None:
    before = await whole(ray)
    os.kill(ray.workers(ray.hosts[1])[0], signal.SIGKILL)

    def is_back() -> bool:
        now = epochs(ray)
        return len(now) == 4 and sum(now[name] != before[name] for name in now) == 1

    await in_time(ray, is_back)


async def lose_the_control_store(ray: RayHosts, load: Load, for_s: float = 5.0) -> None:
    """It is killed, and another one begins with what it has kept."""
    before = await whole(ray)
    start = await asyncio.to_thread(ray.kill_control_store)
    await asyncio.sleep(for_s)
    load.check(silence_s=SILENCE_S)
    await asyncio.to_thread(start)
    await until(load, 4)
    await in_time(ray, lambda: epochs(ray) == before)
    await in_time(ray, lambda: ray.n_alive() == 2)


async def kill_a_launcher(ray: RayHosts, load: Load) -> None:
    """One that attaches to the cluster; the cluster does not notice."""
    a, before = ray.hosts[0], await whole(ray)
    ray.up_bg(a, f"{LOADED.format(ip=a.ip)} {FENCE_COMMAND}")
    await in_time(ray, lambda: len(ray.launchers(a)) == 2)  # the front and the launcher
    for pid in ray.launchers(a):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    await until(load, 4)
    await in_time(ray, lambda: epochs(ray) == before)


async def kill_a_raylet(ray: RayHosts, load: Load) -> None:
    """And start another one on its host."""
    b = ray.hosts[1]
    (old,) = ray.pids(b, AGENT)
    ray.kill(b, "/raylet")
    await until(load, 4)
    await start_on(ray, b)

    def is_back() -> bool:
        its = ray.pids(b, AGENT)
        return len(its) == 1 and its != [old] and len(ray.ours(b)) == 3 and len(epochs(ray)) == 4

    await in_time(ray, is_back)


async def freeze_a_host(
    ray: RayHosts, load: Load, for_s: float = 8.0, *, until_dead: bool = False
) -> None:
    a, b = ray.hosts
    before, processes = await whole(ray), ray.ours(a)
    b.freeze()
    await asyncio.sleep(for_s)
    if until_dead:
        await in_time(ray, lambda: ray.n_alive() == 1)
    await in_time(ray, lambda: hosts_seen(ray)["b"].state == "silent" and len(epochs(ray)) == 2)
    load.check(silence_s=SILENCE_S)
    await in_time(ray, lambda: {*hosts_seen(ray)["b"].workers} == {*before} - {*epochs(ray)})
    # Nothing is started in place of what is silent. For a moment a fence command looks like its
    # controller, which has forked.
    await in_time(ray, lambda: ray.ours(a) == processes)
    b.thaw()
    await in_time(ray, lambda: len(epochs(ray)) == 4)


async def kill_the_controller_while_a_host_is_frozen(ray: RayHosts, load: Load) -> None:
    """The next one knows whose seats are lost, and finds the host when it thaws."""
    a, b = ray.hosts
    term = ray.term(a)
    b.freeze()
    ray.kill(a, CONTROLLER)

    def is_seen() -> bool:
        seen = next((host for host in status(ray).hosts if host.name == "b"), None)
        return seen is not None and (seen.state, len(seen.workers)) == ("silent", 2)

    await in_time(ray, lambda: ray.term(a) > term and is_seen())
    load.check(silence_s=SILENCE_S)
    b.thaw()
    await in_time(ray, lambda: ray.term(b) > term and len(epochs(ray)) == 4)


FAULTS = (
    kill_agents_and_the_controller,
    kill_a_launcher,
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
            load.during = fault.__name__
            await fault(ray, load)


@pytest.mark.soak
@pytest.mark.timeout(3600)
async def test_no_answer_is_lost_in_fifty_faults(ray: RayHosts) -> None:
    source = random.Random(1)
    async with under_load(ray) as load:
        for _ in range(50):
            fault = source.choice(FAULTS)
            load.during = fault.__name__
            await fault(ray, load)


@pytest.mark.soak
async def test_rays_control_store_may_be_away_for_longer_than_a_minute(ray: RayHosts) -> None:
    async with under_load(ray) as load:
        await lose_the_control_store(ray, load, 75.0)


async def declare_off_though_it_is_frozen(ray: RayHosts, load: Load) -> None:
    """Host b's workers count as dead; when they go on, nobody believes them, and they are ended."""
    b, frozen = ray.hosts[1], on_host_b(ray)
    b.freeze()
    await in_time(ray, lambda: hosts_seen(ray)["b"].state == "silent")
    assert "class C" in fence_as_off(ray, min(frozen))

    def are_gone() -> bool:  # they were not alive before either: the router must have the proof
        gone = {w.epoch for w in status(ray).workers if w.state == "gone"}
        return {*frozen.values()} <= gone

    await in_time(ray, are_gone)
    b.thaw()

    def are_others() -> bool:
        now = epochs(ray)
        assert not {*now.values()} & {*frozen.values()}, "an epoch that was declared dead serves"
        return len(now) == 4

    await in_time(ray, are_others)
    load.check(silence_s=SILENCE_S)


def fence_as_off(ray: RayHosts, worker: str) -> str:
    """Its host's fence command says that the host is off. Returns the proof."""
    note = ray.hosts[0].root / "tmp/b.off"
    note.touch()
    proof = ray.fence(worker)
    note.unlink()
    return proof


def on_host_b(ray: RayHosts) -> dict[str, int]:
    """The epochs of the workers there."""
    return {w.worker_id: w.epoch for w in status(ray).workers if w.host == "b"}


def is_whole(ray: RayHosts) -> bool:
    """Host b is up, and the workers that the status names there are those that run."""
    b = ray.hosts[1]
    serving = on_host_b(ray)
    running = {*ray.names(b).values()}
    return (
        hosts_seen(ray)["b"].state == "up"
        and {*serving} == running
        and {*serving.values()} <= ray.epochs_on_disk(b)
        and len(epochs(ray)) == 4
    )


def hosts_seen(ray: RayHosts) -> dict[str, HostInfo]:
    return {host.name: host for host in status(ray).hosts}


@pytest.mark.soak
async def test_a_host_that_ray_calls_dead_keeps_its_seats(ray: RayHosts) -> None:
    b = ray.hosts[1]
    async with under_load(ray) as load:
        before = await whole(ray)
        await freeze_a_host(ray, load, 90.0, until_dead=True)
        await in_time(ray, lambda: epochs(ray) == before)  # it was only silent
        await in_time(ray, lambda: not ray.pids(b, "/raylet"))  # Ray had given it up
        await start_on(ray, b)
        await in_time(ray, lambda: is_whole(ray))
        await declare_off_though_it_is_frozen(ray, load)
        before = await whole(ray)
        b.kill()
        await in_time(ray, lambda: hosts_seen(ray)["b"].state == "silent")
        with own_time() as took:
            assert "class C" in fence_as_off(ray, min(on_host_b(ray)))
        assert took.s() < 1.0
        b = ray.hosts[1] = ray.network.reboot(ray.hosts[1])
        fake_model(b.root / "tmp", **PACE)
        await start_on(ray, b)
        await in_time(ray, lambda: len(epochs(ray)) == 4)
        assert len({*epochs(ray).values()} & {*before.values()}) == 2
