"""What the roles of one worker share: who they are, the pages, and the news they have to tell."""

from __future__ import annotations

import itertools
import secrets
from collections import Counter

from twolane.engine.allocator import PageAllocator
from twolane.engine.step import Engine, EngineSpec
from twolane.worker.config import WorkerConfig
from twolane.worker.deferred_release import PageReturns
from twolane.worker.event_outbox import EventOutbox
from twolane.worker.growth_reserve import GrowthReserve


class WorkerContext:
    """One incarnation of a worker: made before its roles, ended with them.

    `epoch` is random and never zero; it tells this process from any other that was or will be
    called `worker_id`.
    """

    def __init__(self, config: WorkerConfig, engine: Engine, *, epoch: int | None = None) -> None:
        self.worker_id = config.worker_id
        self.limits = config.limits
        self.epoch = epoch or secrets.randbits(62) + 1
        self.engine = engine
        self.pages = PageAllocator(engine.spec.n_pages)
        self.returns = PageReturns(self.pages)
        self.reserve = GrowthReserve(self.pages)
        self.news = EventOutbox()
        self.dropped: Counter[str] = Counter()  # messages that were not acted upon, by reason
        self._numbers = itertools.count(1)

    @property
    def spec(self) -> EngineSpec:
        return self.engine.spec

    def next_number(self) -> int:
        """A name for a row in steps, never given twice."""
        return next(self._numbers)
