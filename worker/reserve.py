"""Pages promised to rows for their growth: free or evictable now, but not for anybody else.

    n_available  |======= promised =======|======= spare =======|
                  running rows will take    prompts, reservations, growth beyond a promise

Whoever takes pages for new work takes from the spare ones only (invariant: running rows can always
finish or be preempted). A row's own growth may draw on its promise.
"""

from __future__ import annotations

from collections.abc import Sequence

from engine.allocator import PageAllocator
from engine.step import Page
from worker.rows import Row


class GrowthReserve:
    """The rows that hold a promise; what is left of each is the row's to tell."""

    def __init__(self, pages: PageAllocator) -> None:
        self._pages = pages
        self._rows: dict[int, Row] = {}

    @property
    def n_promised(self) -> int:
        return sum(row.n_promised_pages for row in self._rows.values())

    @property
    def n_spare(self) -> int:
        """What new work may take. Can be below zero when quarantine took promised pages."""
        return self._pages.n_available - self.n_promised

    def promise(self, row: Row, growth_pages: int) -> None:
        """`row` will find growth_pages beyond its prompt's. The caller saw that they are spare."""
        row.growth_pages = growth_pages
        self._rows[row.number] = row

    def forget(self, row: Row) -> None:
        """The row is over, or never came. May be called twice."""
        self._rows.pop(row.number, None)

    def try_take_new(self, n: int) -> list[Page] | None:
        """n pages for new work, from the spare ones, or None and no change."""
        return self._pages.try_take(n) if n <= self.n_spare else None

    def try_grow(self, row: Row, n: int) -> bool:
        """Append n pages to the row: its own promise first, then spare ones."""
        if n <= 0:
            return True
        beyond = n - row.n_promised_pages
        if beyond > 0 and beyond > self.n_spare:
            return False
        taken = self._pages.try_take(n)
        if taken is None:  # quarantine ate into the promise
            return False
        row.pages += taken
        return True

    def holders(self) -> Sequence[Row]:
        return list(self._rows.values())
