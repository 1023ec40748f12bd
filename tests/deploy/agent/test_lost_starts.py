"""Starts whose answer is lost, that are cancelled, or that others overtake: one process is left at
most, and none is called ended that may run."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from dataclasses import asdict
from pathlib import Path

import grpc
import pytest

from tests.deploy.agent.test_agent import FIRST, RESULT, SECOND, agent, client, nobody_left, spec
from tests.deploy.agent.test_agent_launcher import CODE, Hosts, hosts, launched
from tests.deploy.agent.test_agent_launcher import spec as launched_spec
from tests.deploy.clusters import model_with
from tests.processes import is_alive
from tests.until import until
from twolane.deploy.agent.agent import Agent, Live
from twolane.deploy.agent.client import AgentClient
from twolane.deploy.agent.ended import Ended, NeverHereError
from twolane.deploy.agent.kept_on_hosts import KeptOnHosts
from twolane.deploy.agent.launcher import AgentLauncher
from twolane.deploy.agent.term import OldTermError, Term
from twolane.deploy.errors import StartError
from twolane.deploy.process.evidence import read_evidence, write_json
from twolane.deploy.spec.specs import ProcessSpec, RouterSpec
from twolane.v1 import agent_pb2

__all__ = ["hosts", "nobody_left"]


def router(behaviour: str, name: str = "r") -> RouterSpec:
    return RouterSpec(router_id=name, host_name="a", model=model_with(model_dir="", name=behaviour))


def alive_in(folder: Path) -> list[int]:
    return [its.pid for its in read_evidence(folder) if is_alive(its.pid)]


@asynccontextmanager
async def lost_answers(
    hosts: Hosts, launcher: AgentLauncher, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[None]:
    """Starts on host a go on, and their answers are lost as soon as a process has its evidence."""
    its = hosts._servers["a"].agent
    tasks: list[asyncio.Task[Live]] = []

    async def start(self: AgentClient, spec: ProcessSpec) -> None:
        tasks.append(asyncio.create_task(its.start(launcher.term, spec)))
        await until(lambda: any(read_evidence(its.config.state_dir)))
        nothing = grpc.aio.Metadata()
        raise grpc.aio.AioRpcError(CODE.UNAVAILABLE, nothing, nothing, "cut")

    monkeypatch.setattr(AgentClient, "start", start)
    yield
    await asyncio.gather(*tasks, return_exceptions=True)


@pytest.mark.parametrize("behaviour", ["slow", "ok"])
async def test_a_router_whose_pid_is_not_known_is_fenced_by_its_name(
    tmp_path: Path, behaviour: str
) -> None:
    async with agent(tmp_path) as server, client(server) as ours:
        other = (await ours.start(router("ok", "r-1"))).process
        worker = (await ours.start(spec())).process
        starting = asyncio.create_task(ours.start(router(behaviour)))
        await until(lambda: len(alive_in(tmp_path / "state")) == 3)
        assert (await ours.fence("r")).result == RESULT.RESULT_FENCED
        assert {*alive_in(tmp_path / "state")} == {other.pid, worker.pid}
        await asyncio.wait([starting])
        again = await ours.fence("r")
        assert again.result == RESULT.RESULT_NEVER_HERE


async def test_a_router_that_has_no_evidence_so_far_is_called_off_by_its_name(
    tmp_path: Path,
) -> None:
    async with agent(tmp_path) as server:
        its = server.agent
        starts = [
            asyncio.create_task(outcome(its.start(FIRST, each))) for each in (router("ok"), spec())
        ]
        await asyncio.sleep(0)
        assert (await its.fence(FIRST, "r")).how == "was starting"
        with pytest.raises(NeverHereError):
            await its.fence(FIRST, "w")
        called_off, worker = await asyncio.gather(*starts)
        assert isinstance(called_off, StartError)
        assert isinstance(worker, Live)
        assert alive_in(tmp_path / "state") == [worker.handle.pid]


async def test_a_router_whose_evidence_cannot_be_read_is_not_called_absent_by_its_name(
    tmp_path: Path,
) -> None:
    async with agent(tmp_path) as server, client(server) as ours:
        (tmp_path / "state" / "r-57.json").write_text("{}")
        answer = await ours.fence("r")
        assert answer.result == RESULT.RESULT_NOT_PROVEN
        assert "r-57.json" in answer.why
        assert (await ours.fence("r-57")).result == RESULT.RESULT_NEVER_HERE


async def test_a_router_whose_answer_is_lost_has_ended_when_its_start_has_failed(
    hosts: Hosts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with launched(hosts) as launcher, lost_answers(hosts, launcher, monkeypatch):
        with pytest.raises(StartError, match="cut"):
            await launcher.start(router("slow"))
        assert not alive_in(tmp_path / "a")
        assert not launcher._links["a"].unknown


def stuck_in(monkeypatch: pytest.MonkeyPatch, owner: type, method: str) -> asyncio.Event:
    """That method never returns; the event is set once it is called."""
    called = asyncio.Event()

    async def stuck(*_: object) -> None:
        called.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(owner, method, stuck)
    return called


async def test_a_start_that_is_cancelled_while_it_is_found_out_leaves_nothing(
    hosts: Hosts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    finding = stuck_in(monkeypatch, AgentLauncher, "_found_out")
    async with launched(hosts) as launcher, lost_answers(hosts, launcher, monkeypatch):
        starting = asyncio.create_task(launcher.start(launched_spec("a", behaviour="slow")))
        await finding.wait()
        assert alive_in(tmp_path / "a")
        starting.cancel()
        await asyncio.wait([starting])
        assert starting.cancelled()
        assert not alive_in(tmp_path / "a")
        assert not launcher._links["a"].unknown


async def test_a_start_that_is_cancelled_while_its_pod_is_saved_leaves_nothing(
    hosts: Hosts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saving = stuck_in(monkeypatch, KeptOnHosts, "save_again")
    await hosts.stop("a")
    await hosts.start("a", host_uid="first")
    async with launched(hosts) as launcher:
        starting = asyncio.create_task(launcher.start(launched_spec("a")))
        await saving.wait()
        assert alive_in(tmp_path / "afirst")
        starting.cancel()
        await asyncio.wait([starting])
        assert not alive_in(tmp_path / "afirst")


async def test_another_pod_proves_nothing_of_a_start_that_was_cancelled(hosts: Hosts) -> None:
    await hosts.stop("a")
    await hosts.start("a", host_uid="second")
    async with launched(hosts) as launcher:
        link = launcher._links["a"]
        link.unknown = {"w": (7, "first"), "r": (0, "first")}
        await launcher._prove_unknown(link, "w", "r")
        assert {*link.unknown} == {"w", "r"}
        assert link.may_run
        link.boot_ended("first", "is gone", "A")
        assert not link.unknown


async def test_a_host_may_run_each_start_that_is_not_proven_to_have_ended(
    hosts: Hosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fence(*_: object, epoch: int, **how: object) -> agent_pb2.FenceResponse:
        return RESULT(result=RESULT.RESULT_NOT_PROVEN if epoch == 1 else RESULT.RESULT_FENCED)

    async with launched(hosts) as launcher:
        link = launcher._links["a"]
        monkeypatch.setattr(AgentClient, "fence", fence)
        monkeypatch.setattr(link, "_hear", lambda message: None)  # which has its processes
        link.unknown = {"w1": (1, link.boot_id), "w2": (2, link.boot_id)}
        await launcher._prove_unknown(link, "w1")
        await launcher._prove_unknown(link, "w2")
        assert {*link.unknown} == {"w1"}
        assert link.may_run


async def outcome(starting: Awaitable[Live]) -> Live | Exception:
    try:
        return await starting
    except (StartError, OldTermError) as error:
        return error


async def waiting(its: Agent, *terms: Term) -> list[asyncio.Task[Live | Exception]]:
    """Starts of one name, of which the first is under way and the others wait for its end."""
    tasks = [asyncio.create_task(outcome(its.start(FIRST, spec("slow"))))]
    await until(lambda: any(alive_in(its.config.state_dir)))
    tasks += [asyncio.create_task(outcome(its.start(term, spec()))) for term in terms]
    await asyncio.sleep(0)
    return tasks


async def test_of_starts_that_wait_for_the_same_one_the_last_goes_on(tmp_path: Path) -> None:
    async with agent(tmp_path) as server:
        starts = await waiting(server.agent, FIRST, FIRST)
        *called_off, last = await asyncio.gather(*starts)
        assert all(isinstance(its, StartError) for its in called_off)
        assert isinstance(last, Live)
        assert alive_in(tmp_path / "state") == [last.handle.pid]


async def test_a_start_that_waits_does_not_go_on_under_a_higher_term(tmp_path: Path) -> None:
    async with agent(tmp_path) as server:
        starts = await waiting(server.agent, SECOND, Term(3, "c"))
        _, second, third = await asyncio.gather(*starts)
        assert isinstance(second, OldTermError)
        assert isinstance(third, Live)
        assert alive_in(tmp_path / "state") == [third.handle.pid]


async def test_a_start_that_waits_does_not_go_on_when_its_agent_ends(tmp_path: Path) -> None:
    async with agent(tmp_path) as server:
        starts = await waiting(server.agent, FIRST)
        await server.agent.end_all()
        _, second = await asyncio.gather(*starts)
        assert str(second) == "w: its agent is ending"


async def test_a_router_that_has_the_pid_of_an_earlier_one_is_told_when_it_ends(
    tmp_path: Path,
) -> None:
    async with agent(tmp_path) as server, client(server) as ours:
        process = (await ours.start(router("ok"))).process
    earlier = Ended("r", 0, process.pid, "was killed", "A")
    path = tmp_path / "state" / "ended" / f"r-{0:016x}-{process.pid}.json"
    write_json(path, asdict(earlier))
    async with agent(tmp_path) as server, client(server) as ours:
        seen = await anext(aiter(ours.watch()))
        assert [its.pid for its in seen.live] == [process.pid]
        assert not seen.ended
        os.killpg(process.pid, signal.SIGKILL)
        async for seen in ours.watch():
            if seen.ended:
                break
        (ended,) = seen.ended
        assert ended.pid == process.pid
        assert ended.how != earlier.how
        assert not seen.live
