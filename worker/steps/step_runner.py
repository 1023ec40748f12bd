"""Runs the engine's steps: on threads in production, as a sleep under virtual time."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Protocol

from twolane.engine.step import DoneStep, Engine, Mark, RowResult, RowWork, Step


@dataclass(frozen=True, slots=True)
class StepTimes:
    """By the event loop's clock: when the device had the step in its queue, and when its results
    were there."""

    submitted_s: float
    done_s: float


@dataclass(frozen=True, slots=True)
class LandedStep:
    """A step whose results are there: one per row, in order. No times: the device's queue is not
    this process's to see."""

    results: list[RowResult]
    times: StepTimes | None = None


OnSubmitted = Callable[[Mark | None], None]  # with the step's `written`
Landing = Coroutine[Any, Any, LandedStep]

_SUBMIT_S = 0.005  # a step that needs no kernel to be compiled is in the device's queue long before


class StepRunner(Protocol):
    """Runs steps in the order of the calls of `run`. An exception is a fault of the whole engine,
    never of a row."""

    steps_ahead: int  # how many steps may be in flight besides the oldest

    def run(self, work: Sequence[RowWork], on_submitted: OnSubmitted | None) -> Landing:
        """Submit the step and return; await the result for its row results. `on_submitted`, if
        given, is called on the loop before they are there."""
        ...

    def timer(self, seconds: float) -> asyncio.Future[Any]:
        """Done after so long, or when it is cancelled. An event loop's own timers are late by up to
        a millisecond."""
        ...

    async def close(self) -> None:
        """Wait for the running step; no other starts. May be called twice."""
        ...


class ThreadStepRunner:
    """Runs steps so that the event loop is never blocked for long.

    A step that need only be launched is submitted on the loop itself: the device would wait for a
    thread to wake. Others are submitted on a thread of their own, which the loop lets go on for a
    moment if all are decode rows: both need the interpreter, and taking turns would make the device
    wait longer than both take.

    Another thread waits for results, so that a step can be submitted while another is computed. It
    is handed the step directly, so a decode-only step wakes the loop only once.
    """

    def __init__(self, engine: Engine) -> None:
        self.steps_ahead = engine.steps_ahead
        self._engine = engine
        self._submits = ThreadPoolExecutor(max_workers=1, thread_name_prefix="engine-step")
        self._waits = ThreadPoolExecutor(max_workers=1, thread_name_prefix="engine-wait")
        self._timers = ThreadPoolExecutor(max_workers=1, thread_name_prefix="engine-timer")
        self._submission: Future[None] | None = None  # the last one
        self._is_closing = False

    def run(self, work: Sequence[RowWork], on_submitted: OnSubmitted | None) -> Landing:
        pending, before = _Pending(), self._submission
        is_next = before is None or before.done()
        if is_next and not self._is_closing and self._engine.only_launches(work):
            self._submit(pending, work, on_submitted)
            return pending.wait()
        self._submission = self._submits.submit(self._submit, pending, work, on_submitted)
        if self.steps_ahead and is_next and all(row.n_new == 1 for row in work):
            with suppress(TimeoutError):
                self._submission.result(_SUBMIT_S)
        return pending.wait()

    def _submit(
        self, pending: _Pending, work: Sequence[RowWork], on_submitted: OnSubmitted | None
    ) -> None:
        """Runs on the submitting thread, or on the loop."""
        if pending.is_cancelled:
            return
        try:
            step = self._engine.submit(work)
        except BaseException as error:  # noqa: BLE001  raised by `wait`
            pending.fail(error)
            return
        if step.written is not None:  # else it may still be on its way to other processes
            pending.submitted_s = time.monotonic()
        if on_submitted is not None:
            pending.tell(on_submitted, step.written)
        if isinstance(step, DoneStep):
            pending.succeed(step.results)
        else:
            self._waits.submit(self._wait, pending, step)

    def _wait(self, pending: _Pending, step: Step) -> None:
        """Runs on the waiting thread."""
        if pending.is_cancelled:
            return
        try:
            results = step.result()
        except BaseException as error:  # noqa: BLE001  raised by `wait`
            pending.fail(error)
            return
        pending.succeed(results)

    def timer(self, seconds: float) -> asyncio.Future[Any]:
        is_over = threading.Event()
        loop = asyncio.get_running_loop()
        timer = loop.run_in_executor(self._timers, is_over.wait, seconds)
        timer.add_done_callback(lambda _: is_over.set())  # if cancelled, the thread wakes, too
        return timer

    async def close(self) -> None:
        self._is_closing = True
        for thread in (self._submits, self._waits, self._timers):  # the first submits to the second
            await asyncio.to_thread(thread.shutdown, wait=True)


