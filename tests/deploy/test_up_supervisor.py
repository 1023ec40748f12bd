from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.deploy.clusters import cluster_with, model_with
from twolane.deploy.errors import StartError
from twolane.deploy.launch.events import Event, Kind
from twolane.deploy.launch.fencing import FencingConfig
from twolane.deploy.launch.restart import RestartConfig
from twolane.deploy.launch.supervisor import Supervisor, SupervisorConfig
from twolane.deploy.process.handshake import Handle
from twolane.deploy.spec.specs import ProcessSpec, RouterSpec, WorkerSpec
from twolane.v1 import acts_pb2, cluster_pb2, cluster_pb2_grpc

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"
CLUSTER = cluster_with(model_with(model_dir="", name="m"), prefill=1, decode=1, port=0)
QUICK = SupervisorConfig(
    restart=RestartConfig(first_delay_s=0.01),
    ready_timeout_s=60,
    ready_poll_s=0.01,
    fencing=FencingConfig(poll_s=0.01, lost_s=0.2),
)


class Admin(
    cluster_pb2_grpc.MembershipServiceServicer,
    health_pb2_grpc.HealthServicer,
):
    """A router that calls everybody alive whom it is told of."""

    def __init__(self) -> None:
        self.members: dict[int, str] = {}
        self.fence_wanted: set[int] = set()
        self.wanted_by_the_gone: set[int] = set()  # in last reports, which are old
        self.step_age_s: dict[int, float] = {}
        self.gone: list[int] = []
        self.is_serving = True
        self.fails: grpc.StatusCode | None = None  # of every call
        self.is_deaf = False  # to what a controller tells of itself
        self.calls_failed = 0
        self.told: list[str] = []  # of processes, by the controller
        self.counters: dict[str, int] = {}  # the controller's
        self.n_asked = 0  # of whom it knows

    async def Check(self, request: Any, context: Context) -> health_pb2.HealthCheckResponse:
        await self._fail(context)
        kinds = health_pb2.HealthCheckResponse
        return kinds(status=kinds.SERVING if self.is_serving else kinds.NOT_SERVING)

    async def Supervise(
        self, request: cluster_pb2.SuperviseRequest, context: Context
    ) -> cluster_pb2.SuperviseResponse:
        self.n_asked += 1
        await self._fail(context, is_told=bool(request.controller_id))
        self.told += [event.text for event in request.events]
        self.counters = dict(request.counters)
        response = cluster_pb2.SuperviseResponse()
        for epoch, state in self.members.items():
            member = response.workers.add(state=state)
            member.worker.epoch = epoch
            is_gone = state == "gone"
            member.load.fence_wanted.extend(
                self.wanted_by_the_gone if is_gone else self.fence_wanted
            )
            member.load.step_age_s, member.load.step_bound_s = self.step_age_s.get(epoch, 0.0), 5.0
        return response

    async def ReportGone(
        self, request: cluster_pb2.ReportGoneRequest, context: Context
    ) -> cluster_pb2.ReportGoneResponse:
        await self._fail(context)
        self.gone.append(request.epoch)
        self.fence_wanted.discard(request.epoch)
        return cluster_pb2.ReportGoneResponse()

    async def _fail(self, context: Context, *, is_told: bool = False) -> None:
        if self.fails is not None or (self.is_deaf and is_told):
            self.calls_failed += 1
            await context.abort(self.fails or grpc.StatusCode.UNAVAILABLE, "killed")


@dataclass
class Process:
    spec: ProcessSpec
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    why: str = ""


