"""A controller's launcher over agents that run in the test's own process."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path

import grpc
import pytest

from tests.deploy.clusters import model_with
from tests.ports import free_ports
from tests.processes import is_alive
from tests.until import WITHIN_S, until
from twolane.deploy.agent.client import AgentClient
from twolane.deploy.agent.config import AgentConfig
from twolane.deploy.agent.host_link import LinkConfig
from twolane.deploy.agent.launcher import AgentLauncher
from twolane.deploy.agent.server import AgentServer
from twolane.deploy.errors import DeposedError, NotProvenError, RefusedError, StartError
from twolane.deploy.process.evidence import read_evidence
from twolane.deploy.spec.cluster_spec import HostSpec
from twolane.deploy.spec.specs import WorkerSpec, new_epoch
from twolane.security.credentials import Credentials
from twolane.v1 import acts_pb2

DUMMY = (sys.executable, str(Path(__file__).parents[1] / "dummy_process.py"))
CREDENTIALS = Credentials()
CODE = grpc.StatusCode
QUICK = LinkConfig(silence_s=60.0, reconnect_s=0.05, connect_s=60.0, remember_s=0.0)


def spec(host: str, name: str = "w", behaviour: str = "ok") -> WorkerSpec:
    return WorkerSpec(
        worker_id=name,
        epoch=new_epoch(),
        roles=("decode",),
        model=model_with(model_dir="", name=behaviour),
        routers=(),
        host_name=host,
    )


class Hosts:
    """Agents called a and b; each may be stopped and started again at its port."""

    def __init__(self, tmp_path: Path) -> None:
        self._tmp_path = tmp_path
        self._servers: dict[str, AgentServer] = {}
        self._ports = dict(zip("ab", free_ports(2), strict=True))

    async def start(self, name: str, host_uid: str = "") -> None:
        """`host_uid` is a pod's, whose disk is its own."""
        config = AgentConfig(
            host_name=name,
            host_uid=host_uid,
            port=self._ports[name],
            state_dir=self._tmp_path / f"{name}{host_uid}",
            log_dir=self.log_dir(name),
            credentials=CREDENTIALS,
            heartbeat_s=0.1,
        )
        self._servers[name] = await AgentServer(config, command=DUMMY).__aenter__()

    def log_dir(self, name: str) -> Path:
        return self._tmp_path / f"logs-{name}"

    async def stop(self, name: str) -> None:
        await self._servers.pop(name).__aexit__(None, None, None)

    async def lose(self, name: str, launcher: AgentLauncher) -> None:
        """Stop it, and let so much time pass for the launcher that it calls the host silent."""
        await self.stop(name)
        link = launcher._links[name]
        await until(lambda: link._watching is None or link._watching.done())  # all is heard
        clock = link._clock
        link._clock = lambda: clock() + 2 * QUICK.silence_s
        assert state(launcher, name) == "silent"

    async def stop_all(self) -> None:
        for name in list(self._servers):
            await self.stop(name)
        for state_dir in self._tmp_path.iterdir():
            for evidence in read_evidence(state_dir):
                if is_alive(evidence.pid):
                    os.killpg(evidence.pid, signal.SIGKILL)

    def specs(self, fence_command: str = "") -> list[HostSpec]:
        return [
            HostSpec(
                name=name,
                agent=f"127.0.0.1:{port}",
                bind_host="127.0.0.1",
                advertise_host="",
                fence_command=fence_command,
            )
            for name, port in self._ports.items()
        ]


@pytest.fixture
async def hosts(tmp_path: Path) -> AsyncIterator[Hosts]:
    hosts = Hosts(tmp_path)
    for name in ("a", "b"):
        await hosts.start(name)
    yield hosts
    await hosts.stop_all()


@asynccontextmanager
async def launched(hosts: Hosts, fence_command: str = "") -> AsyncIterator[AgentLauncher]:
    launcher = await AgentLauncher.connected(hosts.specs(fence_command), CREDENTIALS, QUICK)
    yield launcher
    await launcher.close()


