"""A check whose caller leaves amid the step that ends it does no harm to the worker."""

from __future__ import annotations

import asyncio

import pytest

from tests.worker.conftest import Play, WorkerCluster
from twolane.engine.fake import FakeEngineConfig
from twolane.engine.step import RowResult, RowWork
from twolane.params import SamplingParams
from twolane.router.operators.comparison import sampling
from twolane.v1 import facts_pb2
from twolane.worker.attempts.attempt_id import AttemptId

SLOW = FakeEngineConfig(n_pages=64, step_overhead_s=0.1)


def asked(max_tokens: int) -> facts_pb2.AnswerAloneRequest:
    return facts_pb2.AnswerAloneRequest(token_ids=[7, 1, 3] * 20, sampling=sampling(max_tokens))


@pytest.mark.parametrize("roles", ["p", "d"])
def test_a_caller_that_leaves_amid_the_last_step_leaves_the_worker_running(
    play: Play, roles: str
) -> None:
    async def scene(town: WorkerCluster) -> None:
        worker = town.add("w", roles, engine=SLOW)
        check = asyncio.create_task(worker.answer_alone(asked(max_tokens=1)))
        await asyncio.sleep(0.05)  # its only step is in flight
        check.cancel()
        await asyncio.wait([check])
        await asyncio.sleep(1.0)
        assert not town.lives["w"].done(), "the worker has ended"
        assert len(await worker.answer_alone(asked(max_tokens=2))) == 2
        await town.settle(0.5)

    play(scene)


def test_a_caller_that_leaves_amid_a_step_that_fails_leaves_the_others_running(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene(town: WorkerCluster) -> None:
        worker = town.add("w", "pd", engine=SLOW)
        engine = worker.context.engine
        run = engine.run

        def failing(work: list[RowWork]) -> list[RowResult]:
            results = run(work)
            return [
                RowResult(r.row, error="not finite") if w.n_prompt == 60 else r
                for w, r in zip(work, results, strict=True)
            ]

        monkeypatch.setattr(engine, "run", failing)
        row = AttemptId("r", 1)
        town.router.assign(
            row,
            range(16),
            prefill=worker,
            decode=worker,
            params=SamplingParams(max_tokens=9, seed=1),
        )
        await asyncio.sleep(0.01)
        check = asyncio.create_task(worker.answer_alone(asked(max_tokens=5)))
        await asyncio.sleep(0.15)
        check.cancel()
        await town.router.wait_for_kind(row, "FINISHED", within_s=10.0)
        await town.settle(0.5)

    play(scene)
