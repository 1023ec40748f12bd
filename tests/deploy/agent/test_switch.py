"""An operator's word that a host is off, against what the host's agent says."""

from __future__ import annotations

import asyncio
from pathlib import Path

import grpc
import pytest

from tests.deploy.agent.test_agent_launcher import Hosts, hosts, launched, spec, state
from tests.processes import is_alive
from twolane.deploy.agent.client import AgentClient
from twolane.deploy.agent.fence_command import run_fence_command
from twolane.deploy.errors import NotProvenError
from twolane.deploy.spec.cluster_spec import HostSpec

__all__ = ["hosts"]


@pytest.mark.parametrize("code", [grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.INTERNAL])
async def test_operator_is_not_believed_of_a_host_that_answers_with_an_error(
    hosts: Hosts, monkeypatch: pytest.MonkeyPatch, code: grpc.StatusCode
) -> None:
    async def fails(*_: object, **__: object) -> None:
        nothing = grpc.aio.Metadata()
        raise grpc.aio.AioRpcError(code, nothing, nothing, "not for you")

    async with launched(hosts) as launcher:
        with monkeypatch.context() as patch:
            patch.setattr(AgentClient, "describe", fails)
            with pytest.raises(NotProvenError, match=r"^a answers: not for you$"):
                await launcher.say_off("a")
        assert state(launcher, "a") == "up"


async def test_a_host_that_cannot_be_switched_off_is_tried_once_for_all_that_runs_there(
    hosts: Hosts, tmp_path: Path
) -> None:
    tried = tmp_path / "tried"
    async with launched(hosts, f"echo once >> {tried}; exit 3") as launcher:
        there = [await launcher.start(spec("a", name)) for name in ("w1", "w2", "w3")]
        elsewhere = await launcher.start(spec("b", "w4"))
        await hosts.lose("a", launcher)
        await launcher.close()
        assert tried.read_text() == "once\n"
        assert all(is_alive(its.pid) for its in there)
        assert not is_alive(elsewhere.pid)
        await hosts.start("a")


async def test_fence_command_that_cannot_be_started_proves_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Any other error would end the controller."""

    async def fails(*_: object, **__: object) -> None:
        raise BlockingIOError("no process is free")

    host = HostSpec(name="a", agent="", bind_host="", advertise_host="", fence_command="off")
    monkeypatch.setattr(asyncio, "create_subprocess_shell", fails)
    with pytest.raises(NotProvenError, match=r"^a silent; its fence command: no process is free$"):
        await run_fence_command(host, 5.0)