@asynccontextmanager
async def launched_on(hosts: Hosts, name: str) -> AsyncIterator[AgentLauncher]:
    """One that reaches that host alone."""
    alone = [host for host in hosts.specs() if host.name == name]
    launcher = await AgentLauncher.connected(alone, CREDENTIALS, QUICK)
    yield launcher
    await launcher.close()


def state(launcher: AgentLauncher, name: str) -> str:
    return next(host.state for host in launcher.hosts() if host.name == name)


async def test_process_starts_on_its_host_and_its_end_is_told(hosts: Hosts) -> None:
    async with launched(hosts) as launcher:
        handle = await launcher.start(spec("b"))
        assert handle.host_name == "b"
        assert is_alive(handle.pid)
        os.kill(handle.pid, signal.SIGKILL)
        assert await launcher.wait_exit(handle) == "killed by SIGKILL (proof of class A)"


async def test_the_log_of_an_ended_process_is_read_where_it_ran_last(hosts: Hosts) -> None:
    asked = acts_pb2.ReadLogRequest(name="w")
    async with launched(hosts) as launcher:
        with pytest.raises(RefusedError, match=r"no host that answers has a log of w$"):
            await launcher.read_log(asked)
        for host, line in (("b", "dummy worker ok"), ("a", "no such luck")):
            behaviour = "ok" if host == "b" else "crash"
            with suppress(StartError):
                await launcher.fence(await launcher.start(spec(host, behaviour=behaviour)))
            found = await launcher.read_log(asked)
            assert found.source == f"the agent of {host}"
            assert any(line in each for each in found.lines)
            os.utime(hosts.log_dir(host) / "w.log", (0.0, 0.0) if host == "b" else None)
        await hosts.lose("a", launcher)
        assert (await launcher.read_log(asked)).source == "the agent of b"
        hosts.log_dir("b").joinpath("v.log").mkdir()
        asked.name = "v"
        with pytest.raises(RefusedError, match=r"\(b: the log of v cannot be read: .*; silent: a"):
            await launcher.read_log(asked)
        asked.name = "u"
        with pytest.raises(RefusedError, match=r"a log of u \(silent: a\)"):
            await launcher.read_log(asked)


async def test_failure_to_start_is_told_with_the_process_own_words(hosts: Hosts) -> None:
    async with launched(hosts) as launcher:
        with pytest.raises(StartError, match="the model is square"):
            await launcher.start(spec("a", behaviour="refuse"))


async def test_launcher_that_found_nothing_leaves_nothing(hosts: Hosts) -> None:
    async with launched(hosts) as launcher:
        handle = await launcher.start(spec("a"))
    assert not is_alive(handle.pid)


async def test_alike_process_is_adopted_and_goes_on_when_its_launcher_fails(hosts: Hosts) -> None:
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(launched(hosts))
        wanted = spec("a")
        old = await first.start(wanted)
        second = await AgentLauncher.connected(hosts.specs(), CREDENTIALS, QUICK)
        assert second.term.number == first.term.number + 1
        assert second.running() == {"w"}
        adopted = await second.start(wanted.reborn())
        assert adopted.key == old.key
        with pytest.raises(DeposedError, match="is over"):
            await first.wait_exit(old)
        with pytest.raises(DeposedError):
            await first.start(spec("a", "v"))
        await second.close()
    assert is_alive(old.pid)


async def test_launcher_that_is_deposed_on_one_host_ends_nothing_on_the_others(
    hosts: Hosts,
) -> None:
    first = await AgentLauncher.connected(hosts.specs(), CREDENTIALS, QUICK)
    old = [await first.start(spec(name, f"w-{name}")) for name in ("a", "b")]
    async with launched_on(hosts, "a"):
        with pytest.raises(DeposedError):
            await first.wait_exit(old[0])
        await first.close()
        assert all(is_alive(handle.pid) for handle in old)


async def test_cluster_that_was_up_outlives_a_launcher_that_fails(hosts: Hosts) -> None:
    async with launched(hosts) as launcher:
        handle = await launcher.start(spec("a"))
        launcher.outlive()
    assert is_alive(handle.pid)
    async with launched(hosts) as launcher:
        await launcher.end_others((), grace_s=5)
    assert not is_alive(handle.pid)


