"""Counts refused requests by reason, and logs them at a limited rate."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from twolane.errors import TwolaneError
from twolane.refusals import Refusal
from twolane.rpc.log_rate import LogRate

log = logging.getLogger(__name__)


class RefusalLog:
    """Counts in `counters`, the counters of the status."""

    def __init__(self, counters: Counter[str]) -> None:
        self._counters = counters
        self._rate = LogRate()

    @contextmanager
    def noting(self) -> Iterator[None]:
        """A block that may refuse a request at a door: counts and logs the refusal."""
        with self.logging():
            try:
                yield
            except TwolaneError as error:
                self._counters[f"refused.{error.reason.lower()}"] += 1
                raise

    def overloaded(self) -> None:
        """Count a request that the HTTP door refuses as it is full."""
        self._counters[f"refused.{Refusal.OVERLOADED}"] += 1

    @contextmanager
    def logging(self) -> Iterator[None]:
        """A block that admits a request: logs the refusal, which admission itself counts."""
        try:
            yield
        except TwolaneError as error:
            reason = error.reason.lower()
            n = self._rate.take(reason, asyncio.get_running_loop().time())
            if n:
                log.info("refused %d requests (%s); the last: %.200s", n, reason, error.message)
            raise
