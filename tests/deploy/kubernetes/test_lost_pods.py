"""A pod that is replaced while no controller looks: what ran in it is lost until it is proven
dead."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.deploy.agent.test_agent_launcher import CREDENTIALS, DUMMY, QUICK, spec
from tests.deploy.kubernetes.fake_api import NAMESPACE, FakeApi
from tests.deploy.kubernetes.test_executor import QUICK as LOOKS
from tests.deploy.kubernetes.test_executor import World, until
from twolane.deploy.agent.config import AgentConfig
from twolane.deploy.agent.host_link import HostLink, HostState, LinkConfig
from twolane.deploy.agent.host_status import status_of
from twolane.deploy.agent.kept_on_hosts import KeptOnHosts
from twolane.deploy.agent.launcher import AgentLauncher
from twolane.deploy.agent.server import AgentServer
from twolane.deploy.agent.term import Term
from twolane.deploy.controller.desired import Desired, InPod, Seat
from twolane.deploy.kubernetes.api import ApiConfig, KubernetesApi
from twolane.deploy.kubernetes.executor import OUT_OF_SERVICE, Executor
from twolane.deploy.process.evidence import read_evidence
from twolane.deploy.spec.cluster_spec import HostSetSpec, HostSpec
from twolane.v1.agent_pb2 import HostProcess, WatchResponse

POD = "x-decode-0"
SEAT = Seat(name="w", pool="decode", host=POD)
(SET,) = (HostSetSpec(name="x-decode", pools=("decode",), most=1, is_pods=True),)


def wanted(uid: str, node: str) -> Desired:
    """As an earlier controller has saved it, when the worker `w` ran in that pod."""
    its = InPod(name="w", epoch=7, pid=1, host=POD, boot_id=uid, node=node)
    return Desired(revision=1, seats=(SEAT,), in_pods=(its,))


def taken_over(world: World, desired: Desired) -> HostLink:
    """By a controller that finds it saved."""
    never: Any = None
    KeptOnHosts(world.links, Term(2, "c"), never).begin(desired, 1)
    world.made.take_over(desired, {POD})
    return world.links[POD]


async def test_what_ran_in_a_replaced_pod_is_lost_until_its_node_is_out_of_service() -> None:
    async with FakeApi() as api:
        await api.set_replicas("x-decode", 1)
        world = World(api)
        uid, node = world.uid(POD), api.pods[POD]["spec"]["nodeName"]
        api.forget_pod(POD)  # by force
        await api.start_pod(POD)
        assert world.uid(POD) != uid
        link = taken_over(world, wanted(uid, node))
        async with KubernetesApi(ApiConfig(url=api.url, namespace=NAMESPACE, watch_s=60)) as client:
            executor = Executor(client, world.made, [SET], LOOKS, lambda: True)
            running = asyncio.create_task(executor.run())
            await until(lambda: bool(link.host.agent))
            link._hear(WatchResponse(boot_id=world.uid(POD), is_pod=True))
            assert link.lost() == [("w", 7, 1)]
            assert link.in_pods() == [*wanted(uid, node).in_pods], "the next one has to know, too"
            api.nodes[node] = [OUT_OF_SERVICE]
            await until(lambda: not link.lost())
            assert world.dead == {7: POD}
            assert link.in_pods() == []
            running.cancel()
            await asyncio.wait([running])


async def test_what_runs_in_the_same_pod_is_known_from_its_agent() -> None:
    async with FakeApi() as api:
        world = World(api)
        link = taken_over(world, wanted("first", "n"))
        assert link.state is HostState.SILENT
        link._hear(WatchResponse(boot_id="first", is_pod=True))
        assert not link.lost(), "its agent says that it has ended"
        link._hear(
            WatchResponse(
                boot_id="first",
                is_pod=True,
                live=[HostProcess(name="v", epoch=8, pid=2), HostProcess(name="router-0", pid=3)],
            )
        )
        assert [its.name for its in link.in_pods()] == ["v"]


class Pod:
    """An agent in this process, as one in a pod."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder
        self._name = name
        self._server: AgentServer | None = None

    async def start(self, uid: str) -> str:
        """The next pod of the name. Returns where its agent serves."""
        folder = self._folder / uid
        config = AgentConfig(
            host_name=self._name,
            host_uid=uid,
            state_dir=folder,
            log_dir=folder / "logs",
            credentials=CREDENTIALS,
            heartbeat_s=0.1,
        )
        self._server = await AgentServer(config, command=DUMMY).__aenter__()
        return self._server.endpoint

    async def cut_off(self) -> None:
        """Nobody reaches its agent any more; what it runs goes on."""
        assert self._server is not None
        await self._server.__aexit__(None, None, None)


@asynccontextmanager
async def launched(first: str, agent: str, executor: str) -> AsyncIterator[AgentLauncher]:
    """A controller; `first` is where a host is that is always there, `agent` where the pod is.
    Without an executor, the topology has the pod as a host like others."""
    (made,) = SET.hosts()
    if executor == "none":
        made = HostSpec(name=POD, agent="", bind_host="", advertise_host="")
    always = HostSpec(name="a", agent=first, bind_host="127.0.0.1", advertise_host="", seats=0)
    pod = replace(made, agent=agent, bind_host="127.0.0.1")
    launcher = await AgentLauncher.connected([always, pod], CREDENTIALS, QUICK)
    launcher.outlive()
    yield launcher
    await launcher.close()


@pytest.mark.parametrize("executor", ["kubernetes", "none"])
async def test_the_next_controller_starts_no_second_worker_of_the_name(
    executor: str, tmp_path: Path
) -> None:
    always, pod = Pod(tmp_path, "a"), Pod(tmp_path, POD)
    first = await always.start("a")
    async with launched(first, await pod.start("uid-1"), executor) as launcher:
        await launcher.save(Desired(revision=1, seats=(SEAT,)))
        handle = await launcher.start(spec(POD))
    await pod.cut_off()
    async with launched(first, await pod.start("uid-2"), executor) as launcher:
        assert launcher.desired is not None
        found = await launcher.start(spec(POD))
        assert found.key == handle.key, "it counts as running"
        ended = asyncio.create_task(launcher.wait_exit(found))
        assert not launcher.running()
        assert list(launcher.lost) == [handle.epoch]
        launcher.proven([handle.epoch + 1])
        assert not ended.done()
        launcher.proven([handle.epoch])
        assert "told a router (proof of class A)" in await ended
        again = await launcher.start(spec(POD))
        assert again.epoch != handle.epoch
        await launcher.fence(again)
    for its in (pod, always):
        await its.cut_off()
    for evidence in read_evidence(tmp_path / "uid-1"):
        os.killpg(evidence.pid, signal.SIGKILL)


async def test_an_operator_sees_what_was_lost_with_a_pod_also_without_an_executor() -> None:
    """As with `executor: none`: the host is one of the topology, and its agent says it is a pod."""
    host = HostSpec(name=POD, agent="", bind_host="", advertise_host="")
    link = HostLink(host, CREDENTIALS, Term(1, "c"), LinkConfig())
    link._hear(
        WatchResponse(boot_id="first", is_pod=True, live=[HostProcess(name="w", epoch=7, pid=1)])
    )
    seats = {"w": (POD, 0)}
    assert not status_of(link, seats).lost
    link._hear(WatchResponse(boot_id="second", is_pod=True))
    status = status_of(link, seats)
    assert (status.state, list(status.lost)) == ("up", ["w"])
    link.boot_ended("first", "its pod is off, according to an operator", "C")
    assert not status_of(link, seats).lost
