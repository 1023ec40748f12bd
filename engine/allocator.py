"""The page allocator of a pool: references, pins, the prefix index, quarantine.

Each page is in one state, the first that applies:

    quarantined   its owner gave it up while a writer may still write to it
    used          it has references
    pinned        it has no reference, but a send still reads it
    cached        idle, and its content is in the prefix index
    free

            try_take                    release, not indexed
    free ------------> used ------------------------------------> free
      ^                 | \\ release, indexed
      |      quarantine |  `-----------> cached --- match ---> used
      |                 v                  |
      `--- absolve -- quarantined          `--- evicted by try_take (oldest first)

`assert` guards the caller's side of the contract: a double release is a bug, and continuing would
hand one page to two rows. Not thread-safe; uses no clock and no device.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from twolane.engine.step import Page


@dataclass(frozen=True, slots=True)
class PageCounts:
    """How many pages are in each state; the sum is the pool's size."""

    quarantined: int
    used: int
    pinned: int
    cached: int
    free: int

    @property
    def total(self) -> int:
        return self.quarantined + self.used + self.pinned + self.cached + self.free


class PageAllocator:
    """The bookkeeping of one pool. Pages are opaque handles: callers only hold and compare them."""

    def __init__(self, n_pages: int) -> None:
        assert n_pages >= 1, f"a pool needs at least one page, not {n_pages}"
        self.n_pages = n_pages
        self._refs = [0] * n_pages
        self._pins: dict[Page, int] = {}  # pages with at least one pin: few, so fast to count
        self._free = [Page(i) for i in reversed(range(n_pages))]  # a stack: reuses warm pages
        self._cached: OrderedDict[Page, None] = OrderedDict()  # least recently used first
        self._quarantined: set[Page] = set()
        self._page_of: dict[bytes, Page] = {}
        self._hash_of: dict[Page, bytes] = {}

    # -- taking and releasing ---------------------------------------------------------------

    @property
    def n_available(self) -> int:
        """How many pages `try_take` could return now: free ones, and cached ones to evict."""
        return len(self._free) + len(self._cached)

    def try_take(self, n: int) -> list[Page] | None:
        """n pages with one reference each, or None and no change. Evicts the oldest cached
        pages."""
        assert n >= 0, f"cannot take {n} pages"
        if n > self.n_available:
            return None
        return [self._take_one() for _ in range(n)]

    def share(self, pages: Sequence[Page]) -> None:
        """Add a reference to each page; each must have one already."""
        self._assert_used(pages, "share")
        for page in pages:
            self._refs[page] += 1

    def release(self, pages: Sequence[Page]) -> None:
        """Drop one reference to each page. After the last one the page is pinned, cached or free.

        Later pages of the sequence are evicted sooner: a prefix is worth more than its tail.
        """
        self._assert_used(pages, "release")
        for page in reversed(pages):
            assert self._refs[page] > 0, f"page {page} released more often than it was taken"
            self._refs[page] -= 1
            self._settle(page)

    def pin(self, pages: Sequence[Page]) -> None:
        """Keep the content of used or cached pages in place, even if they are released. Pins are
        counted."""
        for page in pages:
            self._assert_ours(page)
            held = self._refs[page] or page in self._pins or page in self._cached
            assert held, f"page {page} is {self.state_of(page)}: only content can be pinned"
        for page in pages:
            self._cached.pop(page, None)
            self._pins[page] = self._pins.get(page, 0) + 1

    def unpin(self, pages: Sequence[Page]) -> None:
        """Undo one `pin` of each page."""
        for page in reversed(pages):
            self._assert_ours(page)
            assert page in self._pins, f"page {page} unpinned more often than it was pinned"
            self._pins[page] -= 1
            if not self._pins[page]:
                del self._pins[page]
            self._settle(page)

    # -- quarantine -------------------------------------------------------------------------

    def quarantine(self, pages: Sequence[Page]) -> None:
        """Drop the caller's only reference to pages that a writer may still write.

        They leave circulation and the index until `absolve`. No step writes to shared or pinned
        pages, so they cannot be quarantined: release those.
        """
        self._assert_used(pages, "quarantine")
        for page in pages:
            assert self._refs[page] == 1, f"page {page} is shared or named twice: not quarantined"
            assert page not in self._pins, f"page {page} is pinned: not quarantined"
            self._refs[page] = 0
            self._forget(page)
            self._quarantined.add(page)

    def absolve(self, pages: Sequence[Page]) -> None:
        """Free quarantined pages: there is proof that no writer can write them any more."""
        for page in pages:
            assert page in self._quarantined, f"page {page} is {self.state_of(page)}"
            self._quarantined.remove(page)
            self._free.append(page)

    # -- the prefix index -------------------------------------------------------------------

    def publish(self, page: Page, chain_hash: bytes) -> bool:
        """Index a used page under the hash of all tokens up to its end. It is full, its content
        verified.

        False if another page is already indexed under that hash; this one then stays private.
        """
        self._assert_used([page], "publish")
        known = self._hash_of.get(page)
        assert known in (None, chain_hash), f"page {page} is already published as something else"
        if self._page_of.setdefault(chain_hash, page) != page:
            return False
        self._hash_of[page] = chain_hash
        return True

    def match_length(self, chain_hashes: Iterable[bytes]) -> int:
        """How many pages `match` would return now. Changes nothing."""
        return len(self._find(chain_hashes))

    def match(self, chain_hashes: Iterable[bytes]) -> list[Page]:
        """The pages of the longest indexed prefix, with one reference each for the caller."""
        pages = self._find(chain_hashes)
        for page in pages:
            self._cached.pop(page, None)
            self._refs[page] += 1
        return pages

    # -- inspection -------------------------------------------------------------------------

    def state_of(self, page: Page) -> str:
        """The name of the page's state."""
        if page in self._quarantined:
            return "quarantined"
        if self._refs[page]:
            return "used"
        if page in self._pins:
            return "pinned"
        return "cached" if page in self._cached else "free"

    def refs_of(self, page: Page) -> int:
        """How many references the page has."""
        return self._refs[page]

    def counts(self) -> PageCounts:
        """A snapshot of the counts; its cost grows only with the number of pinned pages."""
        quarantined, cached, free = len(self._quarantined), len(self._cached), len(self._free)
        pinned = sum(1 for page in self._pins if not self._refs[page])
        used = self.n_pages - quarantined - pinned - cached - free
        return PageCounts(quarantined, used, pinned, cached, free)

    def check_integrity(self) -> None:
        """Assert every invariant, page by page. Cheap enough for every idle moment."""
        free = set(self._free)
        assert len(free) == len(self._free), "a page is on the free list twice"
        for i in range(self.n_pages):
            page = Page(i)
            refs, pins = self._refs[page], self._pins.get(page, 0)
            assert refs >= 0, f"page {page} has {refs} references"
            assert pins > 0 or page not in self._pins, f"page {page} has {pins} pins"
            homes = (page in free) + (page in self._cached) + (page in self._quarantined)
            held = bool(refs or pins)
            assert homes + held == 1, f"page {page} is in {homes} lists with {refs}+{pins} holds"
            indexed = page in self._hash_of
            assert indexed or page not in self._cached, f"page {page} is cached but not indexed"
            idle = page in free or page in self._quarantined
            assert not (indexed and idle), f"page {page} is indexed but {self.state_of(page)}"
        assert {h: p for p, h in self._hash_of.items()} == self._page_of, "index mismatch"
        used = sum(1 for refs in self._refs if refs)
        assert self.counts().used == used, f"{self.counts()}, but {used} pages have references"

    # -- inside -----------------------------------------------------------------------------

    def _take_one(self) -> Page:
        if self._free:
            page = self._free.pop()
        else:
            page, _ = self._cached.popitem(last=False)
            self._forget(page)
        assert self.state_of(page) == "free", f"page {page} was handed out twice"
        self._refs[page] = 1
        return page

    def _settle(self, page: Page) -> None:
        if self._refs[page] or page in self._pins:
            return
        if page in self._hash_of:
            self._cached[page] = None
        else:
            self._free.append(page)

    def _forget(self, page: Page) -> None:
        chain_hash = self._hash_of.pop(page, None)
        if chain_hash is not None:
            del self._page_of[chain_hash]

    def _find(self, chain_hashes: Iterable[bytes]) -> list[Page]:
        pages: list[Page] = []
        for chain_hash in chain_hashes:
            page = self._page_of.get(chain_hash)
            if page is None:
                break
            pages.append(page)
        return pages

    def _assert_ours(self, page: Page) -> None:
        assert 0 <= page < self.n_pages, f"page {page} is not in this pool of {self.n_pages}"
        assert page not in self._quarantined, f"page {page} is quarantined"

    def _assert_used(self, pages: Sequence[Page], verb: str) -> None:
        for page in pages:
            self._assert_ours(page)
            assert self._refs[page], f"cannot {verb} page {page}: it is {self.state_of(page)}"
