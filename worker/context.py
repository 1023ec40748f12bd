"""What the roles of one worker share: the worker's identity, its pages, the event outbox."""

from __future__ import annotations

import itertools
import secrets
from collections import Counter

from twolane.engine.allocator import PageAllocator
from twolane.engine.step import Engine, EngineSpec
from twolane.worker.config import WorkerConfig
from twolane.worker.event_outbox import EventOutbox
from twolane.worker.growth_reserve import GrowthReserve
from twolane.worker.page_returns import PageReturns


class WorkerContext:
    """One incarnation of a worker: created before its roles, and ends with them.

    `epoch` is random and never zero; it distinguishes this process from every other, past or
    future, that is called `worker_id`.
    """

    def __init__(self, config: WorkerConfig, engine: Engine, *, epoch: int | None = None) -> None:
        self.worker_id = config.worker_id
        self.limits = config.limits
        self.epoch = epoch or secrets.randbits(62) + 1
        self.engine = engine
        self.pages = PageAllocator(engine.spec.n_pages)
        self.returns = PageReturns(self.pages)
        self.reserve = GrowthReserve(self.pages)
        self.outbox = EventOutbox()
        self.dropped: Counter[str] = Counter()  # ignored messages, by reason
        self._numbers = itertools.count(1)

    @property
    def spec(self) -> EngineSpec:
        return self.engine.spec

    def next_number(self) -> int:
        """A number for a row in steps, never used twice."""
        return next(self._numbers)
