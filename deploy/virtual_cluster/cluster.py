"""The whole cluster in one process under virtual time: real router, workers, roles, transfers.

Only the edges are doubles: links of memory, pages over the memory fabric, a fake engine that sees
every wrong page. A worker can be killed (all that it had is gone), and comes back with a new epoch;
its streams can be reset while it lives on.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import itertools
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from twolane.decode_worker.config import DecodeConfig
from twolane.decode_worker.role import DecodeRole
from twolane.deploy.virtual_cluster.worker import HangingRunner, Life, Outcome
from twolane.engine.fake import FakeEngine, FakeEngineConfig
from twolane.kvtransfer.config import LeaseConfig
from twolane.kvtransfer.layouts.sources import PageMaker
from twolane.kvtransfer.testing.memory import Faults, MemoryFabric, MemoryLanding, MemoryOutlet
from twolane.params import SamplingParams
from twolane.prefill_worker.config import PrefillConfig
from twolane.prefill_worker.role import PrefillRole
from twolane.router.config import AdmissionConfig, DispatchConfig, MembershipConfig, RouterConfig
from twolane.router.members.membership import NameTakenError
from twolane.router.router import Router
from twolane.rpc.link import LinkBrokenError
from twolane.rpc.params import params_to_proto
from twolane.security.identity import ANONYMOUS, Identity
from twolane.testing.links import MemoryLink, link_pair
from twolane.v1 import cluster_pb2, inference_pb2, sampling_pb2, transfer_pb2, worker_pb2
from twolane.worker.config import SessionConfig, StepLimits, StepWatchConfig, WorkerConfig
from twolane.worker.context import WorkerContext
from twolane.worker.doors.announcer import Announcer
from twolane.worker.errors import RouterInUseError, StaleEpochError
from twolane.worker.peers.peers import Wiring
from twolane.worker.role import Roles
from twolane.worker.steps.step_runner import TimedEngine
from twolane.worker.worker import Worker

_ROLES = {"p": worker_pb2.ROLE_PREFILL, "d": worker_pb2.ROLE_DECODE}
ANYWHERE = AdmissionConfig(beside_rows_s=None)  # workers with both roles take any prompt
LEASE = LeaseConfig(lease_s=3.0, heartbeat_s=0.5, retry_first_s=0.05, retry_most_s=0.4)


def make_fake_engine(n_pages: int) -> TimedEngine:
    return FakeEngine(FakeEngineConfig(n_pages=n_pages))


@dataclass(frozen=True, kw_only=True)
class Shape:
    """`roles` names each worker's: "p", "d" or "pd"; "p+" and "d+" may take the other one."""

    roles: Sequence[str] = ("p", "d")
    n_pages: int = 256
    make_engine: Callable[[int], TimedEngine] = make_fake_engine  # of so many pages
    make_decode_engine: Callable[[int], TimedEngine] | None = None  # of workers that decode only
    step_tokens: int = 96
    decode_rows: int = 16
    transfer_faults: Faults = field(default_factory=Faults)
    sender_writes: bool = False
    steps_ahead: int = 0
    submit_s: float = 0.0  # of a step, until the device has it
    prefill: PrefillConfig = field(default_factory=PrefillConfig)
    step_watch: StepWatchConfig = field(default_factory=StepWatchConfig)
    admission: AdmissionConfig = ANYWHERE
    dispatch: DispatchConfig = field(default_factory=lambda: DispatchConfig(max_failures=40))


