"""Plans wait while the device computes: as long as steps, as they came, allow."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import cast

import pytest

from tests.worker.steps.test_step_loop import PARAMS, IdleRole
from twolane.engine.allocator import PageAllocator
from twolane.engine.step import RowResult, RowWork
from twolane.testing.virtual_time import virtual_time_runner
from twolane.worker.config import StepLimits
from twolane.worker.observer import NullObserver
from twolane.worker.page_returns import PageReturns
from twolane.worker.role import DecodeSide, Roles
from twolane.worker.steps import late_plan
from twolane.worker.steps.late_plan import LatePlan
from twolane.worker.steps.step_loop import StepLoop
from twolane.worker.steps.step_runner import OnSubmitted, StepTimes

STEP_S = 0.010
N = late_plan._STEPS


def steady(plan: LatePlan, n: int, *, spare_s: float = 0.005, begin: int = 0) -> float:
    """`n` steps, each in the device's queue for `spare_s` before its turn. When the last ended."""
    for nth in range(begin, begin + n):
        turn_s = nth * STEP_S
        plan.note(StepTimes(turn_s - spare_s, turn_s + STEP_S), is_steady=True)
    return (begin + n) * STEP_S


def test_a_plan_waits_until_a_margin_before_the_step_is_expected_to_end() -> None:
    plan = LatePlan()
    end_s = steady(plan, N)
    assert plan.pause_s(end_s) == 0, "the first of them has none before it: seven are known"
    end_s = steady(plan, 1, begin=N)
    expected = STEP_S - plan.margin_s
    assert plan.pause_s(end_s) == pytest.approx(expected)
    assert plan.pause_s(end_s + 0.002) == pytest.approx(expected - 0.002)
    assert plan.pause_s(end_s + STEP_S) == 0


def test_the_shortest_of_the_last_steps_is_expected() -> None:
    plan = LatePlan()
    end_s = steady(plan, N + 1)
    plan.note(StepTimes(end_s - 0.005, end_s + 0.7 * STEP_S), is_steady=True)
    end_s += 0.7 * STEP_S
    expected = 0.7 * STEP_S - plan.margin_s
    assert plan.pause_s(end_s) == pytest.approx(expected)


def test_the_margin_shrinks_by_little_and_grows_by_much() -> None:
    plan = LatePlan()
    end = 2000
    steady(plan, end)
    assert plan.margin_s == pytest.approx(late_plan._LEAST_S, abs=1e-4)
    steady(plan, 1, spare_s=0.0001, begin=end)
    assert plan.margin_s == pytest.approx(late_plan._LEAST_S + late_plan._UP_S, abs=1e-4)
    steady(plan, 100, spare_s=-0.001, begin=end + 1)
    assert plan.margin_s == late_plan._MOST_S


@pytest.mark.parametrize("times", [StepTimes(0.0, 1.0), None])
def test_a_step_unlike_the_others_ends_the_waiting(times: StepTimes | None) -> None:
    plan = LatePlan()
    end_s = steady(plan, N + 1)
    assert plan.pause_s(end_s) > 0
    margin_s = plan.margin_s
    plan.note(times, is_steady=False)
    assert plan.pause_s(end_s) == 0
    assert plan.margin_s == margin_s, "a step onto an idle device was not late"


class Endless(IdleRole):
    """A row that goes on, and when its steps were planned."""

    def __init__(self) -> None:
        super().__init__()
        self.planned_s: list[float] = []

    def plan(self, n_tokens: int, now: float) -> list[RowWork]:
        self.planned_s.append(now)
        n_before = len(self.planned_s)
        return [RowWork(1, [5] * (n_before + 2), n_before, 1, [], 2, PARAMS, sample=False)]

    def apply(self, results: Mapping[int, RowResult], now: float) -> None: ...


class Device:
    """Computes steps one after the other, of which one may be as short as is said."""

    steps_ahead = 1

    def __init__(self, short: Mapping[int, float]) -> None:
        self.times: StepTimes | None = None
        self.ended_s: list[float] = []
        self._turn = asyncio.Lock()
        self._short = short

    async def run(self, work: Sequence[RowWork], told: OnSubmitted | None) -> list[RowResult]:
        clock = asyncio.get_running_loop().time
        submitted_s = clock()
        async with self._turn:
            await asyncio.sleep(self._short.get(len(self.ended_s), STEP_S))
            self.ended_s.append(clock())
        self.times = StepTimes(submitted_s, clock())
        return [RowResult(row.row) for row in work]

    def nap(self, seconds: float) -> asyncio.Future[None]:
        return asyncio.ensure_future(asyncio.sleep(seconds))

    async def close(self) -> None: ...


def run(n_steps: int, short: Mapping[int, float]) -> tuple[list[float], list[float]]:
    """When steps were planned, and when the device had computed them."""
    role = Endless()

    async def main() -> list[float]:
        device = Device(short)
        loop = StepLoop(
            Roles(decode=cast(DecodeSide, role)),
            device,
            StepLimits(),
            returns=PageReturns(PageAllocator(1)),
            ship=lambda now: None,
            observer=NullObserver(),
        )
        task = asyncio.create_task(loop.run())
        while len(device.ended_s) < n_steps:
            await asyncio.sleep(STEP_S)
        task.cancel()
        await asyncio.wait([task])
        return device.ended_s

    with virtual_time_runner() as runner:
        return role.planned_s, runner.run(main())


def test_the_loop_plans_shortly_before_the_device_has_computed_the_step_before() -> None:
    planned_s, ended_s = run(40, {})
    waits = [ended_s[nth - 1] - planned_s[nth] for nth in range(30, 38)]
    most = late_plan._MOST_S
    assert all(late_plan._SPARE_S < wait <= most for wait in waits), waits
    early = [ended_s[nth - 1] - planned_s[nth] for nth in range(2, N)]
    assert early == pytest.approx([STEP_S] * len(early)), "nothing is known of its steps at first"


def test_a_step_that_is_shorter_than_expected_is_followed_at_once() -> None:
    planned_s, ended_s = run(40, {30: 0.002})
    assert planned_s[31] == pytest.approx(ended_s[30]), "the device waits for nothing else"
    assert ended_s[39] < 40 * STEP_S
