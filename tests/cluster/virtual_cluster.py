"""The whole cluster in one process under virtual time: real router, workers, roles, transfers.

Only the edges are doubles: links of memory, pages over the memory fabric, a fake engine that sees
every wrong page. A worker can be killed (all that it had is gone), and comes back with a new epoch;
its streams can be reset while it lives on.
"""

from __future__ import annotations

import asyncio
import errno
import itertools
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from decode_worker.config import DecodeConfig
from decode_worker.role import DecodeRole
from engine.fake import FakeEngine, FakeEngineConfig
from engine.step import RowWork
from kvtransfer.config import LeaseConfig
from kvtransfer.sources import PageMaker
from kvtransfer.transports.memory import Faults, MemoryFabric, MemoryOutlet
from prefill_worker.config import PrefillConfig
from prefill_worker.role import PrefillRole
from router.config import DispatchConfig, MembershipConfig, RouterConfig
from router.router import Router
from twolane.params import SamplingParams
from twolane.rpc.link import LinkBrokenError
from twolane.rpc.params import params_to_proto
from twolane.testing.links import MemoryLink, link_pair
from twolane.v1 import cluster_pb2, inference_pb2, transfer_pb2, worker_pb2
from worker.announcer import Announcer
from worker.config import SessionConfig, StepLimits, WorkerConfig
from worker.errors import StaleEpochError
from worker.role import Roles
from worker.site import Site
from worker.step_runner import TimedEngine, TimedStepRunner
from worker.wire import Wire
from worker.worker import Worker

FOR_EVER_S = 1e6
LEASE = LeaseConfig(lease_s=3.0, heartbeat_s=0.5, retry_first_s=0.05, retry_most_s=0.4)


def make_fake_engine(n_pages: int) -> TimedEngine:
    return FakeEngine(FakeEngineConfig(n_pages=n_pages))


@dataclass(frozen=True, kw_only=True)
class Shape:
    """`roles` names each worker's: "p", "d" or "pd"."""

    roles: Sequence[str] = ("p", "d")
    n_pages: int = 256
    make_engine: Callable[[int], TimedEngine] = make_fake_engine  # of so many pages
    make_decode_engine: Callable[[int], TimedEngine] | None = None  # of workers that decode only
    step_tokens: int = 96
    decode_rows: int = 16
    transfer_faults: Faults = field(default_factory=Faults)
    sender_writes: bool = False
    steps_ahead: int = 0


@dataclass
class Life:
    """One incarnation of a worker."""

    worker: Worker
    task: asyncio.Task[None]
    announcing: asyncio.Task[None]
    links: list[MemoryLink[Any, Any]] = field(default_factory=list)


class _Hangable:
    """An engine whose steps take for ever while `is_hung()`."""

    def __init__(self, engine: TimedEngine, is_hung: Callable[[], bool]) -> None:
        self._engine = engine
        self._is_hung = is_hung

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def step_time_s(self, work: Sequence[RowWork]) -> float:
        return FOR_EVER_S if self._is_hung() else self._engine.step_time_s(work)


