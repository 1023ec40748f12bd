"""One worker of a virtual cluster: its life, steps that may hang, what its clients get."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from twolane.engine.step import RowWork
from twolane.testing.links import MemoryLink
from twolane.v1 import sampling_pb2
from twolane.worker.steps.step_runner import (
    LandedStep,
    OnSubmitted,
    TimedEngine,
    TimedStepRunner,
)
from twolane.worker.worker import Worker


@dataclass
class Life:
    """One incarnation of a worker."""

    worker: Worker
    task: asyncio.Task[None]
    announcing: asyncio.Task[None]
    links: list[MemoryLink[Any, Any]] = field(default_factory=list)  # dialled by others
    dialled: list[MemoryLink[Any, Any]] = field(default_factory=list)  # to other workers


@dataclass(frozen=True)
class Outcome:
    """One request, as its client saw it."""

    tokens: list[int]
    ledger: sampling_pb2.Ledger
    took_s: float


class HangingRunner(TimedStepRunner):
    """Steps that begin while the device hangs never end."""

    def __init__(
        self, engine: TimedEngine, steps_ahead: int, submit_s: float, is_hung: Callable[[], bool]
    ) -> None:
        super().__init__(engine, steps_ahead=steps_ahead, submit_s=submit_s)
        self._is_hung = is_hung

    async def run(self, work: Sequence[RowWork], on_submitted: OnSubmitted | None) -> LandedStep:
        if self._is_hung():
            if on_submitted is not None:
                on_submitted(None)
            await asyncio.Event().wait()
        return await super().run(work, on_submitted)
