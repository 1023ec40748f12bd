"""Steps on threads of their own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from typing import Any, cast

import pytest

from twolane.engine.step import DoneStep, Engine, Mark, RowResult, RowWork, Step
from twolane.params import SamplingParams
from twolane.worker.steps import step_runner
from twolane.worker.steps.step_runner import ThreadStepRunner


class LateStep:
    """Submitted, and not done before `go_on` is set."""

    def __init__(self, written: Mark | None, results: list[RowResult]) -> None:
        self.written = written
        self.go_on = threading.Event()
        self._results = results

    def result(self) -> list[RowResult]:
        assert self.go_on.wait(30)
        return self._results


class Steps:
    """An engine whose steps are given."""

    steps_ahead = 1

    def __init__(self, *steps: Step) -> None:
        self._steps = list(steps)

    def only_launches(self, work: Sequence[RowWork]) -> bool:
        return False

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
        return (await runs[step]).results

    loop = asyncio.get_running_loop()
    runs = [runner.run([], on_submitted) for _ in range(2)]
    async with asyncio.TaskGroup() as tasks:
        waits = [tasks.create_task(wait(step)) for step in range(2)]
        async with asyncio.timeout(30.0):
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
    assert (await runner.run([], told.append)).results == [RowResult(1)]
    assert told == [None]
    await runner.close()


class BrokenEngine:
    """Every step fails where it is submitted."""

    steps_ahead = 1

    def __init__(self, *, launches: bool) -> None:
        self._launches = launches

    def only_launches(self, work: Sequence[RowWork]) -> bool:
        return self._launches

    def submit(self, work: Sequence[RowWork]) -> Step:
        raise RuntimeError("the device is gone")


class BrokenStep:
    """Submitted; its results never come."""

    written: Mark | None = None

    def result(self) -> list[RowResult]:
        raise RuntimeError("the device is gone")


@pytest.mark.parametrize(
    "engine", [BrokenEngine(launches=False), BrokenEngine(launches=True), Steps(BrokenStep())]
)
async def test_what_a_thread_of_the_engine_raises_reaches_who_waits(engine: object) -> None:
    runner = ThreadStepRunner(cast(Engine, engine))
    with pytest.raises(RuntimeError, match="the device is gone"):
        await runner.run([], None)
    await runner.close()


async def test_a_bug_of_who_hears_of_the_submission_reaches_who_waits() -> None:
    runner = ThreadStepRunner(cast(Engine, Steps(DoneStep([RowResult(1)]))))

    def hear(mark: Mark | None) -> None:
        raise KeyError("a bug")

    with pytest.raises(KeyError, match="a bug"):
        await runner.run([], hear)
    await runner.close()


async def test_a_step_that_was_called_off_before_its_turn_is_not_submitted() -> None:
    first = LateStep(None, [RowResult(1)])
    is_running, go_on = threading.Event(), threading.Event()

    class SlowToSubmit(Steps):
        def submit(self, work: Sequence[RowWork]) -> Step:
            is_running.set()
            assert go_on.wait(30)
            return super().submit(work)

    engine = SlowToSubmit(first, LateStep(None, [RowResult(2)]))
    runner = ThreadStepRunner(cast(Engine, engine))
    running = asyncio.ensure_future(runner.run([], None))
    called_off = asyncio.ensure_future(runner.run([], None))
    await asyncio.to_thread(is_running.wait, 30)
    called_off.cancel()
    await asyncio.wait([called_off])
    first.go_on.set()
    go_on.set()
    assert (await running).results == [RowResult(1)]
    await runner.close()
    assert len(engine._steps) == 1, "the second was never asked for"


def row(n_new: int) -> RowWork:
    return RowWork(1, [5] * n_new, 0, n_new, [], 1, SamplingParams(max_tokens=3), sample=True)


class Submits(Steps):
    """Its submissions wait for `go_on`."""

    def __init__(self) -> None:
        super().__init__(DoneStep([RowResult(1)]))
        self.go_on = threading.Event()
        self.is_over = False

    def submit(self, work: Sequence[RowWork]) -> Step:
        assert self.go_on.wait(30)
        self.is_over = True
        return super().submit(work)


async def test_the_loop_keeps_still_while_decode_rows_are_submitted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(step_runner, "_SUBMIT_S", 30.0)
    engine = Submits()
    engine.go_on.set()
    runner = ThreadStepRunner(cast(Engine, engine))
    landing = runner.run([row(1)], None)
    assert engine.is_over
    assert (await landing).results == [RowResult(1)]
    await runner.close()


class Launches(Steps):
    """Its steps need only be launched, but for those of a prompt; notes who submits them."""

    def __init__(self, *steps: Step) -> None:
        super().__init__(*steps)
        self.submitters: list[int] = []
        self.go_on = threading.Event()

    def only_launches(self, work: Sequence[RowWork]) -> bool:
        return all(row.n_new == 1 for row in work)

    def submit(self, work: Sequence[RowWork]) -> Step:
        self.submitters.append(threading.get_ident())
        assert self.only_launches(work) or self.go_on.wait(30)
        return super().submit(work)


async def test_a_step_that_need_only_be_launched_wakes_no_thread() -> None:
    step = LateStep("mark", [RowResult(1)])
    engine = Launches(step)
    runner = ThreadStepRunner(cast(Engine, engine))
    landing = runner.run([row(1)], None)
    assert engine.submitters == [threading.get_ident()]
    step.go_on.set()
    assert (await landing).results == [RowResult(1)]
    await runner.close()


async def test_nothing_is_launched_once_it_is_closed() -> None:
    engine = Launches(DoneStep([RowResult(1)]))
    runner = ThreadStepRunner(cast(Engine, engine))
    await runner.close()
    with pytest.raises(RuntimeError, match="shutdown"):
        await runner.run([row(1)], None)
    assert not engine.submitters


async def test_a_step_is_not_launched_while_another_one_is_being_submitted() -> None:
    engine = Launches(DoneStep([RowResult(2)]), DoneStep([RowResult(1)]))
    runner = ThreadStepRunner(cast(Engine, engine))
    landings = [runner.run([row(2)], None), runner.run([row(1)], None)]
    engine.go_on.set()
    assert [(await landing).results for landing in landings] == [[RowResult(2)], [RowResult(1)]]
    assert threading.get_ident() not in engine.submitters
    await runner.close()


@pytest.mark.parametrize(
    ("n_new", "steps_ahead", "most_s"),
    [(1, 1, 0.001), (2, 1, 30.0), (1, 0, 30.0)],
    ids=["takes long", "a prompt", "computes meanwhile"],
)
async def test_the_loop_goes_on_while_a_step_is_submitted(
    n_new: int, steps_ahead: int, most_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(step_runner, "_SUBMIT_S", most_s)
    engine = Submits()
    engine.steps_ahead = steps_ahead
    runner = ThreadStepRunner(cast(Engine, engine))
    landing = runner.run([row(n_new)], None)
    assert not engine.is_over
    engine.go_on.set()
    assert (await landing).results == [RowResult(1)]
    await runner.close()


async def test_a_step_is_not_waited_for_behind_another_that_is_being_submitted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(step_runner, "_SUBMIT_S", 30.0)
    engine = Submits()
    engine._steps.append(DoneStep([RowResult(2)]))
    runner = ThreadStepRunner(cast(Engine, engine))
    landings = [runner.run([row(n_new)], None) for n_new in (2, 1)]
    assert not engine.is_over
    engine.go_on.set()
    assert [(await landing).results for landing in landings] == [[RowResult(1)], [RowResult(2)]]
    await runner.close()


@pytest.mark.parametrize("mark", ["mark", None], ids=["own device", "other processes"])
async def test_the_times_of_a_step_are_known_if_the_device_is_this_process_own(
    mark: Mark | None,
) -> None:
    step = LateStep(mark, [RowResult(1)])
    runner = ThreadStepRunner(cast(Engine, Steps(step)))
    clock = asyncio.get_running_loop().time
    began_s = clock()
    landing = asyncio.ensure_future(runner.run([row(1)], None))
    submitted_s = clock()
    step.go_on.set()
    times = (await landing).times
    if mark is None:
        assert times is None
    else:
        assert times is not None
        assert began_s <= times.submitted_s <= submitted_s <= times.done_s <= clock()
    await runner.close()


async def test_a_timer_lasts_and_one_that_is_cancelled_keeps_nobody_waiting() -> None:
    runner = ThreadStepRunner(cast(Engine, Steps()))
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    await runner.timer(0.02)
    assert loop.time() - began_s >= 0.02
    timer = runner.timer(3600.0)
    await asyncio.sleep(0.05)  # until its thread waits
    timer.cancel()
    async with asyncio.timeout(30.0):
        await runner.timer(0.001)
        await runner.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("engine-")]


async def test_the_loop_is_woken_once_for_a_step_that_nobody_else_hears_of(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    step = LateStep("mark", [RowResult(1)])
    runner = ThreadStepRunner(cast(Engine, Steps(step)))
    loop = asyncio.get_running_loop()
    wakes: list[object] = []
    real = loop.call_soon_threadsafe

    def counted(*args: Any, **kwargs: Any) -> asyncio.Handle:
        wakes.append(args[0])
        return real(*args, **kwargs)

    monkeypatch.setattr(loop, "call_soon_threadsafe", counted)
    run = asyncio.ensure_future(runner.run([], None))
    step.go_on.set()
    assert (await run).results == [RowResult(1)]
    monkeypatch.undo()
    assert len(wakes) == 1
    await runner.close()
