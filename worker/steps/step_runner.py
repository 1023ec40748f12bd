"""Runs the engine's steps: on threads in production, as a sleep under virtual time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
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


OnSubmitted = Callable[[Mark | None], None]  # with the step's `written`
Results = Coroutine[Any, Any, list[RowResult]]


_SUBMIT_S = 0.002  # a step that needs no kernel to be compiled is in the device's queue long before


class StepRunner(Protocol):
    """Runs steps in the order of the calls of `run`. An exception is a fault of the whole engine,
    never of a row."""

    steps_ahead: int  # how many steps may be in flight besides the oldest
    times: StepTimes | None  # of the step whose results came last

    def run(self, work: Sequence[RowWork], on_submitted: OnSubmitted | None) -> Results:
        """Submit the step and return; await the result for its row results. `on_submitted`, if
        given, is called on the loop before they are there."""
        ...

    def nap(self, seconds: float) -> asyncio.Future[None]:
        """Done after so long; an event loop's own timers are late by up to a millisecond."""
        ...

    async def close(self) -> None:
        """Wait for the running step; no other starts. May be called twice."""
        ...


class ThreadStepRunner:
    """Runs steps on a thread of their own, so that the event loop is never blocked for long.

    It waits for a moment while a step of decode rows is submitted: both need the interpreter, and
    taking turns with the loop would make the device wait longer than both take. A second thread
    waits for results, so that a step can be submitted while another is computed. The first thread
    hands it the step directly, so a decode-only step wakes the loop only once.
    """

    def __init__(self, engine: Engine) -> None:
        self.steps_ahead = engine.steps_ahead
        self.times: StepTimes | None = None
        self._engine = engine
        self._submits = ThreadPoolExecutor(max_workers=1, thread_name_prefix="engine-step")
        self._waits = ThreadPoolExecutor(max_workers=1, thread_name_prefix="engine-wait")
        self._naps = ThreadPoolExecutor(max_workers=1, thread_name_prefix="engine-nap")

    def run(self, work: Sequence[RowWork], on_submitted: OnSubmitted | None) -> Results:
        pending = _Pending()
        submitted = self._submits.submit(self._submit, pending, work, on_submitted)
        if self.steps_ahead and all(row.n_new == 1 for row in work):  # others may take longer
            with suppress(TimeoutError):
                submitted.result(_SUBMIT_S)
        return self._results_of(pending)

    async def _results_of(self, pending: _Pending) -> list[RowResult]:
        results = await pending.wait()
        self.times = StepTimes(pending.submitted_s, pending.done_s)
        return results

    def _submit(
        self, pending: _Pending, work: Sequence[RowWork], on_submitted: OnSubmitted | None
    ) -> None:
        """Runs on the submitting thread."""
        if pending.is_cancelled:
            return
        try:
            step = self._engine.submit(work)
        except BaseException as error:  # noqa: BLE001  raised by `wait`
            pending.fail(error)
            return
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

    def nap(self, seconds: float) -> asyncio.Future[None]:
        return asyncio.get_running_loop().run_in_executor(self._naps, time.sleep, seconds)

    async def close(self) -> None:
        for thread in (self._submits, self._waits, self._naps):  # the first submits to the second
            await asyncio.to_thread(thread.shutdown, wait=True)


class _Pending:
    """One step between threads and event loop. The threads call `tell`, `succeed` and `fail`; the
    loop processes these in that order."""

    def __init__(self) -> None:
        self.submitted_s = self.done_s = 0.0
        self._loop = asyncio.get_running_loop()
        self._results: asyncio.Future[list[RowResult]] = self._loop.create_future()

    async def wait(self) -> list[RowResult]:
        return await self._results

    @property
    def is_cancelled(self) -> bool:
        """Whether the waiter was cancelled."""
        return self._results.cancelled()

    def tell(self, hear: OnSubmitted, mark: Mark | None) -> None:
        self._on_loop(self._hear, hear, mark)

    def succeed(self, results: list[RowResult]) -> None:
        self.done_s = time.monotonic()
        self._on_loop(self._set, results)

    def fail(self, error: BaseException) -> None:
        self._on_loop(self._raise, error)

    def _on_loop(self, work: Callable[..., None], *args: Any) -> None:
        try:
            self._loop.call_soon_threadsafe(work, *args)
        except RuntimeError:
            if not self._loop.is_closed():
                raise

    def _hear(self, hear: OnSubmitted, mark: Mark | None) -> None:
        if self._results.done():
            return
        try:
            hear(mark)
        except Exception as error:  # noqa: BLE001  as above
            self._raise(error)

    def _set(self, results: list[RowResult]) -> None:
        if not self._results.done():
            self._results.set_result(results)

    def _raise(self, error: BaseException) -> None:
        if not self._results.done():
            self._results.set_exception(error)


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
        self.times: StepTimes | None = None
        self._submit_s = submit_s
        self._engine = engine
        self._turn = asyncio.Lock()  # fair: acquired in the order of submission
        self._sampled: dict[int, int] = {}  # by row, in the newest completed step

    async def run(
        self, work: Sequence[RowWork], on_submitted: OnSubmitted | None
    ) -> list[RowResult]:
        if self._submit_s:
            await asyncio.sleep(self._submit_s)
        submitted_s = asyncio.get_running_loop().time()
        if on_submitted is not None:
            on_submitted(None)
        async with self._turn:
            known = [self._resolve(row) for row in work]
            await asyncio.sleep(self._engine.step_time_s(known))
            results = self._engine.run(known)
        self.times = StepTimes(submitted_s, asyncio.get_running_loop().time())
        self._sampled = {r.row: r.tokens[0].token for r in results if r.tokens}
        return results

    def _resolve(self, row: RowWork) -> RowWork:
        """The row with all its tokens, as they were when it was submitted."""
        if not row.follows:
            return row
        tokens = [*row.token_ids[: row.n_known], self._sampled.get(row.row, 0)]
        return replace(row, token_ids=tokens, follows=False)

    def nap(self, seconds: float) -> asyncio.Future[None]:
        return asyncio.ensure_future(asyncio.sleep(seconds))

    async def close(self) -> None:
        """Does nothing: nothing runs on."""
