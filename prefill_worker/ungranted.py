"""Prompts that are computed and held, and for which no decode worker grants pages.

held --- unplaced_after_s ---> reported UNPLACED, once --- drop_after_s ---> dropped, if rows
  |                                                                          wait for pages here
  `--- pages are granted ---> being transferred: left alone
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from twolane.kvtransfer import reasons
from twolane.prefill_worker.config import PrefillConfig
from twolane.v1 import worker_pb2
from twolane.worker.attempts.attempt_id import AttemptId
from twolane.worker.context import WorkerContext
from twolane.worker.rows import Row

_LOOK_EVERY_S = 0.1


class Ungranted:
    """`is_granted(row)`: whether the row's decode worker has granted pages for it."""

    def __init__(
        self, context: WorkerContext, config: PrefillConfig, is_granted: Callable[[Row], bool]
    ) -> None:
        self._context = context
        self._config = config
        self._is_granted = is_granted
        self._reported: set[AttemptId] = set()
        self._look_at_s = 0.0

    @property
    def n_reported(self) -> int:
        return len(self._reported)

    def report(self, row: Row, reason: str) -> None:
        """Tell the router that the row has to be placed elsewhere; once for each attempt."""
        if row.attempt not in self._reported:
            self._reported.add(row.attempt)
            self._context.outbox.row(
                row.attempt,
                worker_pb2.RowEvent.KIND_UNPLACED,
                worker_pb2.ROLE_PREFILL,
                reason=reason,
            )

    def forget(self, attempt: AttemptId) -> None:
        """The attempt has ended or was retargeted. Does nothing for one that was not reported."""
        self._reported.discard(attempt)

    def look(self, held: Callable[[], Iterable[Row]], now: float) -> Row | None:
        """Report the rows that have waited for long, ten times a second at most. Returns the last
        of those that may be dropped; `held()` returns the held rows in order of turn."""
        if now < self._look_at_s:
            return None
        self._look_at_s = now + _LOOK_EVERY_S
        droppable = None
        for row in held():
            held_since_s = row.times.first_token_s
            assert held_since_s is not None
            if self._is_granted(row):
                continue
            if now >= held_since_s + self._config.unplaced_after_s:
                self.report(row, reasons.BUSY)
            if now >= held_since_s + self._drop_after_s(row):
                droppable = row
        return droppable

    def _drop_after_s(self, row: Row) -> float:
        """In a circle of workers that wait for each other, at least one waits for a lower epoch and
        at least one for a higher: they never all drop their rows at once."""
        yields_first = self._context.epoch < row.decode.epoch
        return self._config.drop_after_s * (1 if yields_first else 2)
