from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import grpc
import pytest

from tests.deploy.clusters import model_with
from tests.processes import is_alive
from twolane.deploy.agent.client import AgentClient
from twolane.deploy.agent.config import AgentConfig
from twolane.deploy.agent.server import AgentServer
from twolane.deploy.agent.term import OldTermError, Term, TermFile
from twolane.deploy.errors import NotProvenError
from twolane.deploy.process.evidence import boot_id, read_evidence
from twolane.deploy.process.orphan import HEARTBEAT
from twolane.deploy.spec.specs import RouterSpec, WorkerSpec, new_epoch
from twolane.security.credentials import Credentials
from twolane.security.gate import Gate
from twolane.security.identity import Identity, Role
from twolane.v1 import agent_pb2

DUMMY = (sys.executable, str(Path(__file__).parents[1] / "dummy_process.py"))
CREDENTIALS = Credentials()
FIRST, SECOND = Term(1, "a"), Term(2, "b")
RESULT = agent_pb2.FenceResponse


def spec(behaviour: str = "ok", worker_id: str = "w") -> WorkerSpec:
    return WorkerSpec(
        worker_id=worker_id,
        epoch=new_epoch(),
        roles=("decode",),
        model=model_with(model_dir="", name=behaviour),
        routers=(),
    )


class GateOf(Gate):
    """Every caller has that role."""

    def __init__(self, role: Role) -> None:
        super().__init__("agent", is_private=True, secret=CREDENTIALS.secret)
        self._role = role

    def identity(self, context: object) -> Identity:
        return Identity(self._role)


@asynccontextmanager
async def agent(
    tmp_path: Path, role: Role = Role.LOCAL, *, start_s: float = 60.0, host_uid: str = ""
) -> AsyncIterator[AgentServer]:
    config = AgentConfig(
        host_name="node-a",
        host_uid=host_uid,
        state_dir=tmp_path / "state",
        log_dir=tmp_path / "logs",
        credentials=CREDENTIALS,
        gpus=("0", "1"),
        heartbeat_s=0.05,
        start_s=start_s,
    )
    gate = None if role is Role.LOCAL else GateOf(role)
    server = AgentServer(config, command=DUMMY, gate=gate)
    async with server:
        yield server


def client(server: AgentServer, term: Term = FIRST) -> AgentClient:
    return AgentClient(server.endpoint, CREDENTIALS, term)


