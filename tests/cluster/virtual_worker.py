"""One worker of a virtual cluster: its life, and steps that may hang."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from twolane.engine.step import RowResult, RowWork
from twolane.testing.links import MemoryLink
from twolane.worker.steps.step_runner import OnSubmitted, TimedEngine, TimedStepRunner
from twolane.worker.worker import Worker


@dataclass
class Life:
    """One incarnation of a worker."""

    worker: Worker
    task: asyncio.Task[None]
    announcing: asyncio.Task[None]
    links: list[MemoryLink[Any, Any]] = field(default_factory=list)  # dialled by others
    dialled: list[MemoryLink[Any, Any]] = field(default_factory=list)  # to other workers


class HangingRunner(TimedStepRunner):
    """Steps that begin while the device hangs never end."""

    def __init__(self, engine: TimedEngine, steps_ahead: int, is_hung: Callable[[], bool]) -> None:
        super().__init__(engine, steps_ahead=steps_ahead)
        self._is_hung = is_hung

    async def run(
        self, work: Sequence[RowWork], on_submitted: OnSubmitted | None
    ) -> list[RowResult]:
        if self._is_hung():
            if on_submitted is not None:
                on_submitted(None)
            await asyncio.Event().wait()
        return await super().run(work, on_submitted)
