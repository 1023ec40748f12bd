"""What an agent runs that its cluster does not want is stopped."""

from __future__ import annotations

import grpc
import pytest

from tests.deploy.agent.test_agent_launcher import Hosts, hosts, launched, spec
from tests.deploy.clusters import cluster_with, model_with
from tests.processes import is_alive
from tests.until import until
from twolane.deploy.agent.client import AgentClient
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
