"""Pages that are given back while steps are on their way."""

from __future__ import annotations

from twolane.engine.allocator import PageAllocator
from twolane.engine.step import Page
from twolane.worker.page_returns import PageReturns


def taken(pages: PageAllocator, n: int) -> list[Page]:
    held = pages.try_take(n)
    assert held is not None
    return held


def test_pages_come_free_at_once_when_nothing_is_on_its_way() -> None:
    pages = PageAllocator(4)
    returns = PageReturns(pages)
    returns.give_back(taken(pages, 3))
    assert pages.counts().free == 4
    assert returns.held_pages == []


def test_pages_wait_for_the_last_step_that_was_submitted_before() -> None:
    pages = PageAllocator(4)
    returns = PageReturns(pages)
    first, second = taken(pages, 1), taken(pages, 2)
    returns.on_submitted()
    returns.on_submitted()
    returns.give_back(first)
    returns.on_submitted()
    returns.give_back(second)
    assert returns.held_pages == first + second
    returns.on_done()
    assert pages.counts().free == 1
    returns.on_done()
    assert pages.counts().free == 2
    assert returns.held_pages == second
    returns.on_done()
    assert pages.counts().free == 4