class VirtualCluster:
    """Made by `virtual_cluster`."""

    def __init__(self, shape: Shape, tasks: asyncio.TaskGroup, seed: int) -> None:
        self.shape = shape
        self.random = random.Random(seed)
        self.lives: dict[str, Life] = {}
        self.kills = 0
        self.outlets: dict[tuple[str, str], MemoryOutlet] = {}  # (from, to): the latest
        self.stalled: set[str] = set()  # bytes to these workers do not move
        self.failing_opens = 0  # so many of the next transports to be opened are not
        self.hung: set[str] = set()  # their steps end no more
        self._tasks = tasks
        self._epochs = itertools.count(1000 * (seed + 1))
        self._fabric = MemoryFabric(
            seed=seed,
            faults=shape.transfer_faults,
            sender_writes=shape.sender_writes,
            call_later=asyncio.get_running_loop().call_later,
        )
        self.router = Router(
            RouterConfig(
                membership=MembershipConfig(gone_after_s=10.0),
                dispatch=DispatchConfig(max_failures=40),
            ),
            self,
        )

    # -- workers ----------------------------------------------------------------------------

    def start(self, worker_id: str, roles: str) -> None:
        """A worker process comes up."""
        worker = self._build(worker_id, roles)
        worker.endpoint = worker_id
        self.lives[worker_id] = Life(
            worker,
            self._tasks.create_task(worker.run()),
            self._tasks.create_task(self._announce(worker)),
        )

    async def kill(self, worker_id: str) -> int:
        """kill -9. Returns the epoch that is gone."""
        life = self.lives.pop(worker_id)
        self.kills += 1
        self.hung.discard(worker_id)
        life.announcing.cancel()
        life.task.cancel()
        for link in life.links:
            link.break_now("killed")
        await asyncio.wait([life.task, life.announcing])
        return life.worker.site.epoch

    def reset_streams(self, worker_id: str) -> None:
        """Every stream of a worker breaks; the worker lives on."""
        life = self.lives[worker_id]
        for link in life.links:
            link.break_now("reset")
        life.links.clear()

    def stall(self, worker_id: str) -> None:
        """Bytes to that worker do not move, until `resume`."""
        self.stalled.add(worker_id)
        for (_, receiver), outlet in self.outlets.items():
            if receiver == worker_id:
                outlet.stall()

    def resume(self, worker_id: str) -> None:
        """May be called again."""
        if worker_id in self.stalled:
            self.stalled.remove(worker_id)
            for (_, receiver), outlet in self.outlets.items():
                if receiver == worker_id:
                    outlet.resume()

    def hang(self, worker_id: str) -> None:
        """The step that it begins next never ends; the process and its streams live on."""
        self.hung.add(worker_id)

    async def replace_hung(self) -> None:
        """What the launcher does with such a worker: kill it, prove its end, start another."""
        for name in sorted(self.hung):
            self.router.report_gone(await self.kill(name))
            self.start(name, name.rstrip("0123456789"))

    async def random_misfortune(self) -> None:
        """Kills and resets now and then; the launcher restarts what was killed and proves its end.

        Until cancelled.
        """
        while True:
            await asyncio.sleep(self.random.uniform(0.0, 0.1))
            name = self.random.choice(sorted(self.lives))
            if self.random.random() < 0.3:
                self.reset_streams(name)
                continue
            epoch = await self.kill(name)
            await asyncio.sleep(self.random.uniform(0.0, 0.5))
            self.router.report_gone(epoch)
            self.start(name, name.rstrip("0123456789"))

    async def dial_worker(self, address: worker_pb2.WorkerAddress) -> MemoryLink[Any, Any]:
        return self._dial(address.endpoint, lambda worker, link: worker.serve_session(link))

    async def _dial_peer(self, endpoint: str) -> MemoryLink[Any, Any]:
        return self._dial(endpoint, lambda worker, link: worker.serve_peer(link))

    def _dial(
        self, endpoint: str, serve: Callable[[Worker, MemoryLink[Any, Any]], Awaitable[object]]
    ) -> MemoryLink[Any, Any]:
        life = self.lives.get(endpoint)
        if life is None:
            raise LinkBrokenError("connection refused")
        here: MemoryLink[Any, Any]
        there: MemoryLink[Any, Any]
        here, there = link_pair()
        life.links.append(there)
        self._tasks.create_task(self._serve(life.worker, there, serve))
        return here

    async def _serve(
        self,
        worker: Worker,
        link: MemoryLink[Any, Any],
        serve: Callable[[Worker, MemoryLink[Any, Any]], Awaitable[object]],
    ) -> None:
        try:
            await serve(worker, link)
        except StaleEpochError as error:  # over gRPC: FAILED_PRECONDITION
            link.break_now(str(error))

    def _build(self, worker_id: str, roles: str) -> Worker:
        config = WorkerConfig(
            worker_id=worker_id,
            limits=StepLimits(
                step_tokens=self.shape.step_tokens, decode_rows=self.shape.decode_rows
            ),
            sessions=SessionConfig(grace_s=4.0, tombstone_s=3.0),
        )
        make = self.shape.make_decode_engine if roles == "d" else None
        engine = (make or self.shape.make_engine)(self.shape.n_pages)
        runner = TimedStepRunner(
            _Hangable(engine, lambda: worker_id in self.hung), steps_ahead=self.shape.steps_ahead
        )
        site = Site(config, engine, epoch=next(self._epochs))
        decode, prefill = DecodeConfig(), PrefillConfig()
        decode = replace(decode, receiver=replace(decode.receiver, lease=LEASE))
        prefill = replace(prefill, sender=replace(prefill.sender, lease=LEASE))
        decode_role = DecodeRole(site, decode) if "d" in roles else None
        prefill_role = PrefillRole(site, prefill, adopter=decode_role) if "p" in roles else None
        maker = PageMaker(engine.pool, engine.spec.layout)

        def open_outlet(hello: transfer_pb2.ReceiverHello) -> MemoryOutlet:
            if self.failing_opens:
                self.failing_opens -= 1
                raise OSError(errno.EMFILE, "no descriptor is left")
            source = maker.source_for(hello.layout)
            outlet = self._fabric.outlet(site.epoch, source, hello.transport_address)
            self.outlets[worker_id, hello.worker_id] = outlet
            if hello.worker_id in self.stalled:
                outlet.stall()
            return outlet

        wire = Wire(
            dial=self._dial_peer,
            open_outlet=open_outlet,
            landings={"memory": self._fabric.landing(site.epoch, engine.pool)},
            transports=("memory",),
            makes_dtypes=maker.makes_dtypes,
        )
        return Worker(config, site, Roles(decode_role, prefill_role), runner, wire)

    async def _announce(self, worker: Worker) -> None:
        announcer = Announcer(worker, metrics_port=None)
        while True:
            answer = self.router.announce(announcer.describe())
            await asyncio.sleep(answer.interval_ms / 1000)

    # -- clients ----------------------------------------------------------------------------

    async def ask(
        self, prompt: Sequence[int], params: SamplingParams, *, priority: int = 0
    ) -> list[inference_pb2.Token]:
        """The answer's tokens, as a client gets them. Raises what the client would see."""
        request = inference_pb2.GenerateRequest(
            token_ids=inference_pb2.TokenIds(ids=prompt),
            sampling=params_to_proto(params),
            priority=priority,
        )
        tokens: list[inference_pb2.Token] = []
        async for response in self.router.generate(request):
            for token in response.tokens:
                assert token.index == len(tokens), "a token was lost or came twice"
                tokens.append(token)
        assert response.finish_reason, "an answer ended without saying why"
        return tokens

    # -- audits -----------------------------------------------------------------------------

    async def settle(self, within_s: float = 2.0) -> None:
        """Nothing of any request is left within so long. Raises AssertionError saying what is."""
        deadline = asyncio.get_running_loop().time() + within_s
        while (left := self._left_over()) and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(0.05)
        assert not left, left
        for life in self.lives.values():
            life.worker.check_integrity()

    def _left_over(self) -> list[str]:
        left = []
        for name, life in self.lives.items():
            counts = life.worker.site.pages.counts()
            if counts.used or counts.pinned or counts.quarantined:
                left.append(f"{name}: {counts}")
            left += [f"{name}: {row}" for role in life.worker.roles.all for row in role.rows]
        left += [f"router: {request.request_id}" for request in self.status().requests]
        return left

    def status(self) -> cluster_pb2.GetStatusResponse:
        return self.router.status()


@asynccontextmanager
async def virtual_cluster(shape: Shape, seed: int = 0) -> AsyncIterator[VirtualCluster]:
    """A cluster that serves; every task in it is waited for at the end."""
    async with asyncio.TaskGroup() as tasks:
        cluster = VirtualCluster(shape, tasks, seed)
        async with cluster.router:
            for number, roles in enumerate(shape.roles):
                cluster.start(f"{roles}{number}", roles)
            while not cluster.router.can_serve():
                await asyncio.sleep(0.05)
            yield cluster
            for name in list(cluster.lives):
                await cluster.kill(name)