async def test_process_of_another_configuration_is_replaced(hosts: Hosts) -> None:
    async with launched(hosts) as first:
        old = await first.start(spec("a"))
        async with launched(hosts) as second:
            new = await second.start(replace(spec("a"), roles=("prefill",)))
            assert not is_alive(old.pid)
            assert new.key != old.key


async def test_process_that_is_placed_elsewhere_ends_first(hosts: Hosts) -> None:
    async with launched(hosts) as first:
        old = await first.start(spec("a"))
        async with launched(hosts) as second:
            new = await second.start(spec("b"))
            assert new.host_name == "b"
            assert not is_alive(old.pid)


async def test_process_of_a_silent_host_is_not_started_elsewhere(hosts: Hosts) -> None:
    async with launched(hosts) as launcher:
        handle = await launcher.start(spec("a"))
        await hosts.lose("a", launcher)
        with pytest.raises(StartError, match="w may still run: a silent; no fence command"):
            await launcher.start(spec("b"))
        assert is_alive(handle.pid)
        await hosts.start("a")
        await until(lambda: state(launcher, "a") == "up")
        assert (await launcher.start(spec("b"))).host_name == "b"
        assert not is_alive(handle.pid)


async def test_silent_host_without_fence_command_proves_nothing(hosts: Hosts) -> None:
    async with launched(hosts) as launcher:
        handle = await launcher.start(spec("a"))
        await hosts.lose("a", launcher)
        waiting = asyncio.create_task(launcher.wait_exit(handle))
        why = r"^a silent; no fence command: .* twolane fence --host a --i-saw-it-off$"
        with pytest.raises(NotProvenError, match=why):
            await launcher.fence(handle)
        assert not waiting.done()
        (lost,) = [host for host in launcher.hosts() if host.name == "a"]
        assert (list(lost.workers), lost.note) == (["w"], "no fence command")
        await hosts.start("a")
        os.kill(handle.pid, signal.SIGKILL)
        assert "class A" in await waiting


async def test_fence_command_that_says_off_is_a_proof_of_class_c(
    hosts: Hosts, tmp_path: Path
) -> None:
    command = f'echo "$TWOLANE_HOST" >> {tmp_path}/fenced'
    async with launched(hosts, command) as launcher:
        handles = [await launcher.start(spec("a", name)) for name in ("v", "w")]
        await hosts.lose("a", launcher)
        await asyncio.gather(*map(launcher.fence, handles))
        for handle in handles:
            assert "class C" in await launcher.wait_exit(handle)
        assert (tmp_path / "fenced").read_text() == "a\n", "once for both"
        assert set(launcher.declared_dead) == {handle.epoch for handle in handles}
        assert state(launcher, "a") == "off"
        await hosts.start("a")  # it was not off: what runs there is a zombie
        # after a minute they would end by themselves
        await until(lambda: not any(is_alive(handle.pid) for handle in handles), within_s=30.0)


async def test_fence_command_that_fails_proves_nothing(hosts: Hosts) -> None:
    async with launched(hosts, "exit 3") as launcher:
        handle = await launcher.start(spec("a"))
        await hosts.lose("a", launcher)
        with pytest.raises(NotProvenError, match="its fence command exited with 3"):
            await launcher.fence(handle)
        assert is_alive(handle.pid)
        await hosts.start("a")


async def test_fence_command_that_does_not_end_is_killed_and_proves_nothing(
    hosts: Hosts, tmp_path: Path
) -> None:
    pid = tmp_path / "pid"
    impatient = replace(QUICK, fence_command_s=1.0)
    specs = hosts.specs(f"sleep 1000 & echo $! > {pid}; wait")
    launcher = await AgentLauncher.connected(specs, CREDENTIALS, impatient)
    handle = await launcher.start(spec("a"))
    await hosts.lose("a", launcher)
    async with asyncio.timeout(WITHIN_S):
        while not pid.exists() or not pid.read_text():  # on a busy machine it may not come so far
            with pytest.raises(NotProvenError, match="its fence command has not ended within 1 s"):
                await launcher.fence(handle)
    await until(lambda: not is_alive(int(pid.read_text())))
    assert is_alive(handle.pid)
    await hosts.start("a")
    await launcher.close()


