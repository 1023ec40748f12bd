"""Which row is preempted when pages run out. A pure function."""

from __future__ import annotations

from collections.abc import Iterable

from twolane.worker.rows import Row


def choose_victim(rows: Iterable[Row]) -> Row:
    """The row with the lowest priority; of those, the youngest. It is the last in order of turn.

    So the row that is first in order is never preempted, and at least one row makes progress.
    """
    return max(rows, key=lambda row: row.turn)
