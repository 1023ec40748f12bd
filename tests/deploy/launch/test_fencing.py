"""Who is killed and what routers are told, where hosts have agents: in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager

import pytest

from twolane.deploy.errors import NotProvenError
from twolane.deploy.launch.events import Event, Kind
from twolane.deploy.launch.fencing import Fencing, FencingConfig, HungRouters
from twolane.deploy.process.handshake import Handle
from twolane.testing.virtual_time import virtual_time_runner
from twolane.v1 import cluster_pb2

WORKER = Handle(
    name="decode-0", epoch=7, endpoint="h:1", metrics_endpoint="", pid=1, host_name="node-b"
)

ROUTER = Handle(
    name="router-1", epoch=0, endpoint="h:2", metrics_endpoint="", pid=2, host_name="node-b"
)


class Router:
    """A router that knows nobody but whom it is given, and what it is told."""

    def __init__(self) -> None:
        self.members: list[cluster_pb2.WorkerStatus] = []
        self.gone: list[tuple[int, str]] = []
        self.hosts: list[cluster_pb2.HostStatus] = []

    def add(self, epoch: int, fence_wanted: Sequence[int] = ()) -> None:
        member = cluster_pb2.WorkerStatus(state="alive")
        member.worker.epoch = epoch
        member.load.fence_wanted.extend(fence_wanted)
        self.members.append(member)

    async def workers(
        self, hosts: Sequence[cluster_pb2.HostStatus] = ()
    ) -> list[cluster_pb2.WorkerStatus]:
        self.hosts = list(hosts)
        return self.members

    async def report_gone(self, epoch: int, proof_class: str = "A") -> bool:
        self.gone.append((epoch, proof_class))
        return True


class SilentLauncher:
    """Of a cluster whose host node-b is silent."""

    def __init__(self) -> None:
        self.state = "silent"
        self.tried = 0
        self.declared_dead: set[int] = set()
        self.proven: list[int] = []

    async def fence(self, handle: Handle) -> None:
        self.tried += 1
        raise NotProvenError("node-b silent; no fence command")

    def hosts(self) -> list[cluster_pb2.HostStatus]:
        return [
            cluster_pb2.HostStatus(
                name="node-b",
                state=self.state,
                workers=["decode-0"],
                gpus=2,
                note="no fence command",
            )
        ]

    def outlive(self) -> None:
        raise AssertionError("it is the supervisor's to say")

    async def say_off(self, host_name: str) -> str:
        raise AssertionError(host_name)

    async def prove(self, epoch: int) -> None:
        self.proven.append(epoch)


class Scene:
    def __init__(self) -> None:
        self.router, self.launcher = Router(), SilentLauncher()
        self.events: list[Event] = []
        self.answering_routers: list[str] = []
        self.silent_routers: list[str] = []
        self.fencing = Fencing(
            FencingConfig(lost_s=30.0),
            self.launcher,  # type: ignore[arg-type]  # it starts and stops nothing here
            lambda: [WORKER],
            self.events.append,
            self.launcher,  # type: ignore[arg-type]  # as a host it is only looked at
            lambda: [ROUTER],
        )

    def told(self, kind: Kind) -> list[tuple[str, str]]:
        return [(event.name, event.text) for event in self.events if event.kind is kind]


@pytest.fixture
def scene() -> Scene:
    return Scene()


async def fence(scene: Scene) -> None:
    """As a supervisor does."""
    async with asyncio.TaskGroup() as tasks:
        while True:
            await asyncio.sleep(1.0)
            seen = await scene.router.workers(scene.fencing.hosts())
            said = (scene.answering_routers, scene.silent_routers)
            await scene.fencing.look(scene.router, seen, tasks, *said)  # type: ignore[arg-type]


@contextmanager
def running(scene: Scene) -> Iterator[asyncio.Runner]:
    with virtual_time_runner() as runner:
        task = runner.get_loop().create_task(fence(scene))
        yield runner
        task.cancel()
        runner.run(asyncio.wait([task]))


def test_loss_of_a_host_and_its_return_are_told_once(scene: Scene) -> None:
    with running(scene) as runner:
        runner.run(asyncio.sleep(10))
        assert scene.told(Kind.LOST) == [
            ("node-b", "lost 2 GPUs (silent; no fence command): decode-0")
        ]
        assert [host.name for host in scene.router.hosts] == ["node-b"]
        scene.launcher.state = "up"
        runner.run(asyncio.sleep(10))
        assert scene.told(Kind.FOUND) == [("node-b", "it answers again")]


def test_worker_whose_end_cannot_be_proven_is_called_lost_and_tried_again(scene: Scene) -> None:
    scene.router.add(1)
    with running(scene) as runner:
        runner.run(asyncio.sleep(40))
        assert scene.launcher.tried == 1
        assert ("decode-0", "not proven dead: node-b silent; no fence command") in scene.told(
            Kind.LOST
        )
        runner.run(asyncio.sleep(40))
        assert scene.launcher.tried == 2
        assert scene.router.gone == []


def test_deaths_are_the_agents_to_report_but_those_of_a_host_that_is_off(scene: Scene) -> None:
    with running(scene) as runner:
        scene.fencing.proven_dead(7)
        runner.run(asyncio.sleep(3))
        assert scene.router.gone == []
        scene.launcher.declared_dead = {9}
        runner.run(asyncio.sleep(3))
        assert scene.router.gone == [(9, "C")]


def test_epoch_that_a_worker_waits_for_is_proven_again_by_its_agent(scene: Scene) -> None:
    scene.router.add(1, fence_wanted=[5])
    with running(scene) as runner:
        runner.run(asyncio.sleep(1.5))
        assert scene.launcher.proven == [5]


ROUTERS = [
    Handle(name=f"router-{n}", epoch=0, endpoint="", metrics_endpoint="", pid=n) for n in range(2)
]
REBORN = Handle(name="router-0", epoch=0, endpoint="", metrics_endpoint="", pid=2)


class Looks:
    """A supervisor that looks at routers, in virtual time."""

    def __init__(self) -> None:
        self.running = list(ROUTERS)
        self.killed: list[tuple[int, str]] = []  # pids
        config = FencingConfig(hung_router_s=30.0)
        self._hung = HungRouters(config, lambda: self.running, lambda router: True, self._kill)

    async def look(self, silent: Collection[str], times: int = 1, every_s: float = 3.0) -> None:
        async with asyncio.TaskGroup() as tasks:
            for _ in range(times):
                await asyncio.sleep(every_s)
                answering = {its.name for its in self.running} - {*silent}
                self._hung.look(answering, silent, tasks)

    async def _kill(self, handle: Handle, why: str) -> None:
        self.killed.append((handle.pid, why))
        await asyncio.sleep(5.0)
        self.running = [its for its in self.running if its is not handle]


def test_router_that_answers_nothing_for_long_is_killed_once() -> None:
    with virtual_time_runner() as runner:
        looks = Looks()
        runner.run(looks.look((), 2))
        runner.run(looks.look({"router-0"}, 10))
        assert looks.killed == []
        runner.run(looks.look({"router-0"}, 5))
        assert looks.killed == [(0, "it runs, but has answered nothing for 30 s")]
        looks.running.append(REBORN)
        runner.run(looks.look({"router-0"}, 40))
        assert len(looks.killed) == 1, "calls may not get through to one that never answered"
        runner.run(looks.look(()))
        runner.run(looks.look({"router-0"}, 10))
        assert len(looks.killed) == 1, "it has its own time"
        runner.run(looks.look({"router-0"}, 5))
        assert [pid for pid, _ in looks.killed] == [0, 2]


def test_router_that_answers_between_is_not_killed() -> None:
    with virtual_time_runner() as runner:
        looks = Looks()
        for _ in range(5):
            runner.run(looks.look({"router-0", "router-1"}, 9))
            runner.run(looks.look({"router-1"} if looks.killed else ()))
        assert looks.killed == []


def test_pause_of_the_supervisor_is_no_silence_of_a_router() -> None:
    """As if the whole machine had been stopped: one call of each stop has no answer in time."""
    with virtual_time_runner() as runner:
        looks = Looks()
        runner.run(looks.look(()))
        runner.run(looks.look({"router-0"}, 3))
        runner.run(looks.look({"router-0"}, every_s=3600.0))
        assert looks.killed == []
        runner.run(looks.look(()))
        runner.run(looks.look({"router-0"}, every_s=3600.0))
        assert looks.killed == []


def test_silent_router_is_killed_only_where_its_host_answers(scene: Scene) -> None:
    """Its host's may be the whole silence, and a fence of a silent host switches it off."""
    scene.router.add(7)
    scene.answering_routers = ["router-1"]
    with running(scene) as runner:
        runner.run(asyncio.sleep(3))
        scene.answering_routers, scene.silent_routers = [], ["router-1"]
        runner.run(asyncio.sleep(60))
        assert scene.launcher.tried == 0
        scene.launcher.state = "up"
        runner.run(asyncio.sleep(29))
        assert scene.launcher.tried == 0
        runner.run(asyncio.sleep(5))
        assert scene.launcher.tried == 1
