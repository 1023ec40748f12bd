"""A controller's pools in virtual time: the real `Pools` and `Keeper` over doubles of the launcher
and the routers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from tests.deploy.clusters import cluster_with, model_with
from twolane.deploy.controller.desired import Desired, Seat
from twolane.deploy.errors import NotProvenError, RefusedError
from twolane.deploy.launch.events import Event
from twolane.deploy.launch.from_cluster import first_desired, inventory_of
from twolane.deploy.launch.keeper import Keeper, KeeperConfig
from twolane.deploy.launch.operator_acts import OperatorActs
from twolane.deploy.launch.pools import Actuators, Pools
from twolane.deploy.process.handshake import Handle
from twolane.deploy.spec.cluster_spec import HostSpec
from twolane.deploy.spec.devices import settled_on
from twolane.deploy.spec.revision import Fit
from twolane.deploy.spec.specs import WorkerSpec
from twolane.testing.virtual_time import virtual_time_runner
from twolane.v1 import acts_pb2, cluster_pb2

START_S, DRAIN_S, LOOK_S = 5.0, 20.0, 1.0
FINGERPRINT = "3f2a9c1e77"  # of any revision, on all hosts
HOSTS = tuple(
    HostSpec(name=name, agent=f"{name}:1", bind_host="127.0.0.1", advertise_host="", seats=3)
    for name in ("a", "b")
)
CLUSTER = settled_on(
    cluster_with(model_with(device="cpu"), prefill=1, decode=1, port=0, hosts=HOSTS), {}
)


@dataclass
class Worker:
    handle: Handle
    host: str
    member: cluster_pb2.WorkerStatus
    ended: asyncio.Future[str]
    model_dir: str = ""
    rows: int = 3
    drains: asyncio.TimerHandle | None = None


@dataclass
class World:
    """What outlives a controller: processes, the routers' memory, and what it has saved."""

    saved: Desired | None = None
    workers: dict[str, Worker] = field(default_factory=dict)
    ended: list[tuple[str, str]] = field(default_factory=list)  # and how
    lost: list[str] = field(default_factory=list)  # who has ended with rows, and was not killed
    drained_names: set[str] = field(default_factory=set)  # that routers remember
    silent: set[str] = field(default_factory=set)
    unknown: list[Seat] = field(default_factory=list)  # workers that nobody has wanted
    n_starts: int = 0
    pid: int = 0

    # As a launcher

    async def start(self, spec: WorkerSpec) -> Handle:
        if (found := self.workers.get(spec.name)) is not None:
            return found.handle
        self.n_starts += 1
        await asyncio.sleep(START_S)
        self.pid += 1
        handle = Handle(spec.name, spec.epoch, "h:1", "", self.pid, host_name=spec.host_name)
        member = cluster_pb2.WorkerStatus(state="alive", requests=3, host=spec.host_name)
        member.worker.worker_id, member.worker.epoch = spec.name, spec.epoch
        if spec.name in self.drained_names:
            member.load.drain.number = 1
        ended = asyncio.get_running_loop().create_future()
        self.workers[spec.name] = Worker(
            handle, spec.host_name, member, ended, str(spec.model.model_dir)
        )
        for host in ("a", "b"):
            assert sum(its.host == host for its in self.workers.values()) <= 3
        return handle

    async def wait_exit(self, handle: Handle) -> str:
        return await asyncio.shield(self.workers[handle.name].ended)

    async def stop(self, handle: Handle, grace_s: float) -> None:
        await asyncio.sleep(0.5)
        self.end(handle.name, "stopped")

    async def fence(self, handle: Handle) -> None:
        if self.workers[handle.name].host in self.silent:
            raise NotProvenError("silent; no fence command")
        self.end(handle.name, "killed")

    def end(self, name: str, how: str) -> None:
        worker = self.workers.pop(name)
        self.ended.append((name, how))
        if worker.rows and how != "killed":
            self.lost.append(name)
        worker.ended.set_result(how)

    async def read_log(self, request: acts_pb2.ReadLogRequest) -> acts_pb2.ReadLogResponse:
        raise RefusedError("it has no logs")

    # As its hosts

    def running(self) -> set[str]:
        return {name for name, its in self.workers.items() if its.host not in self.silent}

    def found(self) -> list[Seat]:
        return self.unknown

    def vacate(self, name: str) -> None:
        assert name not in self.workers

    def want(self, hosts: set[str]) -> None:
        assert {its.host for its in self.workers.values()} <= hosts, "or its host would go"

    async def save(self, desired: Desired) -> None:
        self.saved = desired

    # As routers

    async def drain(self, request: cluster_pb2.DrainWorkerRequest) -> str:
        name = request.worker_id
        if request.forget:
            self.drained_names.discard(name)
            return ""
        worker = self.workers.get(name)
        if worker is None or worker.handle.epoch != request.expect_epoch:
            return f"{name} was started again"
        drain = worker.member.load.drain
        if request.take_ticket:
            drain.is_taken = True
        elif request.undo:
            if drain.is_taken:
                return f"the ticket of {name} was taken"
            self.drained_names.discard(name)
            worker.member.load.ClearField("drain")
            if worker.drains is not None:
                worker.drains.cancel()
                worker.drains = None
        elif worker.drains is None:
            self.drained_names.add(name)
            drain.number = 7
            loop = asyncio.get_running_loop()
            worker.drains = loop.call_later(DRAIN_S, self._give_ticket, worker)
        return ""

    def _give_ticket(self, worker: Worker) -> None:
        worker.rows = worker.member.requests = 0
        worker.member.load.drain.has_ticket = True


