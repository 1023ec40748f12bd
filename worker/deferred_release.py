"""Pages that are given back while a step that may still write them is on its way.

    step k     |== computing ==|
    step k + 1          |== submitted ==|          a row that ended with step k is in it, too
                     give back           ^ now they are free

A row's end is known only when the step after it has been submitted. What that step writes goes to
the row's own pages, and nobody else may have them before.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from twolane.engine.allocator import PageAllocator
from twolane.engine.step import Page


class PageReturns:
    """The step loop tells when steps are submitted and done; roles give pages back here."""

    def __init__(self, pages: PageAllocator) -> None:
        self._pages = pages
        self._waiting: deque[tuple[int, list[Page]]] = deque()  # (last step that may write, pages)
        self._n_submitted = 0
        self._n_done = 0

    def give_back(self, pages: Sequence[Page]) -> None:
        """Release the row's references: now, or when every step submitted so far is done."""
        if self._n_done == self._n_submitted:  # guard: amid a step
            self._pages.release(pages)
        elif pages:
            self._waiting.append((self._n_submitted, list(pages)))

    def on_submitted(self) -> None:
        self._n_submitted += 1

    def on_done(self) -> None:
        """The oldest step that was not done is."""
        assert self._n_done < self._n_submitted
        self._n_done += 1
        while self._waiting and self._waiting[0][0] <= self._n_done:
            self._pages.release(self._waiting.popleft()[1])

    @property
    def is_waiting(self) -> bool:
        """Whether pages come free with a step that is on its way."""
        return bool(self._waiting)

    @property
    def held_pages(self) -> list[Page]:
        """Every reference that is still to be released."""
        return [page for _, pages in self._waiting for page in pages]