class _Pending:
    """One step between threads and event loop. The threads call `tell`, `succeed` and `fail`; the
    loop processes these in that order."""

    def __init__(self) -> None:
        self.submitted_s: float | None = None
        self._loop = asyncio.get_running_loop()
        self._landed: asyncio.Future[LandedStep] = self._loop.create_future()

    async def wait(self) -> LandedStep:
        return await self._landed

    @property
    def is_cancelled(self) -> bool:
        """Whether the waiter was cancelled."""
        return self._landed.cancelled()

    def tell(self, hear: OnSubmitted, mark: Mark | None) -> None:
        self._on_loop(self._hear, hear, mark)

    def succeed(self, results: list[RowResult]) -> None:
        submitted_s = self.submitted_s
        times = None if submitted_s is None else StepTimes(submitted_s, time.monotonic())
        self._on_loop(self._set, LandedStep(results, times))

    def fail(self, error: BaseException) -> None:
        self._on_loop(self._raise, error)

    def _on_loop(self, work: Callable[..., None], *args: Any) -> None:
        try:
            self._loop.call_soon_threadsafe(work, *args)
        except RuntimeError:
            if not self._loop.is_closed():
                raise

    def _hear(self, hear: OnSubmitted, mark: Mark | None) -> None:
        if self._landed.done():
            return
        try:
            hear(mark)
        except Exception as error:  # noqa: BLE001  as above
            self._raise(error)

    def _set(self, landed: LandedStep) -> None:
        if not self._landed.done():
            self._landed.set_result(landed)

    def _raise(self, error: BaseException) -> None:
        if not self._landed.done():
            self._landed.set_exception(error)


class TimedEngine(Engine, Protocol):
    """An engine that knows how long its steps would take, such as
    `twolane.engine.fake.FakeEngine`."""

    def step_time_s(self, work: Sequence[RowWork]) -> float: ...


class TimedStepRunner:
    """Sleeps for as long as a step would take, then computes it: the double for virtual time.

    Pages are written at the very end, which exposes code that frees a page during a step.
    `steps_ahead` simulates a device that queues steps: it resolves rows that follow. `submit_s`:
    until a step that is submitted is in the device's queue.
    """

    def __init__(self, engine: TimedEngine, *, steps_ahead: int = 0, submit_s: float = 0.0) -> None:
        self.steps_ahead = steps_ahead
        self._submit_s = submit_s
        self._engine = engine
        self._turn = asyncio.Lock()  # fair: acquired in the order of submission
        self._sampled: dict[int, int] = {}  # by row, in the newest completed step

    async def run(self, work: Sequence[RowWork], on_submitted: OnSubmitted | None) -> LandedStep:
        if self._submit_s:
            await asyncio.sleep(self._submit_s)
        submitted_s = asyncio.get_running_loop().time()
        if on_submitted is not None:
            on_submitted(None)
        async with self._turn:
            known = [self._resolve(row) for row in work]
            await asyncio.sleep(self._engine.step_time_s(known))
            results = self._engine.run(known)
        done_s = asyncio.get_running_loop().time()
        self._sampled = {r.row: r.tokens[0].token for r in results if r.tokens}
        return LandedStep(results, StepTimes(submitted_s, done_s))

    def _resolve(self, row: RowWork) -> RowWork:
        """The row with all its tokens, as they were when it was submitted."""
        if not row.follows:
            return row
        tokens = [*row.token_ids[: row.n_known], self._sampled.get(row.row, 0)]
        return replace(row, token_ids=tokens, follows=False)

    def timer(self, seconds: float) -> asyncio.Future[Any]:
        return asyncio.ensure_future(asyncio.sleep(seconds))

    async def close(self) -> None:
        """Does nothing: nothing runs on."""
