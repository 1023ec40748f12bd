"""A prefill and a decode worker whose pages are of different size."""

from __future__ import annotations

import asyncio

import pytest

from tests.worker.conftest import Play, WorkerCluster
from twolane.engine.fake import FakeEngineConfig, expected_answer
from twolane.kvtransfer.testing.memory import Faults
from twolane.params import SamplingParams
from twolane.v1 import worker_pb2
from twolane.worker.attempts.attempt_id import AttemptId
from twolane.worker.testing import DECODE
from twolane.worker.worker import Worker

A = AttemptId("r", 1)
PARAMS = SamplingParams(max_tokens=20, seed=7)
SIZES = [(16, 64), (64, 16), (32, 48), (48, 32), (128, 16)]


def prompt(n: int, salt: int = 0) -> list[int]:
    return [(i * 31 + salt * 17 + 5) % 251 for i in range(n)]


def pair(town: WorkerCluster, sizes: tuple[int, int], n_tokens: int = 4096) -> list[Worker]:
    return [
        town.add(name, name, engine=FakeEngineConfig(page_tokens=size, n_pages=n_tokens // size))
        for name, size in zip("pd", sizes, strict=True)
    ]


async def finished(town: WorkerCluster, attempt: AttemptId) -> None:
    await town.router.wait_for(lambda: "FINISHED" in town.router.kinds(attempt, DECODE))


@pytest.mark.parametrize("sender_writes", [False, True])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_answer_is_the_engines_whatever_the_page_sizes(
    play: Play, sizes: tuple[int, int], sender_writes: bool
) -> None:
    """Lengths around every border of both sides, and of chunks (128 tokens a step)."""

    async def scene(town: WorkerCluster) -> None:
        p, d = pair(town, sizes)
        jobs = {
            n: AttemptId(f"r{n}", 1) for n in (1, 15, 16, 17, 47, 48, 63, 64, 65, 127, 128, 300)
        }
        for n, attempt in jobs.items():
            town.router.assign(attempt, prompt(n, n), prefill=p, decode=d, params=PARAMS)
        for n, attempt in jobs.items():
            await finished(town, attempt)
            assert town.router.answer(attempt) == expected_answer(prompt(n, n), PARAMS, 20)
        await town.settle(0.2)

    play(scene, sender_writes=sender_writes)


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_pages_and_bytes_that_are_told_are_those_of_the_receiver(
    play: Play, sizes: tuple[int, int]
) -> None:
    async def scene(town: WorkerCluster) -> None:
        p, d = pair(town, sizes)
        town.router.assign(A, prompt(100), prefill=p, decode=d, params=PARAMS)
        await finished(town, A)
        handed = next(
            event.figures
            for event in town.router.rows[A]
            if event.kind == worker_pb2.RowEvent.KIND_HANDED_OVER
        )
        n_pages = -(-100 // sizes[1])
        assert handed.transfer_pages == n_pages
        assert handed.transfer_bytes == n_pages * d.context.spec.page_bytes

    play(scene)


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_prefix_that_the_receiver_has_is_skipped_whatever_the_page_sizes(
    play: Play, sizes: tuple[int, int]
) -> None:
    async def scene(town: WorkerCluster) -> None:
        p, d = pair(town, sizes)
        again = prompt(200) + [1] * 20
        cached = []
        for number, tokens in enumerate((prompt(200), again)):
            attempt = AttemptId(f"r{number}", 1)
            town.router.assign(attempt, tokens, prefill=p, decode=d, params=PARAMS)
            await finished(town, attempt)
            assert town.router.answer(attempt) == expected_answer(tokens, PARAMS, 20)
            handed = [e.figures.transfer_pages for e in town.router.rows[attempt] if e.figures]
            cached.append(-(-len(tokens) // sizes[1]) - max(handed))
        assert cached == [0, 200 // sizes[1]]
        await town.settle(0.2)

    play(scene)


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_crowd_survives_lost_repeated_and_damaged_pages(play: Play, sizes: tuple[int, int]) -> None:
    async def scene(town: WorkerCluster) -> None:
        p, d = pair(town, sizes)
        jobs = {f"r{i}": prompt(1 + 13 * i, salt=i) for i in range(16)}
        for name, tokens in jobs.items():
            town.router.assign(AttemptId(name, 1), tokens, prefill=p, decode=d, params=PARAMS)
        await asyncio.sleep(0)
        for name, tokens in jobs.items():
            attempt = AttemptId(name, 1)
            await finished(town, attempt)
            assert town.router.answer(attempt) == expected_answer(tokens, PARAMS, 20)
        assert town.fabric.happened.total() >= 3
        await town.settle()

    chance = 0.05 * sizes[1] / 64  # of each page: a row that is spoilt six times is given up
    play(scene, faults=Faults(drop=chance, duplicate=chance, corrupt=chance, delay_s=(0.0, 0.01)))
