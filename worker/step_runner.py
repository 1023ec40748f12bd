"""Who runs the engine's steps: a thread in production, a sleep under virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, Protocol

from engine.step import DoneStep, Engine, Mark, RowResult, RowWork, Step

OnSubmitted = Callable[[Mark | None], None]  # with the step's `written`
Results = Coroutine[Any, Any, list[RowResult]]


class StepRunner(Protocol):
    """Steps in the order in which `run` is called. What it raises is a fault of the engine as a
    whole, never of a row."""

    steps_ahead: int  # how many calls of `run` may be on their way besides the oldest

    def run(self, work: Sequence[RowWork], on_submitted: OnSubmitted) -> Results:
        """The step is on its way when this returns; its results are awaited. Before they are there,
        `on_submitted` is called, on the loop."""
        ...

    async def close(self) -> None:
        """Wait for the step that runs; no other starts. May be called twice."""
        ...


class ThreadStepRunner:
    """Steps on a thread of their own, so that the event loop goes on meanwhile.

    Another thread waits for results, so that a step can be submitted while one is computed.
    """

    def __init__(self, engine: Engine) -> None:
        self.steps_ahead = engine.steps_ahead
        self._engine = engine
        self._submits = ThreadPoolExecutor(max_workers=1, thread_name_prefix="engine-step")
        self._waits = ThreadPoolExecutor(max_workers=1, thread_name_prefix="engine-wait")

    def run(self, work: Sequence[RowWork], on_submitted: OnSubmitted) -> Results:
        loop = asyncio.get_running_loop()
        step = loop.run_in_executor(self._submits, self._engine.submit, work)
        return self._result(step, on_submitted)

    async def _result(
        self, submitted: Awaitable[Step], on_submitted: OnSubmitted
    ) -> list[RowResult]:
        step = await submitted
        on_submitted(step.written)
        if isinstance(step, DoneStep):
            return step.results
        return await asyncio.get_running_loop().run_in_executor(self._waits, step.result)

    async def close(self) -> None:
        for thread in (self._submits, self._waits):
            await asyncio.to_thread(thread.shutdown, wait=True)


class TimedEngine(Engine, Protocol):
    """An engine that knows what its steps would cost, such as `engine.fake.FakeEngine`."""

    def step_time_s(self, work: Sequence[RowWork]) -> float: ...


class TimedStepRunner:
    """Sleeps for as long as a step would take, then computes it: the double for virtual time.

    The pages are written at the very end: whoever frees a page amid a step is found out.
    `steps_ahead` plays a device that queues steps: it resolves rows that follow.
    """

    def __init__(self, engine: TimedEngine, *, steps_ahead: int = 0) -> None:
        self.steps_ahead = steps_ahead
        self._engine = engine
        self._turn = asyncio.Lock()  # fair: steps take it in the order of submission
        self._sampled: dict[int, int] = {}  # by row, in the newest step that is done

    async def run(self, work: Sequence[RowWork], on_submitted: OnSubmitted) -> list[RowResult]:
        on_submitted(None)
        async with self._turn:
            known = [self._resolve(row) for row in work]
            await asyncio.sleep(self._engine.step_time_s(known))
            results = self._engine.run(known)
        self._sampled = {r.row: r.tokens[0].token for r in results if r.tokens}
        return results

    def _resolve(self, row: RowWork) -> RowWork:
        """The row with all of its tokens, as they were when it was submitted."""
        if not row.follows:
            return row
        tokens = [*row.token_ids[: row.n_known], self._sampled.get(row.row, 0)]
        return replace(row, token_ids=tokens, follows=False)

    async def close(self) -> None:
        """Nothing runs on."""