async def test_host_that_answers_is_not_switched_off_when_a_fence_fails(
    hosts: Hosts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def late(*_: object, **__: object) -> None:
        nothing = grpc.aio.Metadata()
        raise grpc.aio.AioRpcError(CODE.DEADLINE_EXCEEDED, nothing, nothing, "too late")

    async with launched(hosts, f"touch {tmp_path}/fenced") as launcher:
        handle = await launcher.start(spec("a"))
        with monkeypatch.context() as patch:
            patch.setattr(AgentClient, "fence", late)
            with pytest.raises(NotProvenError, match=r"^a: too late$"):
                await launcher.fence(handle)
        assert not (tmp_path / "fenced").exists()
        assert is_alive(handle.pid)
        await launcher.fence(handle)
        assert not is_alive(handle.pid)


async def test_operator_is_not_believed_of_a_host_that_answers(hosts: Hosts) -> None:
    async with launched(hosts) as launcher:
        with pytest.raises(NotProvenError, match="a answers"):
            await launcher.say_off("a")
        with pytest.raises(NotProvenError, match="there is no host c, but a, b"):
            await launcher.say_off("c")


async def test_operator_is_believed_of_a_host_that_went_off_a_moment_ago(hosts: Hosts) -> None:
    patient = replace(QUICK, silence_s=300.0)
    launcher = await AgentLauncher.connected(hosts.specs(), CREDENTIALS, patient)
    handle = await launcher.start(spec("b"))
    await hosts.stop("b")
    assert state(launcher, "b") == "up"
    assert await launcher.say_off("b") == "b is off: proof of class C"
    assert "proof of class C" in await launcher.wait_exit(handle)
    assert launcher.declared_dead == {handle.epoch: "b"}
    await launcher.close()


async def test_operator_is_believed_of_a_pod_whose_successor_came_a_moment_ago(
    hosts: Hosts,
) -> None:
    await hosts.stop("b")
    await hosts.start("b", host_uid="first")
    slow = replace(QUICK, silence_s=300.0, reconnect_s=1.0)
    launcher = await AgentLauncher.connected(hosts.specs(), CREDENTIALS, slow)
    handle = await launcher.start(spec("b"))
    await hosts.stop("b")
    os.killpg(handle.pid, signal.SIGKILL)
    await hosts.start("b", host_uid="second")
    assert await launcher.say_off("b") == "earlier pods of the name b are off: proof of class C"
    assert "proof of class C" in await launcher.wait_exit(handle)
    assert launcher.declared_dead == {handle.epoch: "b"}
    await launcher.close()


async def test_seats_of_a_silent_host_are_shown_by_a_launcher_that_never_heard_it(
    hosts: Hosts,
) -> None:
    await hosts.stop("b")
    launcher = await AgentLauncher.connected(hosts.specs(), CREDENTIALS, QUICK)
    launcher._links["b"]._config = replace(QUICK, connect_s=0.2)  # so long it is waited for
    with pytest.raises(StartError, match="is silent"):
        await launcher.start(replace(spec("b"), devices=("0", "1")))
    (_, b) = launcher.hosts()
    assert (b.state, [*b.workers], b.gpus) == ("silent", ["w"], 2)
    await launcher.close()


async def test_agent_of_another_name_is_refused(hosts: Hosts) -> None:
    wrong = [replace(host, name="c") for host in hosts.specs()[:1]]
    with pytest.raises(StartError, match="is the one of a, not of c"):
        await AgentLauncher.connected(wrong, CREDENTIALS, QUICK)


async def test_start_whose_answer_is_lost_is_found_out(hosts: Hosts, tmp_path: Path) -> None:
    async with launched(hosts) as launcher:
        starting = asyncio.create_task(launcher.start(spec("a", behaviour="slow")))
        await until(lambda: any(read_evidence(tmp_path / "a")))
        await hosts.stop("a")
        await hosts.start("a")
        with pytest.raises(StartError):
            await starting
        assert not [each for each in read_evidence(tmp_path / "a") if is_alive(each.pid)]
