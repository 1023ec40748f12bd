"""The page allocator, move by move: what each does, and what it refuses."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from twolane.engine.allocator import PageAllocator, PageCounts
from twolane.engine.step import Page


def taken(allocator: PageAllocator, n: int) -> list[Page]:
    pages = allocator.try_take(n)
    assert pages is not None
    return pages


def test_taking_is_all_or_nothing() -> None:
    allocator = PageAllocator(4)
    taken(allocator, 3)
    assert allocator.try_take(2) is None
    assert allocator.counts() == PageCounts(0, 3, 0, 0, 1)
    assert allocator.try_take(0) == []


def test_the_last_release_frees_a_page() -> None:
    allocator = PageAllocator(2)
    pages = taken(allocator, 1)
    allocator.share(pages)
    allocator.release(pages)
    assert allocator.counts().used == 1
    allocator.release(pages)
    assert allocator.counts() == PageCounts(0, 0, 0, 0, 2)


def test_a_published_page_is_found_again_after_its_release() -> None:
    allocator = PageAllocator(4)
    pages = taken(allocator, 3)
    for i, page in enumerate(pages):
        assert allocator.publish(page, bytes([i]))
    allocator.release(pages)
    assert allocator.counts().cached == 3
    chain = [b"\0", b"\1", b"x", b"\2"]
    assert allocator.match_length(chain) == 2
    assert allocator.counts().cached == 3, "peeking takes nothing"
    assert allocator.match(chain) == pages[:2]
    assert allocator.counts() == PageCounts(0, 2, 0, 1, 1)


def test_a_match_shares_pages_that_are_in_use() -> None:
    allocator = PageAllocator(2)
    pages = taken(allocator, 1)
    allocator.publish(pages[0], b"a")
    assert allocator.match([b"a"]) == pages
    assert allocator.refs_of(pages[0]) == 2


def test_of_two_pages_with_one_content_the_first_is_indexed() -> None:
    allocator = PageAllocator(2)
    first, second = taken(allocator, 2)
    assert allocator.publish(first, b"a")
    assert allocator.publish(first, b"a"), "publishing again changes nothing"
    assert not allocator.publish(second, b"a")
    allocator.release([first, second])
    assert allocator.counts() == PageCounts(0, 0, 0, 1, 1)


def test_the_tail_of_the_oldest_prefix_is_evicted_first() -> None:
    allocator = PageAllocator(4)
    old, new = taken(allocator, 2), taken(allocator, 2)
    for i, page in enumerate(old + new):
        allocator.publish(page, bytes([i]))
    allocator.release(old)
    allocator.release(new)
    assert taken(allocator, 1) == [old[1]]
    assert taken(allocator, 1) == [old[0]]
    assert allocator.match_length([b"\0"]) == 0
    assert allocator.match([b"\2", b"\3"]) == new
    assert allocator.n_available == 0


def test_a_match_makes_a_prefix_recent() -> None:
    allocator = PageAllocator(2)
    a, b = taken(allocator, 2)
    allocator.publish(a, b"a")
    allocator.publish(b, b"b")
    allocator.release([a])
    allocator.release([b])
    allocator.release(allocator.match([b"a"]))
    assert taken(allocator, 1) == [b]


def test_eviction_sees_the_pin() -> None:
    allocator = PageAllocator(2)
    cached, private = taken(allocator, 2)
    allocator.publish(cached, b"a")
    allocator.pin([cached, private])
    allocator.pin([cached])
    allocator.release([cached, private])
    assert allocator.counts() == PageCounts(0, 0, 2, 0, 0)
    assert allocator.try_take(1) is None
    allocator.unpin([cached, private])
    assert allocator.counts() == PageCounts(0, 0, 1, 0, 1)
    allocator.unpin([cached])
    assert allocator.counts() == PageCounts(0, 0, 0, 1, 1)


def test_a_pinned_page_can_still_be_matched() -> None:
    allocator = PageAllocator(1)
    (page,) = taken(allocator, 1)
    allocator.publish(page, b"a")
    allocator.pin([page])
    allocator.release([page])
    assert allocator.match([b"a"]) == [page]
    allocator.unpin([page])
    assert allocator.counts().used == 1


def test_a_quarantined_page_returns_on_proof_alone() -> None:
    allocator = PageAllocator(2)
    pages = taken(allocator, 2)
    allocator.publish(pages[0], b"a")
    allocator.quarantine(pages)
    assert allocator.counts() == PageCounts(2, 0, 0, 0, 0)
    assert allocator.try_take(1) is None
    assert allocator.match([b"a"]) == []
    allocator.absolve(pages)
    assert allocator.counts().free == 2
    allocator.check_integrity()


@pytest.mark.parametrize(
    ("misuse", "complaint"),
    [
        (lambda a, p: a.release([p[0], p[0]]), "released more often"),
        (lambda a, p: a.release([p[1], p[1]]), "cannot release page"),
        (lambda a, p: a.release([Page(9)]), "not in this pool"),
        (lambda a, p: a.release([Page(-1)]), "not in this pool"),
        (lambda a, p: a.share([p[1]]), "cannot share page"),
        (lambda a, p: a.publish(p[1], b"a"), "cannot publish page"),
        (lambda a, p: a.publish(p[0], b"b"), "already published"),
        (lambda a, p: a.pin([p[1]]), "only content can be pinned"),
        (lambda a, p: a.unpin([p[0]]), "unpinned more often"),
        (lambda a, p: a.quarantine([p[1]]), "cannot quarantine page"),
        (lambda a, p: a.quarantine([p[0], p[0]]), "shared or named twice"),
        (lambda a, p: (a.pin([p[0]]), a.quarantine([p[0]])), "is pinned"),
        (lambda a, p: (a.quarantine([p[0]]), a.release([p[0]])), "is quarantined"),
        (lambda a, p: a.absolve([p[0]]), "is used|is free|is cached"),
        (lambda a, p: a.try_take(-1), "cannot take"),
    ],
)
def test_misuse_is_refused_with_its_name(
    misuse: Callable[[PageAllocator, list[Page]], object], complaint: str
) -> None:
    allocator = PageAllocator(3)
    pages = taken(allocator, 2)
    allocator.publish(pages[0], b"a")
    allocator.release([pages[1]])
    with pytest.raises(AssertionError, match=complaint):
        misuse(allocator, pages)


@pytest.mark.parametrize(
    ("damage", "complaint"),
    [
        (lambda a: a._free.append(a._free[0]), "free list twice"),
        (lambda a: a._free.pop(), "in 0 lists"),
        (lambda a: a._refs.__setitem__(0, -1), "has -1 references"),
        (lambda a: a._pins.__setitem__(Page(0), 0), "has 0 pins"),
        (lambda a: a._cached.popitem(), "in 0 lists"),
        (lambda a: a._hash_of.clear(), "cached but not indexed"),
        (lambda a: a._page_of.clear(), "index mismatch"),
        (lambda a: a._hash_of.__setitem__(a._free[0], b"z"), "indexed but free"),
    ],
)
def test_the_audit_sees_damaged_books(
    damage: Callable[[PageAllocator], object], complaint: str
) -> None:
    allocator = PageAllocator(4)
    pages = taken(allocator, 2)
    allocator.publish(pages[1], b"a")
    allocator.release(pages[1:])
    allocator.check_integrity()
    damage(allocator)
    with pytest.raises(AssertionError, match=complaint):
        allocator.check_integrity()
