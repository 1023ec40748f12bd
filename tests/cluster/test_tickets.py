"""Drains at random moments, under load: a worker that has its ticket is killed at that instant, and
nobody notices."""

from __future__ import annotations

import asyncio
import random
from collections import Counter

import pytest

from twolane.deploy.virtual_cluster.cluster import Shape, VirtualCluster, virtual_cluster
from twolane.engine.fake import expected_answer
from twolane.errors import PreconditionError
from twolane.params import SamplingParams
from twolane.router.members.member import Member
from twolane.testing.virtual_time import virtual_time_runner
from twolane.worker.worker import Worker

N_QUICK, N_SOAK = 15, 10_000
COSTLY = (
    "decode_worker_lost",
    "prefill_worker_lost",
    "missing_events",
    "stalled",
    "not_retargeted",
)


def member(cluster: VirtualCluster, worker_id: str) -> Member:
    return cluster.router.operations.member(worker_id)


def check_ticket(worker: Worker) -> None:
    """Nothing that was accepted is beside a ticket."""
    load = worker.load()
    if not load.drain.has_ticket:
        return
    assert worker.is_drained
    assert load.rows == load.prefill_queue == load.decode_queue == 0
    decode, prefill = worker.roles.decode, worker.roles.prefill
    assert decode is None or not decode.receiver.keys()
    assert prefill is None or not prefill.sender.keys()
    assert load.pages.used == load.pages.pinned == 0


class Schedule:
    """One random run."""

    def __init__(self, cluster: VirtualCluster, seed: int) -> None:
        self.cluster = cluster
        self.random = random.Random(seed)
        self.n_killed = 0

    async def client(self) -> None:
        await asyncio.sleep(self.random.uniform(0.0, 2.0))
        prompt = self.random.choices(range(50), k=self.random.choice((3, 40, 200)))
        params = SamplingParams(max_tokens=self.random.choice((1, 8, 60)), seed=1)
        tokens = await self.cluster.ask(prompt, params)
        told = [token.token_id for token in tokens]
        assert told == expected_answer(prompt, params, params.max_tokens or 0)

    async def operator(self) -> None:
        """Drains one worker after the other; the rest can do its work."""
        while True:
            await asyncio.sleep(self.random.uniform(0.0, 0.3))
            name = self.random.choice(sorted(self.cluster.lives))
            self.cluster.router.operations.drain(name, hand_over=self.random.random() < 0.5)
            if self.random.random() < 0.3:
                await asyncio.sleep(self.random.uniform(0.0, 0.2))
                self.cluster.reset_streams(name)
            if self.random.random() < 0.3:
                await asyncio.sleep(self.random.uniform(0.0, 0.2))
                self.cluster.router.operations.drain(name, undo=True)
                continue
            await self.end_at_ticket(name)

    async def end_at_ticket(self, name: str) -> None:
        its = member(self.cluster, name)
        async with asyncio.timeout(60.0):
            while not its.load.drain.has_ticket:
                await asyncio.sleep(0.005)
        ticket = its.load.drain.number
        if self.random.random() < 0.5:
            self.cluster.router.operations.take_ticket(name, ticket)
            while not its.load.drain.is_taken:
                await asyncio.sleep(0.005)
            with pytest.raises(PreconditionError):
                self.cluster.router.operations.drain(name, undo=True)
        if not its.is_open:
            return  # its streams were just reset: what it said last may be old
        epoch = await self.cluster.kill(name)
        self.n_killed += 1
        self.cluster.router.operations.report_gone(epoch)
        await asyncio.sleep(0.05)
        self.cluster.start(name, name.rstrip("0123456789"))
        while self.state_of(name) != "draining":
            await asyncio.sleep(0.01)
        self.cluster.router.operations.drain(name, undo=True)

    def state_of(self, name: str) -> str:
        workers = self.cluster.status().workers
        return [w.state for w in workers if w.worker.worker_id == name][-1]

    async def auditor(self) -> None:
        while True:
            for life in self.cluster.lives.values():
                check_ticket(life.worker)
            await asyncio.sleep(0.01)


def play(seed: int) -> tuple[int, Counter[str]]:
    """Returns how many workers were killed at their tickets, and the router's counters."""

    async def main() -> tuple[int, Counter[str]]:
        roles = random.Random(seed).choice((("p", "p", "d", "d"), ("pd", "pd", "p", "d")))
        async with virtual_cluster(Shape(roles=roles), seed) as cluster:
            schedule = Schedule(cluster, seed)
            ops = [
                asyncio.create_task(schedule.operator()),
                asyncio.create_task(schedule.auditor()),
            ]
            async with asyncio.timeout(120.0), asyncio.TaskGroup() as clients:
                for _ in range(12):
                    clients.create_task(schedule.client())
            for op in ops:
                op.cancel()
            for result in await asyncio.gather(*ops, return_exceptions=True):
                assert isinstance(result, asyncio.CancelledError), result
            return schedule.n_killed, Counter(cluster.status().counters)

    with virtual_time_runner(seed) as runner:
        return runner.run(main())


def check(seeds: range) -> None:
    killed = 0
    for seed in seeds:
        n_killed, counters = play(seed)
        killed += n_killed
        costs = {
            name: counters[f"resumes.{name}"] for name in COSTLY if counters[f"resumes.{name}"]
        }
        assert not costs, (seed, costs)
    assert killed > len(seeds)


def test_a_worker_killed_at_its_ticket_costs_nobody_anything() -> None:
    check(range(N_QUICK))


@pytest.mark.soak
@pytest.mark.timeout(0)
@pytest.mark.parametrize("block", range(N_QUICK, N_SOAK, 500))
def test_the_same_for_thousands_of_seeds(block: int) -> None:
    check(range(block, min(block + 500, N_SOAK)))
