"""No step has more rows than the engine takes, decode and prefill together."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest

from tests.worker.conftest import Play, WorkerCluster
from twolane.engine.fake import FakeEngineConfig
from twolane.engine.step import RowResult, RowWork
from twolane.params import SamplingParams
from twolane.worker.attempts.attempt_id import AttemptId
from twolane.worker.config import StepLimits

MOST = 8


def test_a_full_batch_and_new_prompts_are_no_more_rows_than_the_engine_takes(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A GPU's engine asserts it: `CudaEngine._submit`."""

    async def scene(town: WorkerCluster) -> None:
        limits = StepLimits(step_tokens=64, decode_rows=MOST - 1)
        p, d = (
            town.add(name, roles, limits=limits, engine=FakeEngineConfig(n_pages=256))
            for name, roles in (("pd", "pd"), ("d", "d"))
        )
        engine = p.context.engine
        engine.spec = replace(engine.spec, max_step_rows=MOST)
        run, most = engine.run, 0

        def counted(work: Sequence[RowWork]) -> list[RowResult]:
            nonlocal most
            most = max(most, len(work))
            assert len(work) <= MOST, f"{len(work)} rows in a step; at most {MOST}"
            return run(work)

        monkeypatch.setattr(engine, "run", counted)
        params = SamplingParams(max_tokens=200, seed=1)
        for i in range(MOST - 1):  # they decode here
            town.router.assign(AttemptId(f"a{i}", 1), [i] * 5, prefill=p, decode=p, params=params)
        await asyncio.sleep(0.05)
        short = SamplingParams(max_tokens=3, seed=1)
        others = [AttemptId(f"b{i}", 1) for i in range(6)]
        for i, attempt in enumerate(others):  # these go elsewhere
            town.router.assign(attempt, [i + 50] * 5, prefill=p, decode=d, params=short)
        for attempt in others:
            await town.router.wait_for_kind(attempt, "FINISHED")
        for i in range(MOST - 1):
            await town.router.wait_for_kind(AttemptId(f"a{i}", 1), "FINISHED")
        assert most == MOST

    play(scene)


def test_many_short_prompts_are_no_more_rows_than_the_engine_takes(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene(town: WorkerCluster) -> None:
        p, d = town.add("p", "p"), town.add("d", "d")
        engine = p.context.engine
        engine.spec = replace(engine.spec, max_step_rows=MOST)
        run = engine.run

        def counted(work: Sequence[RowWork]) -> list[RowResult]:
            assert len(work) <= MOST, f"{len(work)} rows in a step; at most {MOST}"
            return run(work)

        monkeypatch.setattr(engine, "run", counted)
        params = SamplingParams(max_tokens=3, seed=1)
        rows = [AttemptId(f"r{i}", 1) for i in range(20)]
        for i, attempt in enumerate(rows):
            town.router.assign(attempt, [i], prefill=p, decode=d, params=params)
        for attempt in rows:
            await town.router.wait_for_kind(attempt, "FINISHED")

    play(scene)
