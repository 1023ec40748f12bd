"""Pages promised to rows for their growth: free or evictable now, but reserved for those rows.

    n_available  |======= promised =======|======= spare =======|
                  running rows will take    prompts, reservations, growth beyond a promise

New work takes spare pages only (invariant: running rows can always finish or be preempted). A row's
own growth may use its promise. Pages for the given tokens are taken when the promise is made; the
promise covers the pages after them.
"""

from __future__ import annotations

from collections.abc import Collection

from twolane.engine.allocator import PageAllocator
from twolane.engine.step import Page
from twolane.worker.rows import Row


class GrowthReserve:
    """What is left of each row's promise, and the total, which is needed at every start."""

    def __init__(self, pages: PageAllocator) -> None:
        self._pages = pages
        self._left: dict[int, int] = {}  # by row number
        self.n_promised = 0

    @property
    def n_spare(self) -> int:
        """Pages that new work may take. Negative if quarantine took promised pages."""
        return self._pages.n_available - self.n_promised

    def n_spare_for(self, row: Row) -> int:
        """Pages that are promised to no other row."""
        return self.n_spare + self._left.get(row.number, 0)

    @property
    def holders(self) -> Collection[int]:
        """Numbers of the rows that hold a promise, even if it is used up."""
        return self._left.keys()

    def promise(self, row: Row, growth_pages: int) -> None:
        """Promise `row` growth_pages beyond those of its given tokens. The caller has checked that
        they are spare. Replaces an earlier promise."""
        self.forget(row)
        self._left[row.number] = growth_pages
        self.n_promised += growth_pages

    def forget(self, row: Row) -> None:
        """The row has ended, or never started. May be called twice."""
        self.n_promised -= self._left.pop(row.number, 0)

    def try_take_new(self, n: int) -> list[Page] | None:
        """Take n spare pages for new work, or return None and change nothing."""
        return self._pages.try_take(n) if n <= self.n_spare else None

    def try_grow(self, row: Row, n: int) -> bool:
        """Append n pages to the row: from its promise first, then spare ones. False, and no change,
        if there are too few."""
        own = self._left.get(row.number, 0)
        if n > own and n - own > self.n_spare:
            return False
        taken = self._pages.try_take(n)
        if taken is None:  # quarantine took promised pages
            return False
        row.pages += taken
        drawn = min(n, own)
        if drawn:
            self._left[row.number] = own - drawn
            self.n_promised -= drawn
        return True

    def check_integrity(self) -> None:
        """Raises AssertionError if the total is not the sum of the promises."""
        assert all(n >= 0 for n in self._left.values()), self._left
        assert self.n_promised == sum(self._left.values()), self.n_promised