@pytest.fixture(autouse=True)
async def nobody_left(tmp_path: Path) -> AsyncIterator[None]:
    yield
    for evidence in read_evidence(tmp_path / "state"):
        try:
            os.killpg(evidence.pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


async def test_agent_describes_its_host_and_whose_commands_it_takes(tmp_path: Path) -> None:
    async with agent(tmp_path) as server, client(server) as ours:
        before = await ours.describe()
        assert (before.host, before.boot_id, list(before.gpus)) == ("node-a", boot_id(), ["0", "1"])
        assert not before.HasField("controller")
        await ours.start(spec())
        after = await ours.describe()
        assert (after.controller.term, after.controller.id) == (1, "a")


async def test_started_process_has_left_its_evidence_and_is_watched(tmp_path: Path) -> None:
    async with agent(tmp_path) as server, client(server) as ours:
        wanted = spec()
        process = (await ours.start(wanted)).process
        (evidence,) = read_evidence(tmp_path / "state")
        assert (evidence.epoch, evidence.pid) == (wanted.epoch, process.pid)
        assert evidence.ready is not None
        seen = await anext(aiter(ours.watch()))
        assert [each.pid for each in seen.live] == [process.pid]
        os.kill(process.pid, signal.SIGKILL)
        async for seen in ours.watch():
            if seen.ended:
                break
        assert not seen.live
        (ended,) = seen.ended
        assert (ended.epoch, ended.how, ended.proof_class) == (
            wanted.epoch,
            "killed by SIGKILL",
            "A",
        )


async def test_processes_outlive_their_agent_and_the_next_one_adopts_them(tmp_path: Path) -> None:
    async with agent(tmp_path) as server, client(server) as ours:
        lives, dies = [(await ours.start(spec("ok", name))).process for name in ("v", "w")]
    assert is_alive(lives.pid)
    os.kill(dies.pid, signal.SIGKILL)
    while is_alive(dies.pid):
        await asyncio.sleep(0.01)
    async with agent(tmp_path) as server, client(server) as ours:
        seen = await anext(aiter(ours.watch()))
        assert [(each.name, each.pid) for each in seen.live] == [("v", lives.pid)]
        assert seen.live[0].listeners.grpc == "127.0.0.1:1"
        assert [(each.name, each.epoch) for each in seen.ended] == [("w", dies.epoch)]
        fenced = await ours.fence("v", epoch=lives.epoch)
        assert (fenced.result, fenced.proof_class) == (RESULT.RESULT_FENCED, "A")
        assert not is_alive(lives.pid)


async def test_ended_processes_are_remembered_by_the_next_agent(tmp_path: Path) -> None:
    async with agent(tmp_path) as server, client(server) as ours:
        process = (await ours.start(spec())).process
        await ours.fence("w", epoch=process.epoch)
    async with agent(tmp_path) as server, client(server) as ours:
        seen = await anext(aiter(ours.watch()))
        assert [(each.epoch, each.how) for each in seen.ended] == [
            (process.epoch, "killed by SIGKILL")
        ]
        again = await ours.fence("w", epoch=process.epoch)
        assert again.result == RESULT.RESULT_FENCED


async def test_evidence_of_an_older_boot_is_a_proof_of_class_b(tmp_path: Path) -> None:
    async with agent(tmp_path) as server, client(server) as ours:
        process = (await ours.start(spec())).process
    (evidence,) = read_evidence(tmp_path / "state")
    replace(evidence, boot_id="another").write(tmp_path / "state")
    try:
        async with agent(tmp_path) as server, client(server) as ours:
            seen = await anext(aiter(ours.watch()))
            assert [(each.epoch, each.proof_class) for each in seen.ended] == [(process.epoch, "B")]
            lost = await ours.fence("u", epoch=5, boot_id="another")
            assert (lost.result, lost.proof_class) == (RESULT.RESULT_FENCED, "B")
    finally:
        os.killpg(process.pid, signal.SIGKILL)


async def test_evidence_of_another_pid_namespace_proves_nothing(tmp_path: Path) -> None:
    async with agent(tmp_path) as server, client(server) as ours:
        process = (await ours.start(spec())).process
    (evidence,) = read_evidence(tmp_path / "state")
    replace(evidence, pid_namespace="pid:[1]").write(tmp_path / "state")
    async with agent(tmp_path) as server, client(server) as ours:
        seen = await anext(aiter(ours.watch()))
        assert not seen.live
        assert not seen.ended
        answer = await ours.fence("w", epoch=process.epoch)
        assert answer.result == RESULT.RESULT_NOT_PROVEN
        assert "another PID namespace" in answer.why
        assert is_alive(process.pid)


async def test_epoch_that_was_never_here_is_not_called_dead(tmp_path: Path) -> None:
    async with agent(tmp_path) as server, client(server) as ours:
        answer = await ours.fence("w", epoch=7, boot_id=boot_id())
        assert answer.result == RESULT.RESULT_NEVER_HERE


async def test_controller_of_a_lower_term_is_refused_in_every_command(tmp_path: Path) -> None:
    async with agent(tmp_path) as server, client(server) as old, client(server, SECOND) as new:
        process = (await old.start(spec())).process
        watching = aiter(old.watch())
        await anext(watching)
        await anext(aiter(new.watch()))
        commands = [
            old.start(spec()),
            old.stop(_handle(process), 1),
            old.fence("w", epoch=process.epoch),
            _last(watching),
        ]
        for command in commands:
            with pytest.raises(grpc.aio.AioRpcError, match="of controller a is over") as caught:
                await command
            assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        assert is_alive(process.pid)
        await new.stop(_handle(process), 5)
        assert not is_alive(process.pid)


async def test_start_that_a_higher_term_overtakes_leaves_nothing(tmp_path: Path) -> None:
    async with agent(tmp_path) as server, client(server) as old, client(server, SECOND) as new:
        wanted = spec("slow")
        starting = asyncio.create_task(old.start(wanted))
        pid = await pid_of(tmp_path, wanted.epoch)
        fenced = await new.fence("w", epoch=wanted.epoch)
        assert fenced.result == RESULT.RESULT_FENCED
        assert not is_alive(pid)
        assert "fenced" in (await starting).error


async def test_start_that_ends_under_a_higher_term_leaves_nothing(tmp_path: Path) -> None:
    async with agent(tmp_path) as server:
        starting = asyncio.create_task(server.agent.start(FIRST, spec()))
        await asyncio.sleep(0)  # it has begun
        server.agent.terms.check(SECOND)
        with pytest.raises(OldTermError, match="of controller a is over"):
            await starting
        assert not any(is_alive(each.pid) for each in read_evidence(tmp_path / "state"))


async def test_process_that_has_the_pid_of_an_ended_one_is_left_alone(tmp_path: Path) -> None:
    async with agent(tmp_path) as server, client(server) as ours:
        process = (await ours.start(spec())).process
        (evidence,) = read_evidence(tmp_path / "state")
        await ours.fence("w", epoch=process.epoch)
    another = await asyncio.create_subprocess_exec("sleep", "60", start_new_session=True)
    try:
        assert evidence.ready is not None
        ready = replace(evidence.ready, pid=another.pid)
        replace(evidence, pid=another.pid, ready=ready, epoch=7).write(tmp_path / "state")
        async with agent(tmp_path) as server, client(server) as ours:
            seen = await anext(aiter(ours.watch()))
            assert not seen.live
            assert [each.pid for each in seen.ended] == [process.pid, another.pid]
            assert (await ours.fence("w", epoch=7)).result == RESULT.RESULT_FENCED
        assert is_alive(another.pid)
    finally:
        another.kill()
        await another.wait()


async def test_start_whose_controller_is_gone_leaves_nothing(tmp_path: Path) -> None:
    async with agent(tmp_path) as server:
        async with client(server) as ours:
            wanted = spec("slow")
            starting = asyncio.create_task(ours.start(wanted))
            pid = await pid_of(tmp_path, wanted.epoch)
            starting.cancel()
        async with asyncio.timeout(60):
            while is_alive(pid):
                await asyncio.sleep(0.01)


async def test_process_that_still_starts_ends_with_its_agent(tmp_path: Path) -> None:
    wanted = spec("slow")
    async with agent(tmp_path) as server, client(server) as ours:
        starting = asyncio.create_task(ours.start(wanted))
        pid = await pid_of(tmp_path, wanted.epoch)
    assert not is_alive(pid)
    with pytest.raises((grpc.aio.AioRpcError, asyncio.CancelledError)):
        await starting


async def test_next_incarnation_starts_when_the_former_is_dead(tmp_path: Path) -> None:
    async with agent(tmp_path) as server, client(server) as ours:
        first = (await ours.start(spec("stubborn"))).process
        second = (await ours.start(spec("stubborn"))).process
        assert not is_alive(first.pid)
        assert is_alive(second.pid)
        async for seen in ours.watch():
            if seen.ended:
                break
        assert [each.pid for each in seen.live] == [second.pid]


async def test_router_is_fenced_by_its_pid(tmp_path: Path) -> None:
    router = RouterSpec(router_id="r", model=model_with(model_dir="", name="ok"))
    async with agent(tmp_path) as server, client(server) as ours:
        process = (await ours.start(router)).process
        other = await ours.fence("r", pid=process.pid + 1)
        assert other.result == RESULT.RESULT_NEVER_HERE
        assert is_alive(process.pid)
        assert (await ours.fence("r", pid=process.pid)).result == RESULT.RESULT_FENCED
        assert not is_alive(process.pid)


async def test_agent_that_ends_all_leaves_nothing_and_starts_nothing_more(tmp_path: Path) -> None:
    async with agent(tmp_path) as server, client(server) as ours:
        found = (await ours.start(spec("stubborn", "found"))).process
    async with agent(tmp_path) as server, client(server) as ours:
        started = (await ours.start(spec("stubborn", "started"))).process
        wanted = spec("slow")
        starting = asyncio.create_task(ours.start(wanted))
        pid = await pid_of(tmp_path, wanted.epoch)
        await server.agent.end_all()
        assert not any(is_alive(each) for each in (found.pid, started.pid, pid))
        assert "fenced" in (await starting).error
        assert (await ours.start(spec())).error == "w: its agent is ending"
        assert not [*read_evidence(tmp_path / "state")]


async def test_agent_ends_what_it_can_and_names_what_it_cannot(tmp_path: Path) -> None:
    async with agent(tmp_path) as server, client(server) as ours:
        far, near = [(await ours.start(spec("ok", name))).process for name in ("v", "w")]
    theirs = next(each for each in read_evidence(tmp_path / "state") if each.pid == far.pid)
    replace(theirs, pid_namespace="pid:[1]").write(tmp_path / "state")
    async with agent(tmp_path) as server:
        with pytest.raises(NotProvenError, match=r"v .* ran in another PID namespace"):
            await server.agent.end_all()
        assert not is_alive(near.pid)
        assert is_alive(far.pid)


@pytest.mark.parametrize("role", [Role.WORKER, Role.ROUTER, Role.AGENT, Role.CLIENT])
async def test_only_controllers_command_an_agent(tmp_path: Path, role: Role) -> None:
    async with agent(tmp_path, role) as server, client(server) as ours:
        for call in (ours.describe(), ours.start(spec()), ours.fence("w", epoch=1)):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call
            assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED


async def test_operator_fences_and_does_not_start(tmp_path: Path) -> None:
    async with agent(tmp_path) as server, client(server) as ours:
        process = (await ours.start(spec())).process
    async with agent(tmp_path, Role.OPERATOR) as server, client(server) as theirs:
        with pytest.raises(grpc.aio.AioRpcError):
            await theirs.start(spec())
        assert (await theirs.fence("w", epoch=process.epoch)).result == RESULT.RESULT_FENCED


async def test_caller_without_the_secret_is_refused(tmp_path: Path) -> None:
    async with (
        agent(tmp_path) as server,
        AgentClient(server.endpoint, Credentials(), FIRST) as stranger,
    ):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stranger.describe()
        assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED


async def test_heartbeat_file_moves_while_the_agent_lives(tmp_path: Path) -> None:
    path = tmp_path / "state" / HEARTBEAT
    async with agent(tmp_path):
        first = path.read_text()
        async with asyncio.timeout(60):
            while path.read_text() in (first, ""):
                await asyncio.sleep(0.01)


async def test_agent_that_cannot_write_to_its_folder_says_so_in_one_error(tmp_path: Path) -> None:
    (tmp_path / "state" / HEARTBEAT).mkdir(parents=True)
    with pytest.raises(IsADirectoryError, match=HEARTBEAT):
        await agent(tmp_path).__aenter__()


def test_term_outlives_the_agent_and_only_rises(tmp_path: Path) -> None:
    TermFile(tmp_path / "term").check(SECOND)
    terms = TermFile(tmp_path / "term")
    terms.check(SECOND)
    for old in (FIRST, Term(2, "another")):
        with pytest.raises(OldTermError):
            terms.check(old)
    terms.check(Term(3, "another"))
    assert TermFile(tmp_path / "term").highest == Term(3, "another")


def _handle(process: agent_pb2.HostProcess):  # type: ignore[no-untyped-def]
    from twolane.deploy.agent.client import handle_of_process

    return handle_of_process(process, "node-a")


async def _last(watching: AsyncIterator[agent_pb2.WatchResponse]) -> None:
    async for _ in watching:
        pass


async def pid_of(tmp_path: Path, epoch: int) -> int:
    """Of a process that is starting, as soon as it has left its evidence."""
    async with asyncio.timeout(60):
        while True:
            for evidence in read_evidence(tmp_path / "state"):
                if evidence.epoch == epoch:
                    return evidence.pid
            await asyncio.sleep(0.01)
