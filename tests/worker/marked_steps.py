"""A runner whose steps have a mark, as those of a device do."""

from __future__ import annotations

from collections.abc import Sequence

from twolane.engine.step import RowWork
from twolane.kvtransfer.testing.memory import MemoryMark
from twolane.worker.steps.step_runner import LandedStep, OnSubmitted, TimedStepRunner


class MarkedStepRunner(TimedStepRunner):
    """The mark is passed when the pages are written, just before the results are there."""

    async def run(self, work: Sequence[RowWork], on_submitted: OnSubmitted | None) -> LandedStep:
        mark = MemoryMark()
        if on_submitted is not None:
            on_submitted(mark)
        landed = await super().run(work, None)
        mark.be_passed()
        return landed
