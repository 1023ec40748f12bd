"""Who runs the engine's steps: a thread in production, a sleep under virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

from engine.step import Engine, RowResult, RowWork


class StepRunner(Protocol):
    """One step at a time. What `run` raises is a fault of the engine as a whole, never of a row."""

    async def run(self, work: Sequence[RowWork]) -> list[RowResult]: ...

    async def close(self) -> None:
        """Wait for the step that runs; no other starts. May be called twice."""
        ...


class ThreadStepRunner:
    """Steps on one thread of their own, so that the event loop goes on meanwhile."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="engine-step")

    async def run(self, work: Sequence[RowWork]) -> list[RowResult]:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, self._engine.run, work)

    async def close(self) -> None:
        await asyncio.to_thread(self._thread.shutdown, wait=True)


class TimedEngine(Engine, Protocol):
    """An engine that knows what its steps would cost, such as `engine.fake.FakeEngine`."""

    def step_time_s(self, work: Sequence[RowWork]) -> float: ...


class TimedStepRunner:
    """Sleeps for as long as a step would take, then computes it: the double for virtual time.

    The pages are written at the very end: whoever frees a page amid a step is found out.
    """

    def __init__(self, engine: TimedEngine) -> None:
        self._engine = engine

    async def run(self, work: Sequence[RowWork]) -> list[RowResult]:
        await asyncio.sleep(self._engine.step_time_s(work))
        return self._engine.run(work)

    async def close(self) -> None:
        """Nothing runs on."""