class VirtualCluster:
    """Made by `virtual_cluster`."""

    def __init__(self, shape: Shape, tasks: asyncio.TaskGroup, seed: int) -> None:
        self.shape = shape
        self.random = random.Random(seed)
        self.lives: dict[str, Life] = {}
        self.kills = 0
        self.outlets: dict[tuple[str, str], MemoryOutlet] = {}  # (from, to): the latest
        self.stalled: set[str] = set()  # bytes to these workers do not move
        self.landings: dict[str, MemoryLanding] = {}  # of each worker's latest life
        self.cut_off: set[str] = set()  # no process reaches these workers, nor they any
        self.hung: set[str] = set()  # steps of these workers do not end
        self.dials_to_fail: Counter[str] = Counter()  # so many of other workers, by worker
        self.opens_to_fail: Counter[str] = Counter()  # of transports, by either worker
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
                admission=shape.admission,
                dispatch=shape.dispatch,
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
        self.resume(worker_id)  # bytes to a process that is gone do not stay on their way
        life.announcing.cancel()
        life.task.cancel()
        for link in life.links:
            link.break_now("killed")
        await asyncio.wait([life.task, life.announcing])
        return life.worker.context.epoch

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

    def cut(self, worker_id: str) -> None:
        """The network of its host is cut: streams break, dials fail, bytes on their way wait."""
        self.cut_off.add(worker_id)
        self.reset_streams(worker_id)
        for link in self.lives[worker_id].dialled:
            link.break_now("no route to host")
        for pair, outlet in self.outlets.items():
            if worker_id in pair:
                outlet.cut()

    def heal(self, worker_id: str) -> None:
        """What was on its way arrives, late."""
        self.cut_off.remove(worker_id)
        for pair, outlet in self.outlets.items():
            if worker_id in pair and not self.cut_off & {*pair}:
                outlet.heal()

    def dropped(self, reason: str) -> int:
        """How many pages came over the network and were refused for that reason."""
        return sum(landing.table.dropped[reason] for landing in self.landings.values())

    async def dial_worker(self, address: worker_pb2.WorkerAddress) -> MemoryLink[Any, Any]:
        return self._dial(address.endpoint, lambda worker, link: worker.serve_session(link))

    async def _dial_peer(self, worker_id: str, endpoint: str) -> MemoryLink[Any, Any]:
        if self.dials_to_fail[endpoint]:
            self.dials_to_fail[endpoint] -= 1
            raise LinkBrokenError("a packet was lost")
        if worker_id in self.cut_off:
            raise LinkBrokenError("no route to host")
        link = self._dial(endpoint, lambda worker, link: worker.serve_peer(link))
        self.lives[worker_id].dialled.append(link)
        return link

    def _dial(
        self, endpoint: str, serve: Callable[[Worker, MemoryLink[Any, Any]], Awaitable[object]]
    ) -> MemoryLink[Any, Any]:
        life = self.lives.get(endpoint)
        if life is None:
            raise LinkBrokenError("connection refused")
        if endpoint in self.cut_off:
            raise LinkBrokenError("no route to host")
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
        except (StaleEpochError, RouterInUseError) as error:  # over gRPC: the stream's status
            link.break_now(str(error))

    def _build(self, worker_id: str, roles: str) -> Worker:
        shape = self.shape
        config = WorkerConfig(
            worker_id=worker_id,
            limits=StepLimits(step_tokens=shape.step_tokens, decode_rows=shape.decode_rows),
            sessions=SessionConfig(grace_s=4.0, tombstone_s=3.0),
            step_watch=shape.step_watch,
        )
        make = shape.make_decode_engine if roles == "d" else None
        engine = (make or shape.make_engine)(shape.n_pages)
        context = WorkerContext(config, engine, epoch=next(self._epochs))
        decode, prefill = DecodeConfig(), shape.prefill
        decode = replace(decode, receiver=replace(decode.receiver, lease=LEASE))
        prefill = replace(prefill, sender=replace(prefill.sender, lease=LEASE))
        able = "pd" if roles.endswith("+") else roles
        decode_role = DecodeRole(context, decode) if "d" in able else None
        prefill_role = PrefillRole(context, prefill, adopter=decode_role) if "p" in able else None
        maker = PageMaker(engine.pool, engine.spec.layout)

        def open_outlet(hello: transfer_pb2.ReceiverHello) -> MemoryOutlet:
            for name in (worker_id, hello.worker_id):
                if self.opens_to_fail[name]:
                    self.opens_to_fail[name] -= 1
                    raise OSError(errno.EMFILE, "Too many open files")
            source = maker.source_for(hello.layout)
            outlet = self._fabric.outlet(context.epoch, source, hello.transport_address)
            self.outlets[worker_id, hello.worker_id] = outlet
            if hello.worker_id in self.stalled:
                outlet.stall()
            return outlet

        landing = self.landings[worker_id] = self._fabric.landing(context.epoch, engine.pool)
        wire = Wiring(
            dial=partial(self._dial_peer, worker_id),
            open_outlet=open_outlet,
            landings={"memory": landing},
            transports=("memory",),
            makes_dtypes=maker.makes_dtypes,
        )
        runner = HangingRunner(
            engine, shape.steps_ahead, shape.submit_s, lambda: worker_id in self.hung
        )
        offered = [_ROLES[letter] for letter in roles if letter in _ROLES]
        return Worker(
            config, context, Roles(decode_role, prefill_role), runner, wire, offered=offered
        )

    async def _announce(self, worker: Worker) -> None:
        announcer = Announcer(worker)
        while True:
            if worker.config.worker_id not in self.cut_off:
                with contextlib.suppress(NameTakenError):  # until its former life is missed
                    self.router.announce(announcer.describe())
            await asyncio.sleep(worker.config.announce_every_s)

    # -- clients ----------------------------------------------------------------------------

    async def ask(
        self,
        prompt: Sequence[int],
        params: SamplingParams,
        *,
        priority: int = 0,
        request_id: str = "",
    ) -> list[inference_pb2.Token]:
        """The answer's tokens, as a client gets them. Raises what the client would see."""
        tokens, _ = await self._generate(prompt, params, priority, request_id)
        return tokens

    async def outcome(
        self,
        prompt: Sequence[int],
        params: SamplingParams,
        *,
        priority: int = 0,
        caller: Identity = ANONYMOUS,
    ) -> Outcome:
        """As `ask`, and what it took."""
        clock = asyncio.get_running_loop().time
        begun = clock()
        tokens, ledger = await self._generate(prompt, params, priority, caller=caller)
        return Outcome([token.token_id for token in tokens], ledger, clock() - begun)

    async def _generate(
        self,
        prompt: Sequence[int],
        params: SamplingParams,
        priority: int = 0,
        request_id: str = "",
        caller: Identity = ANONYMOUS,
    ) -> tuple[list[inference_pb2.Token], sampling_pb2.Ledger]:
        request = inference_pb2.GenerateRequest(
            request_id=request_id,
            token_ids=inference_pb2.TokenIds(ids=prompt),
            sampling=params_to_proto(params),
            priority=priority,
        )
        tokens: list[inference_pb2.Token] = []
        async for response in self.router.generate(request, caller):
            for token in response.tokens:
                assert token.index == len(tokens), "a token was lost or came twice"
                tokens.append(token)
        assert response.finish_reason, "an answer ended without saying why"
        return tokens, response.ledger

    # -- audits -----------------------------------------------------------------------------

    async def settle(self, within_s: float = 2.0) -> None:
        """Nothing of any request is left within so long. Raises AssertionError saying what is."""
        clock = asyncio.get_running_loop().time
        deadline = clock() + within_s
        while (left := self._left_over()) and clock() < deadline:  # noqa: ASYNC110 - many events
            await asyncio.sleep(0.05)
        assert not left, left
        self.router.check_integrity()
        assert not self.status().counters["bugs"], "a request has met one; the log has its trace"
        for life in self.lives.values():
            life.worker.check_integrity()

    def _left_over(self) -> list[str]:
        left = []
        for name, life in self.lives.items():
            counts = life.worker.context.pages.counts()
            if counts.used or counts.pinned or counts.quarantined:
                left.append(f"{name}: {counts}")
            left += [f"{name}: {row}" for role in life.worker.roles.all for row in role.rows]
        left += [f"router: {request.request_id}" for request in self.status().requests]
        return left

    def flip(self, worker_id: str, roles: str) -> None:
        """As a controller asks for it with its next call."""
        wish = cluster_pb2.RoleWish(
            epoch=self.lives[worker_id].worker.context.epoch, roles=[_ROLES[r] for r in roles]
        )
        told = cluster_pb2.SuperviseRequest(controller_id="c", roles=[wish])
        self.router.operations.supervise(told)

    def status(self) -> cluster_pb2.GetClusterStatusResponse:
        return self.router.status()


@asynccontextmanager
async def virtual_cluster(shape: Shape, seed: int = 0) -> AsyncIterator[VirtualCluster]:
    """A cluster that serves; every task in it is waited for at the end."""
    async with asyncio.TaskGroup() as tasks:
        cluster = VirtualCluster(shape, tasks, seed)
        async with cluster.router:
            for number, roles in enumerate(shape.roles):
                cluster.start(f"{roles}{number}", roles)
            while not cluster.router.can_serve():  # noqa: ASYNC110 - no event
                await asyncio.sleep(0.05)
            yield cluster
            for name in list(cluster.lives):
                await cluster.kill(name)
