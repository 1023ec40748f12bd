"""Who gives way when pages run out. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from twolane.worker.rows import Row


def choose_victim(rows: Iterable[Row]) -> Row:
    """The lowest priority; among those the youngest. It is the last one in turn.

    The row that is first in turn is therefore never anybody's victim: someone always gets on.
    """
    return max(rows, key=lambda row: row.turn)