class Controller:
    """One, until `die`. It goes on from what is saved."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.events: list[Event] = []
        self.pools = Pools(
            inventory_of(CLUSTER),
            world.saved or first_desired(CLUSTER),
            world.save,
            self.events.append,
        )
        self.acts = OperatorActs(
            self.pools,
            self.events.append,
            self._fence,
            fit_of=self._fit_of,
            read_log=world.read_log,
        )
        self.read_dirs: list[str] = []  # by its hosts
        self._task = asyncio.create_task(self._run())

    async def _fit_of(self, model_dir: str) -> Fit:
        self.read_dirs.append(model_dir)
        return Fit(fingerprint=FINGERPRINT)

    async def die(self) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])

    async def _run(self) -> None:
        launcher: Any = self.world
        keeper = Keeper(
            launcher,
            self.events.append,
            KeeperConfig(),
            is_wanted=self.pools.is_wanted,
            proven_dead=lambda epoch: None,
            log_dir=None,
        )
        async with asyncio.TaskGroup() as tasks:
            self.pools.keep_all(
                Actuators(
                    keeper=keeper,
                    launcher=launcher,
                    hosts=launcher,
                    client=launcher,
                    tasks=tasks,
                    spec_of=_spec_of,
                    grace_s=5.0,
                )
            )
            while True:
                members = [
                    its.member
                    for its in self.world.workers.values()
                    if its.host not in self.world.silent
                ]
                hosts = [
                    cluster_pb2.HostStatus(
                        name=name, state="silent" if name in self.world.silent else "up"
                    )
                    for name in ("a", "b")
                ]
                await self.pools.look(members, hosts)
                await self.pools.pause(LOOK_S)

    async def _fence(self, name: str, epoch: int) -> str:
        worker = self.world.workers.get(name)
        if worker is None or worker.handle.epoch != epoch:
            raise NotProvenError(f"epoch {epoch:016x} of {name} is not running any more")
        await self.world.fence(worker.handle)
        return f"{name} killed (proof of class A)"

    async def scale(self, request_id: str = "", **sizes: int) -> acts_pb2.ControllerActResult:
        return await self.do(
            scale=acts_pb2.ScalePoolsRequest(
                act=acts_pb2.Act(request_id=request_id),
                pools=[acts_pb2.PoolSize(pool=name, workers=n) for name, n in sizes.items()],
            )
        )

    async def do(self, **what: Any) -> acts_pb2.ControllerActResult:
        return await self.acts.do(acts_pb2.ControllerAct(number=1, who="anna", **what))


def _spec_of(seat: Seat) -> WorkerSpec:
    number = int(seat.name.rpartition("-")[2])
    return CLUSTER.worker(
        seat.pool, number, ("r:1",), host_name=seat.host, devices=seat.devices,
        name=seat.name, model_dir=seat.model_dir,
    )  # fmt: skip


Story = Callable[[World, Controller], Awaitable[None]]


def play(story: Story) -> World:
    """On a cluster of two workers on hosts a and b, with three seats each, that is up."""
    world = World()

    async def main() -> None:
        controller = Controller(world)
        await asyncio.sleep(START_S + 2)
        assert sorted(world.workers) == ["decode-0", "prefill-0"]
        await story(world, controller)
        await controller.die()

    with virtual_time_runner() as runner:
        runner.run(main())
    assert world.lost == []
    return world


def changes(result: acts_pb2.ControllerActResult) -> list[str]:
    assert result.code == 0, result.error
    return [f"{its.subject}: {its.before} -> {its.after}" for its in result.response.changes]
