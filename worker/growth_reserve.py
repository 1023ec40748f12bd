"""Pages promised to rows for their growth: free or evictable now, but not for anybody else.

    n_available  |======= promised =======|======= spare =======|
                  running rows will take    prompts, reservations, growth beyond a promise

Whoever takes pages for new work takes from the spare ones only (invariant: running rows can always
finish or be preempted). A row's own growth may draw on its promise. Pages for given tokens are
taken at the moment of the promise, which is for what comes behind them.
"""

from __future__ import annotations

from collections.abc import Collection

from twolane.engine.allocator import PageAllocator
from twolane.engine.step import Page
from twolane.worker.rows import Row


class GrowthReserve:
    """What is left of each row's promise, and the sum of it: that is asked for at every start."""

    def __init__(self, pages: PageAllocator) -> None:
        self._pages = pages
        self._left: dict[int, int] = {}  # by number of the row
        self.n_promised = 0

    @property
    def n_spare(self) -> int:
        """What new work may take. Can be below zero when quarantine took promised pages."""
        return self._pages.n_available - self.n_promised

    @property
    def holders(self) -> Collection[int]:
        """Numbers of the rows that hold a promise, though nothing may be left of it."""
        return self._left.keys()

    def promise(self, row: Row, growth_pages: int) -> None:
        """`row` will find growth_pages beyond those of its given tokens. The caller saw that they
        are spare. Replaces what was promised to it before."""
        self.forget(row)
        self._left[row.number] = growth_pages
        self.n_promised += growth_pages

    def forget(self, row: Row) -> None:
        """The row is over, or never came. May be called twice."""
        self.n_promised -= self._left.pop(row.number, 0)

    def try_take_new(self, n: int) -> list[Page] | None:
        """n pages for new work, from the spare ones, or None and no change."""
        return self._pages.try_take(n) if n <= self.n_spare else None

    def try_grow(self, row: Row, n: int) -> bool:
        """Append n pages to the row: its own promise first, then spare ones."""
        own = self._left.get(row.number, 0)
        if n > own and n - own > self.n_spare:
            return False
        taken = self._pages.try_take(n)
        if taken is None:  # quarantine ate into the promise
            return False
        row.pages += taken
        drawn = min(n, own)
        if drawn:
            self._left[row.number] = own - drawn
            self.n_promised -= drawn
        return True

    def check_integrity(self) -> None:
        """Raises AssertionError where the sum is not that of its parts."""
        assert all(n >= 0 for n in self._left.values()), self._left
        assert self.n_promised == sum(self._left.values()), self.n_promised
