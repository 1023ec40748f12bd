"""A process whose evidence cannot be read may run: nothing about its end is said."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from tests.deploy.agent.test_agent import RESULT, agent, client, nobody_left, spec
from tests.deploy.agent.test_agent_launcher import Hosts, hosts, launched
from tests.deploy.agent.test_agent_launcher import spec as launched_spec
from tests.deploy.hidden_folders import hide_folders
from tests.processes import is_alive
from tests.until import until
from twolane.deploy.agent.client import AgentClient
from twolane.deploy.agent.ended import EndedProcesses
from twolane.deploy.errors import NotProvenError
from twolane.deploy.process.evidence import boot_id, read_evidence
from twolane.v1 import agent_pb2

__all__ = ["hosts", "nobody_left"]


@pytest.fixture
async def hidden(tmp_path: Path) -> AsyncIterator[Path]:
    """Hides the evidence of a process for the time of a test, and puts it back for its cleanup."""
    async with agent(tmp_path) as server, client(server) as ours:
        await ours.start(spec())
    (evidence,) = read_evidence(tmp_path / "state")
    path = tmp_path / "state" / evidence.file_name
    text = path.read_text()
    yield path
    if path.is_dir():
        path.rmdir()
    path.write_text(text)


def _unreadable(path: Path) -> None:
    """As with a disk that fails, or without a free descriptor: opening it is an error."""
    path.unlink()
    path.mkdir()


def _garbled(path: Path) -> None:
    """As of another version."""
    path.write_text("{}")


@pytest.mark.parametrize("hide", [_unreadable, _garbled])
async def test_a_process_whose_evidence_cannot_be_read_is_never_called_absent(
    tmp_path: Path, hidden: Path, hide: Callable[[Path], None]
) -> None:
    (evidence,) = read_evidence(tmp_path / "state")
    hide(hidden)
    async with agent(tmp_path) as server, client(server) as ours:
        answer = await ours.fence("w", epoch=evidence.epoch)
        assert answer.result == RESULT.RESULT_NOT_PROVEN
        assert hidden.name in answer.why
        booted = await ours.fence("w", epoch=evidence.epoch, boot_id="another boot")
        assert booted.proof_class == "B"
        with pytest.raises(NotProvenError, match=hidden.name):
            await server.agent.end_all()
        with pytest.raises(NotProvenError, match=hidden.name):
            await server.agent.stop_all(1.0)
        assert not server.agent.is_over
        other = await ours.fence("w", epoch=evidence.epoch + 1)
        assert other.result == RESULT.RESULT_NEVER_HERE
    assert is_alive(evidence.pid)


async def test_a_start_whose_evidence_cannot_be_read_leaves_no_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with agent(tmp_path) as server, client(server) as ours:
        monkeypatch.setattr("twolane.deploy.agent.agent.read_evidence", lambda folder: iter(()))
        answer = await ours.start(spec())
        assert answer.error == "w was killed: its evidence cannot be read"
        (evidence,) = read_evidence(tmp_path / "state")
        assert not is_alive(evidence.pid)


async def test_a_start_that_is_cancelled_may_run_until_its_end_is_proven(
    hosts: Hosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = [RESULT.RESULT_NOT_PROVEN, RESULT.RESULT_NEVER_HERE]

    async def fence(*args: object, **how: object) -> agent_pb2.FenceResponse:
        return RESULT(result=results.pop(0))

    async with launched(hosts) as launcher:
        link = launcher._links["a"]
        monkeypatch.setattr(AgentClient, "fence", fence)
        monkeypatch.setattr(link, "_hear", lambda message: None)  # which has its processes
        for may_run in (True, False):
            starting = asyncio.create_task(launcher.start(launched_spec("a", behaviour="slow")))
            await until(lambda: link.n_starting == 1)
            starting.cancel()
            await asyncio.wait([starting])
            assert link.may_run is may_run


async def test_a_start_that_is_cancelled_ends_no_other_of_its_host(
    hosts: Hosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    fenced: list[int] = []

    async def fence(*_: object, epoch: int, **how: object) -> agent_pb2.FenceResponse:
        fenced.append(epoch)
        return RESULT(result=RESULT.RESULT_NEVER_HERE)

    async with launched(hosts) as launcher:
        monkeypatch.setattr(AgentClient, "fence", fence)
        specs = [launched_spec("a", name, behaviour="slow") for name in ("w1", "w2")]
        starts = [asyncio.create_task(launcher.start(spec)) for spec in specs]
        await until(lambda: len(launcher._links["a"].unknown) == len(starts))
        starts[0].cancel()
        await asyncio.wait(starts[:1])
        assert fenced == [specs[0].epoch]
        assert launcher._links["a"].unknown == {"w2": (specs[1].epoch, boot_id())}
        starts[1].cancel()
        await asyncio.wait(starts)


def test_a_folder_that_cannot_be_looked_at_is_not_called_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`Path.glob` finds nothing then, and from Python 3.12 on also without a free descriptor."""
    hide_folders(monkeypatch)
    with pytest.raises(PermissionError):
        list(read_evidence(tmp_path))
    with pytest.raises(PermissionError):
        EndedProcesses(tmp_path)
