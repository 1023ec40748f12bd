"""Defers the release of pages while a step in flight may still write them.

    step k     |== computing ==|
    step k + 1          |== submitted ==|          a row that ended with step k is in it, too
                     give back           ^ released here

A row's end is known only after the next step has been submitted. That step still writes to the
row's pages, so no other row may get them before it is done.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from twolane.engine.allocator import PageAllocator
from twolane.engine.step import Page


class PageReturns:
    """The step loop reports when steps are submitted and done; roles return pages here."""

    def __init__(self, pages: PageAllocator) -> None:
        self._pages = pages
        self._waiting: deque[tuple[int, list[Page]]] = deque()  # (last step that may write, pages)
        self._n_submitted = 0
        self._n_done = 0

    def give_back(self, pages: Sequence[Page]) -> None:
        """Release the row's references: now, or when every step submitted so far is done."""
        if self._n_done == self._n_submitted:  # guard: during a step
            self._pages.release(pages)
        elif pages:
            self._waiting.append((self._n_submitted, list(pages)))

    def on_submitted(self) -> None:
        self._n_submitted += 1

    def on_done(self) -> None:
        """The oldest step in flight is done."""
        assert self._n_done < self._n_submitted
        self._n_done += 1
        while self._waiting and self._waiting[0][0] <= self._n_done:
            self._pages.release(self._waiting.popleft()[1])

    @property
    def is_waiting(self) -> bool:
        """Whether pages come free when a step in flight is done."""
        return bool(self._waiting)

    @property
    def held_pages(self) -> list[Page]:
        """Every reference that is still to be released."""
        return [page for _, pages in self._waiting for page in pages]
