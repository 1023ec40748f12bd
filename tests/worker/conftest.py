"""One fixture builds workers of any shape on a fake engine, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Protocol

import pytest

from tests.worker.marked_steps import MarkedStepRunner
from twolane.decode_worker.config import DecodeConfig
from twolane.decode_worker.role import DecodeRole
from twolane.engine.fake import FakeEngine, FakeEngineConfig
from twolane.kvtransfer.config import LeaseConfig
from twolane.kvtransfer.layouts.sources import PageMaker
from twolane.kvtransfer.testing.memory import Faults, MemoryFabric
from twolane.params import SamplingParams
from twolane.prefill_worker.config import PrefillConfig
from twolane.prefill_worker.role import PrefillRole
from twolane.testing.links import MemoryLink, link_pair
from twolane.testing.virtual_time import virtual_time_runner
from twolane.v1 import transfer_pb2
from twolane.worker.attempts.attempt_id import AttemptId
from twolane.worker.config import SessionConfig, StepLimits, WorkerConfig
from twolane.worker.context import WorkerContext
from twolane.worker.peers.peers import Wiring
from twolane.worker.role import Roles
from twolane.worker.steps.step_runner import TimedStepRunner
from twolane.worker.testing import ScriptedRouter
from twolane.worker.worker import Worker

PeerLink = MemoryLink[transfer_pb2.ConnectRequest, transfer_pb2.ConnectResponse]
LEASE = LeaseConfig(lease_s=2.0, heartbeat_s=0.3, retry_first_s=0.05, retry_most_s=0.3)


@dataclass
class WorkerCluster:
    """Workers that can reach each other over memory, and a scripted router in front of them."""

    tasks: asyncio.TaskGroup
    router: ScriptedRouter
    fabric: MemoryFabric
    workers: dict[str, Worker] = field(default_factory=dict)
    lives: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    peer_links: list[PeerLink] = field(default_factory=list)
    steps_ahead: int = 0
    has_marks: bool = False  # pages are handed to the transfer before they are computed

    def add(
        self,
        worker_id: str,
        roles: str,
        *,
        engine: FakeEngineConfig | None = None,
        limits: StepLimits | None = None,
        prefill: PrefillConfig | None = None,
        decode: DecodeConfig | None = None,
        sessions: SessionConfig | None = None,
        lease: LeaseConfig = LEASE,
        open_stream: bool = True,
    ) -> Worker:
        """A running worker; `roles` is "p", "d" or "pd"."""
        config = WorkerConfig(
            worker_id=worker_id,
            limits=limits or StepLimits(step_tokens=128, decode_rows=16),
            sessions=sessions or SessionConfig(grace_s=3.0, tombstone_s=2.0),
        )
        fake = FakeEngine(engine or FakeEngineConfig(n_pages=256))
        context = WorkerContext(config, fake)
        decode = decode or DecodeConfig()
        decode = replace(decode, receiver=replace(decode.receiver, lease=lease))
        prefill = prefill or PrefillConfig()
        prefill = replace(prefill, sender=replace(prefill.sender, lease=lease))
        decode_role = DecodeRole(context, decode) if "d" in roles else None
        prefill_role = PrefillRole(context, prefill, adopter=decode_role) if "p" in roles else None
        maker = PageMaker(fake.pool, fake.spec.layout)
        wire = Wiring(
            dial=self._dial,
            open_outlet=lambda hello: self.fabric.outlet(
                context.epoch, maker.source_for(hello.layout), hello.transport_address
            ),
            landings={"memory": self.fabric.landing(context.epoch, fake.pool)},
            transports=("memory",),
            makes_dtypes=maker.makes_dtypes,
        )
        steps = MarkedStepRunner if self.has_marks else TimedStepRunner
        runner = steps(fake, steps_ahead=self.steps_ahead)
        worker = Worker(config, context, Roles(decode_role, prefill_role), runner, wire)
        worker.endpoint = worker_id
        self.workers[worker_id] = worker
        self.lives[worker_id] = self.tasks.create_task(worker.run())
        if open_stream:
            self.router.open(worker)
        return worker

    async def kill(self, worker: Worker) -> None:
        """The process is gone: its streams are reset, and nobody answers."""
        worker_id = worker.context.worker_id
        del self.workers[worker_id]
        life = self.lives.pop(worker_id)
        life.cancel()
        await asyncio.wait([life])
        self.router.cut(worker)
        for link in self.peer_links:
            link.break_now("killed")

    def crowd(
        self,
        jobs: dict[str, list[int]],
        params: SamplingParams,
        *,
        prefill: Worker,
        decode: Worker,
        growth_tokens: int | None = None,
    ) -> Crowd:
        return Crowd(self, jobs, params, prefill, decode, growth_tokens)

    async def settle(self, seconds: float = 3.0) -> None:
        """Time passes; then nothing may be left on any worker."""
        await asyncio.sleep(seconds)
        for worker in self.workers.values():
            worker.check_integrity()
            counts = worker.context.pages.counts()
            held = (counts.used, counts.pinned, counts.quarantined)
            assert held == (0, 0, 0), f"{worker.context.worker_id} still holds {counts}"

    async def _dial(self, endpoint: str) -> PeerLink:
        here: PeerLink
        there: MemoryLink[transfer_pb2.ConnectResponse, transfer_pb2.ConnectRequest]
        here, there = link_pair()
        worker = self.workers.get(endpoint)
        if worker is None:
            here.break_now("refused")
        else:
            self.peer_links.append(here)
            self.tasks.create_task(worker.serve_peer(there))
        return here


@dataclass
class Crowd:
    """Requests that are resumed as a router would, until each has its whole answer."""

    town: WorkerCluster
    jobs: dict[str, list[int]]
    params: SamplingParams
    prefill: Worker
    decode: Worker
    growth_tokens: int | None = None
    answers: dict[str, list[int]] = field(default_factory=dict)
    n_resumes: int = 0

    async def run(self, within_s: float = 120.0) -> None:
        router = self.town.router
        current = {name: AttemptId(name, 1) for name in self.jobs}
        for name, attempt in current.items():
            self._assign(attempt, [], self.growth_tokens)
            assert not router.tokens[attempt], name
        async with asyncio.timeout(within_s):
            while current:
                await router.wait_for(lambda: any(self._is_over(a) for a in current.values()))
                for name, attempt in list(current.items()):
                    if router.finish_of(attempt):
                        self.answers[name] = router.answer(attempt)
                        del current[name]
                    elif self._is_over(attempt):
                        self.n_resumes += 1
                        following = current[name] = AttemptId(name, attempt.number + 1)
                        router.tokens[following] = list(router.tokens[attempt])
                        self._assign(following, router.answer(attempt), None)

    def _is_over(self, attempt: AttemptId) -> bool:
        kinds = self.town.router.kinds(attempt)
        assert "FAILED" not in kinds, f"{attempt} failed in an engine"  # a router does not retry it
        lost = {"PREEMPTED", "DEAD", "REFUSED"} & set(kinds)
        return bool(lost or self.town.router.finish_of(attempt))

    def _assign(self, attempt: AttemptId, known: list[int], growth_tokens: int | None) -> None:
        prompt = self.jobs[attempt.submission_id]
        self.town.router.assign(
            attempt,
            prompt + known,
            n_prompt=len(prompt),
            prefill=self.prefill,
            decode=self.decode,
            params=self.params,
            growth_tokens=growth_tokens,
        )


@asynccontextmanager
async def build_town(faults: Faults | None, sender_writes: bool) -> AsyncIterator[WorkerCluster]:
    loop = asyncio.get_running_loop()
    async with asyncio.TaskGroup() as tasks:
        fabric = MemoryFabric(
            seed=1, faults=faults, sender_writes=sender_writes, call_later=loop.call_later
        )
        town = WorkerCluster(tasks, ScriptedRouter(tasks), fabric)
        yield town
        town.router.close()
        for link in town.peer_links:
            link.close()
        for life in town.lives.values():
            life.cancel()


Scene = Callable[[WorkerCluster], Awaitable[None]]


class Play(Protocol):
    """Runs `async def scene(town)` in virtual time."""

    def __call__(
        self, scene: Scene, *, faults: Faults | None = None, sender_writes: bool = False
    ) -> None: ...


@pytest.fixture(
    params=[(0, False), (1, False), (1, True)],
    ids=["in turn", "a step ahead", "a step ahead with marks"],
)
def play(request: pytest.FixtureRequest) -> Play:
    steps_ahead: int
    has_marks: bool
    steps_ahead, has_marks = request.param

    def run(scene: Scene, *, faults: Faults | None = None, sender_writes: bool = False) -> None:
        async def main() -> None:
            async with build_town(faults, sender_writes) as town:
                town.steps_ahead, town.has_marks = steps_ahead, has_marks
                await scene(town)

        with virtual_time_runner() as runner:
            runner.run(main())

    return run
