"""What frees pages is told with the load that shows them free, not a second later."""

from __future__ import annotations

import asyncio
import math

from tests.worker.conftest import Play, WorkerCluster
from twolane.params import SamplingParams
from twolane.v1 import worker_pb2
from twolane.worker.attempts.attempt_id import AttemptId
from twolane.worker.config import SessionConfig
from twolane.worker.worker import Worker

A, B = AttemptId("r", 1), AttemptId("q", 1)
PROMPT = [n % 256 for n in range(400)]
MOMENT_S = 0.02  # a few steps


SELDOM = SessionConfig(grace_s=3.0, tombstone_s=2.0, load_least_s=1.0)


def used(town: WorkerCluster, worker: Worker) -> float:
    """As last told; nothing is known once the loads that were told are forgotten."""
    load = town.router.loads.get(worker.context.worker_id)
    return math.inf if load is None else load.pages.used + load.pages.pinned


async def within_a_moment(town: WorkerCluster, worker: Worker, n_pages: int) -> None:
    await town.router.wait_for(lambda: used(town, worker) <= n_pages, within_s=MOMENT_S)


def test_end_of_the_only_row_comes_with_its_pages(play: Play) -> None:
    async def scene(town: WorkerCluster) -> None:
        p, d = town.add("p", "p"), town.add("d", "d")
        params = SamplingParams(max_tokens=5, seed=3)
        town.router.assign(A, PROMPT, prefill=p, decode=d, params=params)
        await town.router.wait_for_kind(A, "HANDED_OVER")
        await within_a_moment(town, p, 0)
        await town.router.wait_for_kind(A, "FINISHED")
        await within_a_moment(town, d, 0)

    play(scene)


def test_end_of_one_row_among_others_comes_with_its_pages(play: Play) -> None:
    async def scene(town: WorkerCluster) -> None:
        worker = town.add("w", "pd", sessions=SELDOM)
        for attempt, n_tokens in ((A, 30), (B, 2_000)):
            params = SamplingParams(max_tokens=n_tokens, seed=3)
            town.router.assign(attempt, PROMPT, prefill=worker, decode=worker, params=params)
        await town.router.wait_for(lambda: all(len(town.router.tokens[x]) > 5 for x in (A, B)))
        town.router.loads.clear()
        await town.router.wait_for_kind(A, "FINISHED")
        mine = len(PROMPT) // worker.context.spec.page_tokens
        await within_a_moment(town, worker, mine + 15)
        town.router.loads.clear()
        town.router.cancel(B, worker)
        await town.router.wait_for_kind(B, "FINISHED")
        await within_a_moment(town, worker, 0)

    play(scene)


def test_worker_that_falls_idle_says_so_once(play: Play) -> None:
    async def scene(town: WorkerCluster) -> None:
        worker = town.add("w", "pd")
        params = SamplingParams(max_tokens=5, seed=3)
        town.router.assign(A, PROMPT, prefill=worker, decode=worker, params=params)
        await town.router.wait_for_kind(A, "FINISHED")
        await asyncio.sleep(0.05)
        before = town.router.n_messages
        for _ in range(20):  # it wakes the loop, and changes nothing
            heartbeat = worker_pb2.SessionRequest(heartbeat=worker_pb2.Heartbeat())
            town.router.send(worker, heartbeat)
            await asyncio.sleep(0.01)
        assert town.router.n_messages - before <= 1
        assert worker.load() == town.router.loads["w"]

    play(scene)
