"""Plans wait while the device computes: as long as steps, as they came, allow."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, cast

import pytest

from tests.worker.steps.test_step_loop import PARAMS, IdleRole
from twolane.engine.allocator import PageAllocator
from twolane.engine.step import RowResult, RowWork
from twolane.testing.virtual_time import virtual_time_runner
from twolane.worker.config import StepLimits
from twolane.worker.observer import NullObserver
from twolane.worker.page_returns import PageReturns
from twolane.worker.role import DecodeSide, PrefillSide, Roles
from twolane.worker.steps import late_plan
from twolane.worker.steps.late_plan import LatePlan
from twolane.worker.steps.step_loop import StepLoop
from twolane.worker.steps.step_runner import LandedStep, OnSubmitted, StepTimes

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


class Prompts(IdleRole):
    """A prompt in step `nth`."""

    def __init__(self, nth: int) -> None:
        super().__init__()
        self._left = nth

    def plan(self, n_tokens: int, now: float) -> list[RowWork]:
        self._left -= 1
        return [RowWork(2, [5, 6], 0, 2, [], 2, PARAMS, sample=True)] if self._left == -1 else []

    def apply(self, results: Mapping[int, RowResult], now: float) -> None: ...


class Device:
    """Computes steps one after the other, of which one may be as short or long as is said."""

    steps_ahead = 1

    def __init__(self, took_s: Mapping[int, float], *, is_seen: bool) -> None:
        self.ended_s: list[float] = []
        self._turn = asyncio.Lock()
        self._took_s = took_s
        self._is_seen = is_seen

    async def run(self, work: Sequence[RowWork], told: OnSubmitted | None) -> LandedStep:
        clock = asyncio.get_running_loop().time
        submitted_s = clock()
        async with self._turn:
            await asyncio.sleep(self._took_s.get(len(self.ended_s), STEP_S))
            self.ended_s.append(clock())
        times = StepTimes(submitted_s, clock()) if self._is_seen else None
        return LandedStep([RowResult(row.row) for row in work], times)

    def timer(self, seconds: float) -> asyncio.Future[Any]:
        return asyncio.ensure_future(asyncio.sleep(seconds))

    async def close(self) -> None: ...


def run(
    n_steps: int,
    took_s: Mapping[int, float],
    *,
    is_seen: bool = True,
    prompt_in: int | None = None,
) -> tuple[list[float], list[float]]:
    """When steps were planned, and when the device had computed them."""
    role = Endless()
    prompts = None if prompt_in is None else cast(PrefillSide, Prompts(prompt_in))

    async def main() -> list[float]:
        device = Device(took_s, is_seen=is_seen)
        loop = StepLoop(
            Roles(decode=cast(DecodeSide, role), prefill=prompts),
            device,
            StepLimits(),
            returns=PageReturns(PageAllocator(1)),
            ship=lambda now: None,
            observer=NullObserver(),
        )
        task = asyncio.create_task(loop.run())
        while len(device.ended_s) < n_steps:
            await asyncio.sleep(STEP_S / 7)
        n_tasks = len(asyncio.all_tasks())
        assert n_tasks <= 5, f"{n_tasks}: this one, the loop, two steps, a timer"
        task.cancel()
        await asyncio.wait([task])
        await asyncio.sleep(0)  # in which what was cancelled ends
        assert asyncio.all_tasks() == {asyncio.current_task()}
        return device.ended_s

    with virtual_time_runner() as runner:
        return role.planned_s, runner.run(main())


def test_the_loop_plans_shortly_before_the_device_has_computed_the_step_before() -> None:
    planned_s, ended_s = run(40, {})
    waits = [ended_s[nth - 1] - planned_s[nth] for nth in range(30, 38)]
    assert all(late_plan._SPARE_S < wait <= late_plan._FIRST_S for wait in waits), waits
    early = [ended_s[nth - 1] - planned_s[nth] for nth in range(2, N)]
    assert early == pytest.approx([STEP_S] * len(early)), "nothing is known of its steps at first"


def test_a_step_that_is_shorter_than_expected_is_followed_at_once() -> None:
    planned_s, ended_s = run(40, {30: 0.002})
    assert planned_s[31] == pytest.approx(ended_s[30]), "the device waits for nothing else"
    assert ended_s[39] < 40 * STEP_S


def test_a_plan_does_not_wait_where_nobody_sees_the_devices_queue() -> None:
    planned_s, ended_s = run(40, {}, is_seen=False)
    assert planned_s[2:38] == pytest.approx(ended_s[:36]), "as soon as there is room for a step"


def test_a_plan_does_not_wait_while_a_prompt_is_computed() -> None:
    planned_s, ended_s = run(40, {30: 3 * STEP_S}, prompt_in=30)
    assert planned_s[29] > ended_s[27] + STEP_S / 2
    assert planned_s[31] == pytest.approx(ended_s[29])
