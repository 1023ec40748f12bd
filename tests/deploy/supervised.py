"""A supervisor over doubles of its launcher and of a router."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.deploy.clusters import cluster_with, model_with
from twolane.deploy.errors import StartError
from twolane.deploy.launch.events import Event, Kind
from twolane.deploy.launch.fencing import FencingConfig
from twolane.deploy.launch.restart import RestartConfig
from twolane.deploy.launch.router_client import RouterClient
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
        self.n_asked = 0  # of whom it knows
        self.step_age_s: dict[int, float] = {}
        self.gone: list[int] = []
        self.is_serving = True
        self.fails: grpc.StatusCode | None = None  # of every call
        self.is_deaf = False  # to what a controller tells of itself
        self.calls_failed = 0
        self.told: list[str] = []  # of processes, by the controller
        self.counters: dict[str, int] = {}  # the controller's

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
async def scene(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Scene]:
    """No call to the router fails for want of time: what it has heard is not told again."""
    patient = partial(RouterClient, timeout_s=60.0)
    monkeypatch.setattr("twolane.deploy.launch.router_clients.RouterClient", patient)
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
