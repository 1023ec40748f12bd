"""Rollouts under load and virtual time: real router, workers, transfers and controller."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence

import pytest

from tests.cluster.test_virtual_cluster import Job, make_jobs
from tests.cluster.virtual_rollout import NEW, OLD, STEP, RollingCluster, rolling_cluster
from twolane.engine.fake import FakeEngineConfig, expected_answer
from twolane.params import SamplingParams
from twolane.testing.virtual_time import virtual_time_runner

Scene = Callable[[RollingCluster], Awaitable[None]]


def play(scene: Scene, seed: int = 0, *, roles: Sequence[str] = ("p-", "p-", "d-", "d-")) -> None:
    async def main() -> None:
        async with rolling_cluster(roles, seed) as rolling:
            await scene(rolling)

    with virtual_time_runner(seed) as runner:
        runner.run(main())


def answer_of(revision: str, job: Job) -> list[int]:
    prompt, params = job
    config = FakeEngineConfig(revision=revision)
    return expected_answer(prompt, params, params.max_tokens or 0, config=config)


class Load:
    """Clients that ask again and again. Each answer is that of one revision, from its first token
    to its last, by a pair that has it. `answers`: how many each has given."""

    def __init__(self, rolling: RollingCluster, seed: int, clients: int = 3) -> None:
        self.answers: Counter[str] = Counter()
        self._rolling = rolling
        self._jobs = make_jobs(60, seed)
        self._tasks = [asyncio.create_task(self._ask(seed * 100 + n)) for n in range(clients)]
        self._is_over = False

    async def _ask(self, seed: int) -> None:
        chance = random.Random(seed)
        while not self._is_over:
            await self.one(chance.choice(self._jobs))
            await asyncio.sleep(chance.uniform(0.1, 1.0))

    async def one(self, job: Job) -> str:
        tokens = (await self._rolling.cluster.outcome(*job)).tokens
        (revision,) = [its for its in (OLD, NEW) if tokens == answer_of(its, job)]
        self.answers[revision] += 1
        return revision

    async def end(self) -> None:
        """Raises what a client has met."""
        self._is_over = True
        await asyncio.gather(*self._tasks)


def test_rollout_under_load_loses_no_request_and_mixes_no_batch() -> None:
    async def scene(rolling: RollingCluster) -> None:
        load = Load(rolling, seed=1)
        await asyncio.sleep(1.0)
        assert {*load.answers} == {OLD}
        await rolling.begin()
        await rolling.until("done")
        await asyncio.sleep(1.0)
        await load.end()
        assert {*rolling.revisions.values()} == {NEW}
        assert {*load.answers} == {OLD, NEW}
        counters = rolling.cluster.status().counters
        assert not [name for name in counters if name.startswith("failed")]
        assert not _resumes(counters), "every row ran out where it was"
        assert not counters["revision_changes"]
        await rolling.cluster.settle()

    play(scene)


@pytest.mark.parametrize(
    "seed", [0, 1, *(pytest.param(n, marks=pytest.mark.soak) for n in range(2, 100))]
)
def test_undo_at_any_instant_loses_nothing(seed: int) -> None:
    async def scene(rolling: RollingCluster) -> None:
        load = Load(rolling, seed)
        await rolling.begin()
        await asyncio.sleep(random.Random(seed).uniform(0.0, 12.0))
        if rolling.state == "running":
            await rolling.step(STEP.STEP_UNDO)
        await rolling.until("done", "undone")
        await load.end()
        end = OLD if rolling.state == "undone" else NEW
        assert {*rolling.revisions.values()} == {end}
        assert not rolling.cluster.status().counters["revision_changes"]
        await rolling.cluster.settle()

    play(scene, seed)


def test_undo_half_way_takes_every_worker_back() -> None:
    async def scene(rolling: RollingCluster) -> None:
        load = Load(rolling, seed=3, clients=1)
        await rolling.begin()
        async with asyncio.timeout(60.0):
            while Counter(rolling.revisions.values())[NEW] < 2:
                await asyncio.sleep(0.05)
        await rolling.step(STEP.STEP_UNDO)
        await rolling.until("undone")
        await load.end()
        assert {*rolling.revisions.values()} == {OLD}
        assert {*rolling.revisions} == {"p-0", "p-1", "d-2", "d-3"}

    play(scene)


def test_undo_of_weights_that_never_come_up() -> None:
    async def scene(rolling: RollingCluster) -> None:
        load = Load(rolling, seed=4, clients=1)
        rolling.bad.add(NEW)
        await rolling.begin()
        async with asyncio.timeout(60.0):
            while len(rolling.revisions) > 2:
                await asyncio.sleep(0.1)
        await asyncio.sleep(5.0)
        assert rolling.state == "running"
        assert {*rolling.revisions.values()} == {OLD}
        await rolling.step(STEP.STEP_UNDO)
        await rolling.until("undone")
        await load.end()
        assert {*load.answers} == {OLD}

    play(scene)


def test_canary_gets_its_share_of_new_requests_and_no_more() -> None:
    async def scene(rolling: RollingCluster) -> None:
        load = Load(rolling, seed=5, clients=0)
        await rolling.begin(canary=0.1)
        await rolling.until("canary")
        few = SamplingParams(max_tokens=2, seed=1)
        await asyncio.gather(*(load.one(([n % 256, n // 256], few)) for n in range(400)))
        assert 20 < load.answers[NEW] < 60
        await rolling.step(STEP.STEP_RESUME)
        await rolling.until("done")

    play(scene)


def _resumes(counters: Mapping[str, int]) -> list[str]:
    return [name for name, n in counters.items() if name.startswith("resumes") and n]


async def half_way(rolling: RollingCluster) -> None:
    """The first pair has the new revision, and serves; nothing goes on."""
    await rolling.begin()
    async with asyncio.timeout(60.0):
        while not rolling.pools.desired.removals:
            await asyncio.sleep(0.01)
        await rolling.step(STEP.STEP_PAUSE)
        while (its := rolling.pools.rollout()) is None or "operator" not in its.waits_for:
            await asyncio.sleep(0.1)


async def ask_long(rolling: RollingCluster, load: Load, n: int) -> list[asyncio.Task[str]]:
    """Answers of some seconds, which have begun."""
    params = SamplingParams(max_tokens=400, seed=2, ignore_eos=True)
    asked = [asyncio.create_task(load.one(([i] * 40, params))) for i in range(n)]
    async with asyncio.timeout(5.0):
        while rolling.cluster.status().counters["attempts"] < n:
            await asyncio.sleep(0.05)
    await asyncio.sleep(0.3)
    return asked


def test_answer_whose_worker_dies_goes_on_with_its_own_revision() -> None:
    async def scene(rolling: RollingCluster) -> None:
        load = Load(rolling, seed=6, clients=0)
        await half_way(rolling)
        old = [n for n, its in rolling.revisions.items() if n[0] == "d" and its == OLD]
        assert len(old) == 2
        asked = await ask_long(rolling, load, 12)
        await rolling.crash(old[0])
        await asyncio.gather(*asked)
        assert {*load.answers} == {OLD, NEW}
        counters = rolling.cluster.status().counters
        assert _resumes(counters)
        assert not counters["revision_changes"]

    play(scene, roles=("p-", "p-", "d-", "d-", "d-"))


def test_answer_of_a_revision_that_is_lost_goes_on_with_the_other_one() -> None:
    async def scene(rolling: RollingCluster) -> None:
        await half_way(rolling)
        (old,) = [n for n, its in rolling.revisions.items() if n[0] == "d" and its == OLD]
        params = SamplingParams(max_tokens=400, seed=2, ignore_eos=True)
        jobs = [([n] * 40, params) for n in range(8)]
        asked = [asyncio.create_task(rolling.cluster.outcome(*job)) for job in jobs]
        await asyncio.sleep(0.6)
        await rolling.crash(old)
        assert [len((await its).tokens) for its in asked] == [400] * len(jobs)
        assert rolling.cluster.status().counters["revision_changes"]

    play(scene)


def test_hand_over_moves_no_answer_to_another_revision() -> None:
    async def scene(rolling: RollingCluster) -> None:
        load = Load(rolling, seed=6, clients=0)
        await half_way(rolling)
        (old,) = [n for n, its in rolling.revisions.items() if n[0] == "d" and its == OLD]
        asked = await ask_long(rolling, load, 8)
        assert rolling.cluster.lives[old].worker.roles.all[0].rows
        rolling.cluster.router.operations.drain(old, hand_over=True)
        await asyncio.gather(*asked)
        assert {*load.answers} == {OLD, NEW}
        assert not rolling.cluster.status().counters["revision_changes"]

    play(scene)