class DoubleLauncher:
    """Processes that are nothing but an event. `broken` maps names to why they do not start."""

    def __init__(self, admin: Admin, endpoint: str, worker_endpoint: str) -> None:
        self.admin = admin
        self.endpoint = endpoint
        self.worker_endpoint = worker_endpoint
        self.processes: dict[int, Process] = {}
        self.broken: dict[str, str] = {}
        self.mute: set[str] = set()  # they start and never announce themselves
        self.stopped: list[str] = []
        self.is_closed = False

    async def start(self, spec: ProcessSpec) -> Handle:
        await asyncio.sleep(0)
        if spec.name in self.broken:
            raise StartError(self.broken[spec.name])
        pid = len(self.processes) + 1
        self.processes[pid] = Process(spec)
        if spec.name not in self.mute and isinstance(spec, WorkerSpec):
            self.admin.members[spec.epoch] = "alive"
        endpoint = self.endpoint if isinstance(spec, RouterSpec) else f"w:{pid}"
        return Handle(
            name=spec.name,
            epoch=spec.epoch,
            endpoint=endpoint,
            metrics_endpoint="h:9090",
            pid=pid,
            worker_endpoint=self.worker_endpoint,
            runs_on="cpu",
            admin_endpoint=self.endpoint,
        )

    async def wait_exit(self, handle: Handle) -> str:
        await self.processes[handle.pid].ended.wait()
        return self.processes[handle.pid].why

    async def fence(self, handle: Handle) -> None:
        self.kill(handle.pid, "fenced")

    async def stop(self, handle: Handle, grace_s: float) -> None:
        self.stopped.append(handle.name)
        self.kill(handle.pid, "stopped")

    async def read_log(self, request: acts_pb2.ReadLogRequest) -> acts_pb2.ReadLogResponse:
        raise AssertionError("nobody asks for it")

    async def close(self) -> None:
        for pid in self.processes:
            self.kill(pid, "closed")
        self.is_closed = True

    def kill(self, pid: int, why: str = "killed") -> None:
        process = self.processes[pid]
        self.admin.members.pop(process.spec.epoch, None)
        process.why = process.why or why
        process.ended.set()

    def running(self, name: str) -> list[tuple[int, ProcessSpec]]:
        return [
            (pid, process.spec)
            for pid, process in self.processes.items()
            if process.spec.name == name and not process.ended.is_set()
        ]


@dataclass
class Scene:
    admin: Admin
    launcher: DoubleLauncher
    events: list[Event] = field(default_factory=list)
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    hurry: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.supervisor = Supervisor(CLUSTER, self.launcher, self.events.append, QUICK)

    async def run(self) -> None:
        await self.supervisor.run(self.stop, self.hurry)

    def told(self, kind: Kind, name: str = "") -> list[Event]:
        return [e for e in self.events if e.kind is kind and e.name == name]

    @asynccontextmanager
    async def up(self) -> AsyncIterator[None]:
        running = asyncio.create_task(self.run())
        await self.until(lambda: bool(self.told(Kind.READY)) or running.done())
        yield
        self.stop.set()
        await running

    def skip(self, seconds: float) -> None:
        """Let so much time pass at once, for all that runs on this loop."""
        loop = asyncio.get_running_loop()
        now = loop.time
        loop.time = lambda: now() + seconds  # type: ignore[method-assign]

    async def until(self, holds: Any) -> None:
        async with asyncio.timeout(60):
            while not holds():
                await asyncio.sleep(0.005)


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    admin = Admin()
    door, worker_door = grpc.aio.server(), grpc.aio.server()
    health_pb2_grpc.add_HealthServicer_to_server(admin, door)
    cluster_pb2_grpc.add_MembershipServiceServicer_to_server(admin, worker_door)
    ports = [server.add_insecure_port("127.0.0.1:0") for server in (door, worker_door)]
    for server in (door, worker_door):
        await server.start()
    yield Scene(admin, DoubleLauncher(admin, *(f"127.0.0.1:{port}" for port in ports)))
    for server in (door, worker_door):
        await server.stop(0)


async def test_ready_comes_after_every_start_and_stop_ends_the_router_first(scene: Scene) -> None:
    async with scene.up():
        kinds = [event.kind for event in scene.events]
        assert kinds.count(Kind.STARTED) == 3
        assert kinds[-1] is Kind.READY
    assert scene.launcher.stopped[0] == "router-0"
    assert sorted(scene.launcher.stopped) == ["decode-0", "prefill-0", "router-0"]
    assert scene.launcher.is_closed
    assert scene.events[-1].kind is Kind.STOPPED


