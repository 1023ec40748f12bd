"""What an agent runs that its cluster does not want is stopped."""

from __future__ import annotations

import asyncio

import grpc
import pytest

from tests.deploy.agent.test_agent_launcher import (
    CREDENTIALS,
    QUICK,
    Hosts,
    hosts,
    launched,
    spec,
)
from tests.deploy.clusters import cluster_with, model_with
from tests.processes import is_alive
from tests.until import until
from twolane.deploy.agent.client import AgentClient
from twolane.deploy.agent.host_link import HostLink
from twolane.deploy.agent.launcher import AgentLauncher
from twolane.deploy.agent.supervision import supervisor_over
from twolane.deploy.errors import DeposedError, NotProvenError, StartError
from twolane.deploy.process.handshake import Handle

__all__ = ["hosts"]


def fails_on(host: str, monkeypatch: pytest.MonkeyPatch, code: grpc.StatusCode) -> None:
    """The agent there aborts a Stop at once."""
    stop = AgentClient.stop

    async def stop_or_fail(self: AgentClient, handle: Handle, grace_s: float) -> None:
        if handle.host_name == host:
            nothing = grpc.aio.Metadata()
            raise grpc.aio.AioRpcError(code, nothing, nothing, "no disk")
        await stop(self, handle, grace_s)

    monkeypatch.setattr(AgentClient, "stop", stop_or_fail)


async def two_processes(launcher: AgentLauncher) -> list[Handle]:
    """One on each host, that the launcher has heard of."""
    found = [await launcher.start(spec(host, name=f"w{host}")) for host in "ab"]
    await until(lambda: launcher.running() == {"wa", "wb"})
    return found


async def test_a_host_that_fails_a_stop_keeps_no_other_from_it(
    hosts: Hosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with launched(hosts) as launcher:
        stays, ends = await two_processes(launcher)
        fails_on("a", monkeypatch, grpc.StatusCode.INTERNAL)
        with pytest.raises(NotProvenError, match=r"^wa may still run: a: no disk$"):
            await launcher.end_others((), 60.0)
        assert is_alive(stays.pid)
        assert not is_alive(ends.pid)


async def test_a_cluster_does_not_start_beside_what_could_not_be_stopped(
    hosts: Hosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with launched(hosts) as launcher:
        await two_processes(launcher)
        fails_on("a", monkeypatch, grpc.StatusCode.INTERNAL)
        cluster = cluster_with(model_with(), prefill=1, decode=1)
        with pytest.raises(StartError, match="wa may still run: a: no disk"):
            await supervisor_over(launcher, cluster, lambda event: None)


async def test_a_launcher_that_is_deposed_says_so(
    hosts: Hosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with launched(hosts) as launcher:
        await two_processes(launcher)
        fails_on("a", monkeypatch, grpc.StatusCode.FAILED_PRECONDITION)
        with pytest.raises(DeposedError):
            await launcher.end_others((), 60.0)


async def test_a_supervisor_that_cannot_be_made_leaves_no_watch_of_a_host(
    hosts: Hosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    launcher = await AgentLauncher.connected(hosts.specs(), CREDENTIALS, QUICK)
    first = await two_processes(launcher)
    launcher.outlive()
    fails_on("a", monkeypatch, grpc.StatusCode.FAILED_PRECONDITION)
    cluster = cluster_with(model_with(), prefill=1, decode=1)
    with pytest.raises(DeposedError):
        await supervisor_over(launcher, cluster, lambda event: None)
    assert all(task.done() for task in launcher._tasks)
    assert is_alive(first[0].pid), "it is the other controller's"


async def test_a_launcher_that_is_deposed_as_it_connects_leaves_no_watch_of_a_host(
    hosts: Hosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def deposed(self: HostLink) -> bool:
        raise DeposedError("another one has it")

    monkeypatch.setattr(HostLink, "until_heard", deposed)
    with pytest.raises(DeposedError):
        await AgentLauncher.connected(hosts.specs(), CREDENTIALS, QUICK)
    names = {task.get_name() for task in asyncio.all_tasks()}
    assert not names & {"watch-a", "watch-b"}
