"""Seeded storms over three workers with tiny pools: cuts, cancels, judgements, faulty transports.

Whatever happens, each request that nobody cancelled gets exactly the engine's answer, and in the
end no worker holds anything.
"""

from __future__ import annotations

import asyncio
import random

import pytest

from tests.worker.conftest import Crowd, Play, WorkerCluster
from twolane.engine.fake import FakeEngineConfig, expected_answer
from twolane.kvtransfer.testing.memory import Faults
from twolane.params import SamplingParams
from twolane.v1 import worker_pb2
from twolane.worker.attempts.attempt_id import AttemptId
from twolane.worker.config import StepLimits
from twolane.worker.worker import Worker

PARAMS = SamplingParams(max_tokens=30, seed=7)
LIMITS = StepLimits(step_tokens=48, decode_rows=6)
ENGINE = FakeEngineConfig(n_pages=16)


async def disturb(
    town: WorkerCluster, rng: random.Random, workers: list[Worker], victims: list[AttemptId]
) -> None:
    """Something unpleasant every few milliseconds, for two seconds."""
    for _ in range(150):
        await asyncio.sleep(rng.uniform(0.001, 0.025))
        kind = rng.choice(["cut peers", "cut router", "judge", "cancel", "nothing"])
        if kind == "cut peers" and town.peer_links:
            rng.choice(town.peer_links).break_now("storm")
        elif kind == "cut router":
            worker = rng.choice(workers)
            town.router.cut(worker)
            town.router.open(worker)
            for attempt in list(town.router.tokens):
                heard = len(town.router.answer(attempt))
                town.router.attach(worker, attempt, heard)
        elif kind == "judge":
            judged, judge = rng.sample(workers, 2)
            message = worker_pb2.JudgePeer(epoch=judged.context.epoch)
            town.router.send(judge, worker_pb2.SessionRequest(judge_peer=message))
        elif kind == "cancel" and victims:
            town.router.cancel(victims.pop(), *workers)
        for worker in workers:
            worker.check_integrity()


SEEDS = [*range(4), *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(4, 40))]


@pytest.mark.parametrize("seed", SEEDS)
def test_storm_changes_no_answer_and_leaves_nothing_behind(play: Play, seed: int) -> None:
    async def scene(town: WorkerCluster) -> None:
        rng = random.Random(seed)
        p = town.add("p", "p", engine=ENGINE, limits=LIMITS)
        d = town.add("d", "d", engine=ENGINE, limits=LIMITS)
        both = town.add("b", "pd", engine=ENGINE, limits=LIMITS)
        workers = [p, d, both]
        crowds: list[Crowd] = []
        victims: list[AttemptId] = []
        jobs: dict[str, list[int]] = {}
        for i, (prefill, decode) in enumerate([(p, d), (p, both), (both, d), (both, both)]):
            mine = {}
            for j in range(8):
                tokens = [rng.randrange(256) for _ in range(rng.randrange(1, 120))]
                mine[f"r{i}.{j}"] = tokens[:16] * (j % 3 == 0) + tokens
                victim = AttemptId(f"v{i}.{j}", 1)
                victims.append(victim)
                town.router.assign(
                    victim, tokens, prefill=prefill, decode=decode, params=PARAMS, growth_tokens=1
                )
            jobs |= mine
            crowds.append(town.crowd(mine, PARAMS, prefill=prefill, decode=decode, growth_tokens=4))
        rng.shuffle(victims)
        left = list(victims)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(disturb(town, rng, workers, left))
            for crowd in crowds:
                tasks.create_task(crowd.run())
        for crowd in crowds:
            for name, answer in crowd.answers.items():
                assert answer == expected_answer(jobs[name], PARAMS, 30)
        for victim in victims:
            town.router.cancel(victim, *workers)
        await town.settle(8.0)

    faults = Faults(corrupt=0.01, drop=0.01, duplicate=0.02) if seed % 2 else None
    play(scene, faults=faults, sender_writes=seed % 3 == 0)