async def test_not_ready_before_the_router_serves_and_sees_everybody(scene: Scene) -> None:
    scene.admin.is_serving = False
    running = asyncio.create_task(scene.run())
    await scene.until(lambda: len(scene.launcher.processes) == 3)
    await asyncio.sleep(0.1)
    assert not scene.told(Kind.READY)
    scene.admin.is_serving = True
    await scene.until(lambda: bool(scene.told(Kind.READY)))
    scene.stop.set()
    await running


async def test_a_worker_that_never_announces_itself_is_named(scene: Scene) -> None:
    scene.launcher.mute.add("decode-0")
    running = asyncio.create_task(scene.run())
    await scene.until(lambda: scene.admin.n_asked > 2)  # so the first answer has come
    assert not running.done()
    scene.skip(QUICK.ready_timeout_s)
    with pytest.raises(
        StartError, match=r"not ready after 60 s; the router does not see decode-0$"
    ):
        await running
    assert scene.launcher.is_closed


async def test_a_worker_that_cannot_start_fails_the_whole_with_its_own_words(scene: Scene) -> None:
    scene.launcher.broken["decode-0"] = "decode-0: the model is square"
    with pytest.raises(StartError, match=r"^decode-0: the model is square$"):
        await scene.run()
    assert not scene.told(Kind.READY)
    assert all(process.ended.is_set() for process in scene.launcher.processes.values())


async def test_a_death_during_start_fails_at_once(scene: Scene) -> None:
    scene.launcher.mute.add("decode-0")
    running = asyncio.create_task(scene.run())
    await scene.until(lambda: bool(scene.launcher.running("prefill-0")))
    scene.launcher.kill(scene.launcher.running("prefill-0")[0][0], "killed by SIGKILL")
    with pytest.raises(StartError, match="prefill-0 killed by SIGKILL"):
        await running


async def test_a_dead_worker_comes_back_as_a_new_epoch_and_is_reported_gone(scene: Scene) -> None:
    async with scene.up():
        pid, old = scene.launcher.running("decode-0")[0]
        scene.launcher.kill(pid, "killed by SIGSEGV")
        await scene.until(lambda: bool(scene.launcher.running("decode-0")))
        await scene.until(lambda: scene.admin.gone == [old.epoch])
        _, new = scene.launcher.running("decode-0")[0]
        assert new.epoch != old.epoch
        assert scene.told(Kind.DIED, "decode-0")[0].text == "killed by SIGSEGV"


async def test_a_worker_that_dies_again_and_again_waits_longer(scene: Scene) -> None:
    async with scene.up():
        scene.launcher.broken["decode-0"] = "no memory"
        scene.launcher.kill(scene.launcher.running("decode-0")[0][0])
        await scene.until(lambda: len(scene.told(Kind.RESTARTING, "decode-0")) >= 4)
        texts = [event.text for event in scene.told(Kind.RESTARTING, "decode-0")[:4]]
        assert texts == ["now", "in 0.01 s", "in 0.02 s", "in 0.04 s"]
        scene.launcher.broken.clear()
        await scene.until(lambda: bool(scene.launcher.running("decode-0")))


@pytest.mark.parametrize("code", ["INTERNAL", "CANCELLED", "UNKNOWN", "UNAVAILABLE"])
async def test_nothing_that_a_dying_router_answers_ends_the_supervisor(
    scene: Scene, code: str
) -> None:
    async with scene.up():
        scene.admin.fails = grpc.StatusCode[code]
        pid, old = scene.launcher.running("decode-0")[0]
        scene.launcher.kill(pid)
        await scene.until(lambda: scene.admin.calls_failed > 5)
        scene.admin.fails = None
        await scene.until(lambda: scene.admin.gone == [old.epoch])


async def test_workers_are_told_the_routers_door_for_workers(scene: Scene) -> None:
    async with scene.up():
        for name in ("prefill-0", "decode-0"):
            _, spec = scene.launcher.running(name)[0]
            assert isinstance(spec, WorkerSpec)
            assert spec.routers == (scene.launcher.worker_endpoint,)


