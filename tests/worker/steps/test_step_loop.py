"""The loop itself: sleeps when idle, ends loudly when the engine breaks; a bad row fails alone."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, cast

import pytest

from tests.worker.conftest import Play, WorkerCluster
from twolane.engine.allocator import PageAllocator
from twolane.engine.step import RowResult, RowWork
from twolane.params import SamplingParams
from twolane.testing.virtual_time import virtual_time_runner
from twolane.worker.attempts.attempt_id import AttemptId
from twolane.worker.config import StepLimits
from twolane.worker.observer import NullObserver
from twolane.worker.page_returns import PageReturns
from twolane.worker.role import DecodeSide, Roles
from twolane.worker.rows import Row
from twolane.worker.steps.step_loop import StepLoop
from twolane.worker.steps.step_runner import LandedStep, Landing, OnSubmitted

A = AttemptId("r", 1)
PARAMS = SamplingParams(max_tokens=200, seed=3)


class BrokenEngineError(Exception):
    pass


class IdleRole:
    """Never has work; counts how often it is asked. What a loop without rows needs of a role."""

    def __init__(self, wake_at_s: float | None = None) -> None:
        self.asked = 0
        self.wake_at_s = wake_at_s
        self.rows: list[Row] = []

    def tick(self, now: float) -> None:
        pass

    def plan(self, n_tokens: int, now: float) -> list[RowWork]:
        self.asked += 1
        return []


class NoRunner:
    steps_ahead = 0

    async def run(self, work: Sequence[RowWork], told: OnSubmitted | None) -> LandedStep:
        raise AssertionError("there was no work")

    def timer(self, seconds: float) -> asyncio.Future[Any]:
        raise AssertionError("there was no step")

    async def close(self) -> None:
        """Nothing ran."""


def ask_for(role: IdleRole, seconds: float) -> int:
    roles = Roles(decode=cast(DecodeSide, role))
    returns = PageReturns(PageAllocator(1))
    loop = StepLoop(
        roles,
        NoRunner(),
        StepLimits(),
        returns=returns,
        ship=lambda now: None,
        observer=NullObserver(),
    )

    async def main() -> int:
        task = asyncio.create_task(loop.run())
        await asyncio.sleep(seconds)
        task.cancel()
        await asyncio.wait([task])
        return role.asked

    with virtual_time_runner() as runner:
        return runner.run(main())


def test_idle_loop_sleeps() -> None:
    assert ask_for(IdleRole(), 100.0) == 1


def test_role_that_asks_to_be_woken_in_the_past_does_not_make_the_loop_spin() -> None:
    assert ask_for(IdleRole(wake_at_s=-1.0), 0.1) <= 101


class ThreeSteps(IdleRole):
    """A row of three steps. Says what happens to it."""

    def __init__(self, said: list[str]) -> None:
        super().__init__()
        self.said = said

    def plan(self, n_tokens: int, now: float) -> list[RowWork]:
        n_before = self.asked
        super().plan(n_tokens, now)
        if n_before >= 3:
            return []
        self.said.append("plan")
        return [RowWork(1, [5, 6, 7], n_before, 1, [], 2, PARAMS, sample=False)]

    def apply(self, results: Mapping[int, RowResult], now: float) -> None:
        self.said.append("apply")


class SecondRunner:
    """Each step takes a second. Says when one is on its way."""

    def __init__(self, steps_ahead: int, said: list[str]) -> None:
        self.steps_ahead = steps_ahead
        self.said = said

    def run(self, work: Sequence[RowWork], told: OnSubmitted | None) -> Landing:
        self.said.append("run")
        return self._result(work)

    async def _result(self, work: Sequence[RowWork]) -> LandedStep:
        await asyncio.sleep(1)
        return LandedStep([RowResult(row.row) for row in work])

    def timer(self, seconds: float) -> asyncio.Future[Any]:
        return asyncio.ensure_future(asyncio.sleep(seconds))

    async def close(self) -> None:
        """Nothing runs on."""


@pytest.mark.parametrize(
    ("steps_ahead", "order"),
    [
        (
            0,
            "plan run ship write apply ship write plan run ship write apply ship write "
            "plan run ship write apply ship write ship",
        ),
        (
            1,
            "plan run ship write plan run ship write apply ship write plan run ship "
            "apply ship write write ship write apply ship write ship",
        ),
    ],
)
def test_news_of_a_step_are_written_while_the_device_has_another(
    steps_ahead: int, order: str
) -> None:
    said: list[str] = []

    def ship(now: float) -> None:
        said.append("ship")
        asyncio.get_running_loop().call_soon(said.append, "write")  # as a link's task would

    roles = Roles(decode=cast(DecodeSide, ThreeSteps(said)))
    loop = StepLoop(
        roles,
        SecondRunner(steps_ahead, said),
        StepLimits(),
        returns=PageReturns(PageAllocator(1)),
        ship=ship,
        observer=NullObserver(),
        on_idle=lambda now: said.append("idle"),
    )

    async def main() -> None:
        task = asyncio.create_task(loop.run())
        await asyncio.sleep(10)
        task.cancel()
        await asyncio.wait([task])

    with virtual_time_runner() as runner:
        runner.run(main())
    assert " ".join(said[: said.index("idle")]) == order


def test_broken_engine_ends_the_worker_loudly(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene(town: WorkerCluster) -> None:
        worker = town.add("w", "pd")

        async def run(work: Sequence[RowWork], told: OnSubmitted | None) -> list[RowResult]:
            raise BrokenEngineError("device lost")

        monkeypatch.setattr(worker._runner, "run", run)
        town.router.assign(A, [1, 2, 3], prefill=worker, decode=worker, params=PARAMS)
        life = town.lives["w"]
        await asyncio.wait([life])
        with pytest.raises(ExceptionGroup) as group:
            life.result()
        assert group.group_contains(BrokenEngineError, match="device lost")

    with pytest.raises(ExceptionGroup) as group:
        play(scene)
    assert group.group_contains(BrokenEngineError)


def test_faulty_row_fails_alone(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene(town: WorkerCluster) -> None:
        worker = town.add("w", "pd")
        engine_run = worker._runner.run

        async def run(work: Sequence[RowWork], told: OnSubmitted | None) -> LandedStep:
            results = (await engine_run(work, told)).results
            changed = [
                RowResult(r.row, error="logits are not finite")
                if w.token_ids[0] == 66 and len(w.token_ids) > 10
                else r
                for w, r in zip(work, results, strict=True)
            ]
            return LandedStep(changed)

        monkeypatch.setattr(worker._runner, "run", run)
        bad, good = AttemptId("bad", 1), AttemptId("good", 1)
        for attempt, first in ((bad, 66), (good, 1)):
            prompt = [first, 2, 3, 4, 5]
            town.router.assign(attempt, prompt, prefill=worker, decode=worker, params=PARAMS)
        await town.router.wait_for(lambda: bool(town.router.finish_of(good)))
        assert town.router.kinds(bad)[-1] == "FAILED"
        event = town.router.rows[bad][-1]
        assert (event.reason, event.message) == ("engine", "logits are not finite")
        await town.settle(0.1)

    play(scene)


def test_row_that_fails_amid_its_answer_indexes_none_of_it(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene(town: WorkerCluster) -> None:
        worker = town.add("w", "pd")
        engine_run = worker._runner.run

        async def run(work: Sequence[RowWork], told: OnSubmitted | None) -> LandedStep:
            results = (await engine_run(work, told)).results
            changed = [
                RowResult(r.row, error="logits are not finite") if len(w.token_ids) > 80 else r
                for w, r in zip(work, results, strict=True)
            ]
            return LandedStep(changed)

        monkeypatch.setattr(worker._runner, "run", run)
        town.router.assign(A, range(32), prefill=worker, decode=worker, params=PARAMS)
        await town.router.wait_for(lambda: "FAILED" in town.router.kinds(A))
        await town.settle(0.1)
        assert worker.load().pages.cached == 2, "the prompt's two pages, computed by a sound step"

    play(scene)


def test_failed_row_leaves_nothing_in_the_prefix_index(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene(town: WorkerCluster) -> None:
        worker = town.add("w", "pd")
        engine_run = worker._runner.run

        async def run(work: Sequence[RowWork], told: OnSubmitted | None) -> LandedStep:
            results = (await engine_run(work, told)).results
            failing = [w.start + w.n_new == 100 for w in work]
            changed = [
                RowResult(r.row, error="logits are not finite") if fails else r
                for fails, r in zip(failing, results, strict=True)
            ]
            return LandedStep(changed)

        monkeypatch.setattr(worker._runner, "run", run)
        town.router.assign(A, range(100), prefill=worker, decode=worker, params=PARAMS)
        await town.router.wait_for(lambda: "FAILED" in town.router.kinds(A))
        assert worker.load().pages.cached == 0
        assert worker.load().pages.free == worker.context.spec.n_pages

    play(scene)
