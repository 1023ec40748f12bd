"""Agents in pods: a stop ends what they run, and the next pod of the same name has an empty disk. A
controller that others restart."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.deploy.agent.agent_cluster import AgentCluster, wait_until
from tests.deploy.agent.test_agent import agent, client, pid_of, spec
from tests.deploy.agent.test_agents_killed import Load
from tests.processes import is_alive
from twolane.client import Client
from twolane.deploy.controller.desired import Desired, Removal, Seat
from twolane.deploy.process.evidence import read_evidence
from twolane.deploy.process.handshake import Handle
from twolane.deploy.spec.spec_json import to_json
from twolane.deploy.spec.specs import ProcessSpec
from twolane.errors import DeadlineError, UnavailableError
from twolane.v1 import agent_pb2
from twolane.v1.agent_pb2 import Desired as Kept

POOLS: list[dict[str, Any]] = [{"role": "prefill"}, {"role": "decode", "workers": 2}]
OF_HOSTS = [{"routers": 1}, {"routers": 0}]  # node-a: the router, prefill-0 and decode-0
POD = ("--drain-s", "30")


def is_serving(cluster: AgentCluster, n_workers: int) -> bool:
    if not [*cluster.folder.glob("twolane-agent-*/admin.sock")]:
        return False
    try:
        return [worker.state for worker in cluster.status().workers].count("alive") == n_workers
    except (UnavailableError, DeadlineError):  # the router has just started, or is busy
        return False


def host_state(cluster: AgentCluster, name: str) -> str:
    try:
        return next((host.state for host in cluster.status().hosts if host.name == name), "")
    except (UnavailableError, DeadlineError):
        return ""


def test_a_controller_that_ends_leaves_the_cluster_to_the_next_one() -> None:
    with AgentCluster((3,), [{"role": "both"}]) as cluster:
        cluster.kill_agent("node-a")
        first = cluster.controller()
        wait_until(lambda: b"no agent answers" in (cluster.folder / "controller.log").read_bytes())
        assert not cluster.ready.exists(), "it controls nothing so far"
        cluster.start_agent("node-a")
        wait_until(lambda: is_serving(cluster, 1))
        wait_until(cluster.ready.exists)
        before, beat = cluster.pids(), cluster.heartbeat.read_text()
        wait_until(lambda: cluster.heartbeat.read_text() != beat)
        first.send_signal(signal.SIGTERM)
        assert first.wait(60) == 0
        assert not cluster.ready.exists()
        assert cluster.answers()
        second = cluster.controller()
        wait_until(
            lambda: (cluster.folder / "controller.log").read_bytes().count(b'"kind": "ready"') == 2
        )
        third = cluster.controller()
        assert second.wait(60) == 1, "it was taken over"
        assert third.poll() is None
        assert cluster.pids() == before


def test_a_stopped_pod_lets_its_requests_finish_and_its_successor_serves_again() -> None:
    timing = {"stop_grace_s": 30.0}
    with AgentCluster((2, 1), POOLS, of_hosts=OF_HOSTS, timing=timing) as cluster:
        cluster.agents["node-b"].kill()
        cluster.agents["node-b"].wait()
        cluster.start_agent("node-b", "--host-uid", "first", *POD)
        cluster.controller()
        wait_until(cluster.ready.exists)
        load = Load(cluster.endpoint)
        try:
            load.goes_on()
            cluster.agents["node-b"].terminate()
            assert cluster.agents["node-b"].wait(60) == 0
            assert "decode-1" not in cluster.pids()
            load.goes_on()
            cluster.remake("node-b", "--host-uid", "second", *POD)
            wait_until(lambda: is_serving(cluster, 3))
            load.goes_on()
        finally:
            load.close()
        assert load.failures == []


def test_what_ran_in_a_killed_pod_starts_again_when_an_operator_has_seen_it_off() -> None:
    hosts = [{"routers": 1}, {"routers": 0}, {"routers": 0}]  # node-a: the router alone
    with AgentCluster((0, 1, 2), POOLS, of_hosts=hosts) as cluster:
        cluster.kill_agent("node-b")
        cluster.start_agent("node-b", "--host-uid", "first")
        cluster.controller()
        wait_until(cluster.ready.exists)  # a cluster that has not come up yet ends without a worker
        (name,) = [e.name for e in read_evidence(cluster.folder / "node-b")]
        lost = cluster.pids()[name]
        cluster.kill_agent("node-b")
        for process in cluster.processes():
            if process.pid == lost:
                process.kill()
        wait_until(lambda: not is_alive(lost))  # it writes nothing to the folder any more
        cluster.remake("node-b", "--host-uid", "second")
        wait_until(lambda: host_state(cluster, "node-b") == "up")
        assert name not in cluster.pids(), "it may still run"
        done = cluster.command("fence", "--yes", "--host", "node-b", "--i-saw-it-off")
        assert "proof of class C" in done.stdout, done.stderr
        wait_until(lambda: cluster.pids().get(name, lost) != lost)
        wait_until(lambda: is_serving(cluster, 3))
        with Client(cluster.endpoint) as ours:
            assert ours.generate(token_ids=[1, 2], max_tokens=2, ignore_eos=True).tokens


async def test_a_pod_is_ready_while_its_processes_serve(tmp_path: Path) -> None:
    ready = tmp_path / "state" / "ready"
    async with agent(tmp_path) as server, client(server) as ours:
        assert not ready.exists(), "nothing runs yet"
        await ours.start(spec(worker_id="w-1"))
        await ours.start(spec(worker_id="w-0"))
        async for _ in ours.watch():
            if ready.exists() and ready.read_text() == "w-0\nw-1\n":
                break
        await server.stop_all(grace_s=10.0)
        assert not ready.exists(), "it takes no more"
        assert not (await ours.describe()).HasField("desired")


async def test_an_idle_pod_is_ready_once_nothing_is_desired_there(tmp_path: Path) -> None:
    ready = tmp_path / "state" / "ready"
    seat = Seat(name="w", pool="decode", host="node-a")
    elsewhere = Seat(name="v", pool="decode", host="node-b")

    async with agent(tmp_path) as server, client(server) as ours:

        async def is_ready(revision: int, *seats: Seat, removals: tuple[Removal, ...] = ()) -> bool:
            desired = Desired(revision=revision, seats=seats, removals=removals)
            await ours.keep_desired(Kept(term=1, revision=revision, json=to_json(desired)))
            server.agent._write_ready()
            return ready.exists()

        server.agent._write_ready()
        assert not ready.exists(), "nobody has said what is desired"
        assert await is_ready(1, elsewhere)
        assert not await is_ready(2, elsewhere, seat), "it is to start"
        await ours.start(spec())
        assert await is_ready(3, elsewhere, seat)
        fenced = await ours.fence("w", epoch=next(iter(server.agent._live.values())).handle.epoch)
        assert fenced.proof_class == "A"
        assert not await is_ready(4, elsewhere, seat), "it is to start again"
        assert await is_ready(5, elsewhere, seat, removals=(Removal(name="w"),))
        assert await is_ready(6)


async def test_a_stop_ends_what_is_starting_before_it_takes_requests(tmp_path: Path) -> None:
    async with agent(tmp_path) as server, client(server) as ours:
        drains = (await ours.start(spec("stubborn", "drains"))).process
        starting = asyncio.create_task(ours.start(wanted := spec("slow")))
        pid = await pid_of(tmp_path, wanted.epoch)
        stopping = asyncio.create_task(server.stop_all(grace_s=20.0))
        assert "fenced" in (await starting).error
        assert not is_alive(pid)
        assert is_alive(drains.pid), "it has not finished"
        os.kill(drains.pid, signal.SIGKILL)
        await stopping


async def test_what_comes_up_in_the_moment_of_a_stop_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with agent(tmp_path) as server, client(server) as ours:
        its = server.agent._launcher
        start = its.start

        async def start_and_stop(spec: ProcessSpec) -> Handle:
            handle = await start(spec)
            server.agent._starts_no_more = True  # as `stop_all` begins, which did not see it
            return handle

        monkeypatch.setattr(its, "start", start_and_stop)
        assert (await ours.start(spec())).error == "w: its agent is ending"
        assert [each.name for each in read_evidence(tmp_path / "state") if is_alive(each.pid)] == []


async def test_a_pod_proves_nothing_of_an_earlier_one_of_its_name(tmp_path: Path) -> None:
    async with agent(tmp_path / "a", host_uid="1") as server, client(server) as ours:
        first = (await ours.describe()).boot_id
        assert first == "1", "as a controller knows it, which asks the API server"
    async with agent(tmp_path / "b", host_uid="2") as server, client(server) as ours:
        assert (await ours.describe()).boot_id != first
        lost = await ours.fence("w", epoch=5, boot_id=first)
        assert lost.result == agent_pb2.FenceResponse.RESULT_NOT_PROVEN
        assert "another pod of the name node-a" in lost.why
        assert (await anext(aiter(ours.watch()))).is_pod