async def test_a_dead_router_comes_back_at_the_same_ports(scene: Scene) -> None:
    async with scene.up():
        scene.launcher.kill(scene.launcher.running("router-0")[0][0])
        await scene.until(lambda: bool(scene.launcher.running("router-0")))
        _, spec = scene.launcher.running("router-0")[0]
        assert isinstance(spec, RouterSpec)
        assert scene.launcher.endpoint.endswith(f":{spec.settings.port}")
        assert scene.launcher.worker_endpoint.endswith(f":{spec.settings.worker_port}")
        assert spec.settings.metrics_port == 9090
    assert scene.admin.gone == []


async def test_a_worker_that_a_peer_wants_proven_dead_is_killed_then_reported(
    scene: Scene,
) -> None:
    async with scene.up():
        _, old = scene.launcher.running("prefill-0")[0]
        scene.admin.fence_wanted.add(old.epoch)
        await scene.until(lambda: scene.admin.gone == [old.epoch])
        assert scene.told(Kind.FENCED, "prefill-0")[0].epoch == old.epoch
        assert scene.told(Kind.DIED, "prefill-0")[0].text == "fenced"
        await scene.until(lambda: bool(scene.launcher.running("prefill-0")))


async def test_nobody_is_called_gone_whom_we_did_not_start(scene: Scene) -> None:
    async with scene.up():
        scene.admin.fence_wanted.add(12345)
        await asyncio.sleep(0.1)
        assert scene.admin.gone == []
        assert not [event for event in scene.events if event.kind is Kind.FENCED]


async def test_an_epoch_that_died_before_is_reported_again_when_asked_for(scene: Scene) -> None:
    async with scene.up():
        pid, old = scene.launcher.running("prefill-0")[0]
        scene.launcher.kill(pid)
        await scene.until(lambda: scene.admin.gone == [old.epoch])
        scene.admin.fence_wanted.add(old.epoch)
        await scene.until(lambda: scene.admin.gone == [old.epoch] * 2)


async def test_hurry_does_not_wait_for_the_grace(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(handle: Handle, grace_s: float) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(scene.launcher, "stop", never)
    async with scene.up():
        scene.hurry.set()
    assert scene.launcher.is_closed


async def test_worker_whose_step_does_not_end_is_killed_loudly_and_comes_back(scene: Scene) -> None:
    async with scene.up():
        _, old = scene.launcher.running("prefill-0")[0]
        scene.admin.step_age_s[old.epoch] = 7.0  # late, and it may end yet
        await asyncio.sleep(0.1)
        assert not scene.told(Kind.FENCED, "prefill-0")
        scene.admin.step_age_s[old.epoch] = 10.5
        await scene.until(lambda: scene.admin.gone == [old.epoch])
        (fenced,) = scene.told(Kind.FENCED, "prefill-0")
        assert fenced.text == "its step has not ended for 10 s"
        await scene.until(lambda: bool(scene.launcher.running("prefill-0")))


async def test_nobody_is_killed_on_the_word_of_a_worker_that_is_gone(scene: Scene) -> None:
    async with scene.up():
        _, healthy = scene.launcher.running("prefill-0")[0]
        scene.admin.members[999] = "gone"
        scene.admin.wanted_by_the_gone.add(healthy.epoch)
        await asyncio.sleep(0.1)
        assert not scene.told(Kind.FENCED, "prefill-0")


@pytest.mark.parametrize("is_forgotten", [False, True])
async def test_worker_that_runs_and_is_gone_for_the_router_is_killed_and_comes_back(
    scene: Scene, is_forgotten: bool
) -> None:
    async with scene.up():
        _, old = scene.launcher.running("decode-0")[0]
        if is_forgotten:
            del scene.admin.members[old.epoch]
        else:
            scene.admin.members[old.epoch] = "gone"
        await scene.until(lambda: scene.admin.gone == [old.epoch])
        (fenced,) = scene.told(Kind.FENCED, "decode-0")
        assert fenced.text.startswith("it runs, but the router has not heard from it for ")
        await scene.until(lambda: bool(scene.launcher.running("decode-0")))
        assert not scene.told(Kind.FENCED, "prefill-0")
