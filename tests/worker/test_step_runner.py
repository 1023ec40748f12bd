"""Steps on threads of their own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from typing import cast

from engine.step import DoneStep, Engine, Mark, RowResult, RowWork, Step
from worker.step_runner import ThreadStepRunner


class LateStep:
    """Submitted, and not done before `go_on` is set."""

    def __init__(self, written: Mark | None, results: list[RowResult]) -> None:
        self.written = written
        self.go_on = threading.Event()
        self._results = results

    def result(self) -> list[RowResult]:
        assert self.go_on.wait(5)
        return self._results


class Steps:
    """An engine whose steps are given."""

    steps_ahead = 1

    def __init__(self, *steps: Step) -> None:
        self._steps = list(steps)

    def submit(self, work: Sequence[RowWork]) -> Step:
        return self._steps.pop(0)


async def test_the_mark_is_told_while_the_step_is_computed_and_once() -> None:
    first, second = LateStep("mark 1", [RowResult(1)]), LateStep(None, [RowResult(2)])
    runner = ThreadStepRunner(cast(Engine, Steps(first, second)))
    told: list[Mark | None] = []
    heard = asyncio.Event()

    def on_submitted(mark: Mark | None) -> None:
        assert asyncio.get_running_loop() is loop
        told.append(mark)
        heard.set()

    async def wait(step: int) -> list[RowResult]:
        return await runs[step]

    loop = asyncio.get_running_loop()
    runs = [runner.run([], on_submitted) for _ in range(2)]
    async with asyncio.TaskGroup() as tasks:
        waits = [tasks.create_task(wait(step)) for step in range(2)]
        async with asyncio.timeout(5):
            while len(told) < 2:
                await heard.wait()
                heard.clear()
        assert told == ["mark 1", None], "in the order of submission"
        assert not any(one.done() for one in waits)
        first.go_on.set()
        second.go_on.set()
    assert [one.result() for one in waits] == [[RowResult(1)], [RowResult(2)]]
    assert len(told) == 2
    await runner.close()


async def test_a_step_that_is_done_at_once_is_told_too() -> None:
    runner = ThreadStepRunner(cast(Engine, Steps(DoneStep([RowResult(1)]))))
    told: list[Mark | None] = []
    assert await runner.run([], told.append) == [RowResult(1)]
    assert told == [None]
    await runner.close()
