"""Random sequences of the allocator's moves against plain counters: every law after every move."""

from __future__ import annotations

import random
from collections import Counter

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from twolane.engine.allocator import PageAllocator
from twolane.engine.step import Page


class Books(RuleBasedStateMachine):
    """Random moves on an allocator and on counters of our own; every law holds after each."""

    def __init__(self) -> None:
        super().__init__()
        self.allocator = PageAllocator(8)
        self.refs: Counter[Page] = Counter()
        self.pins: Counter[Page] = Counter()
        self.suspects: set[Page] = set()
        self.content: dict[Page, bytes] = {}

    def some(self, pages: list[Page], rng: random.Random) -> list[Page]:
        return rng.sample(pages, rng.randint(1, len(pages)))

    @rule(n=st.integers(0, 9))
    def take(self, n: int) -> None:
        available = self.allocator.n_available
        pages = self.allocator.try_take(n)
        assert (pages is None) == (n > available)
        for page in pages or []:
            assert not self.refs[page], "handed out twice"
            assert not self.pins[page], "evicted under a pin"
            assert page not in self.suspects, "handed out before proof"
            self.refs[page] = 1
            self.content.pop(page, None)

    @precondition(lambda self: bool(+self.refs))
    @rule(rng=st.randoms(use_true_random=False), verb=st.sampled_from(["share", "release", "pin"]))
    def hold(self, rng: random.Random, verb: str) -> None:
        pages = self.some(list(+self.refs), rng)
        getattr(self.allocator, verb)(pages)
        if verb == "pin":
            self.pins.update(pages)
        elif verb == "share":
            self.refs.update(pages)
        else:
            self.refs.subtract(pages)
            self._drop_content()

    @precondition(lambda self: bool(+self.pins))
    @rule(rng=st.randoms(use_true_random=False))
    def unpin(self, rng: random.Random) -> None:
        pages = self.some(list(+self.pins), rng)
        self.allocator.unpin(pages)
        self.pins.subtract(pages)
        self._drop_content()

    @precondition(lambda self: bool(self.unshared()))
    @rule(rng=st.randoms(use_true_random=False))
    def quarantine(self, rng: random.Random) -> None:
        pages = self.some(self.unshared(), rng)
        self.allocator.quarantine(pages)
        self.refs.subtract(pages)
        self.suspects.update(pages)
        for page in pages:
            self.content.pop(page, None)

    @precondition(lambda self: bool(self.suspects))
    @rule(rng=st.randoms(use_true_random=False))
    def absolve(self, rng: random.Random) -> None:
        pages = self.some(sorted(self.suspects), rng)
        self.allocator.absolve(pages)
        self.suspects.difference_update(pages)

    @precondition(lambda self: bool(set(+self.refs) - set(self.content)))
    @rule(rng=st.randoms(use_true_random=False), name=st.binary(min_size=1, max_size=1))
    def publish(self, rng: random.Random, name: bytes) -> None:
        page = rng.choice(sorted(set(+self.refs) - set(self.content)))
        fresh = name not in self.content.values()
        assert self.allocator.publish(page, name) == fresh
        if fresh:
            self.content[page] = name

    @rule(rng=st.randoms(use_true_random=False))
    def match(self, rng: random.Random) -> None:
        chain = list(self.content.values())
        rng.shuffle(chain)
        pages = self.allocator.match([*chain[:3], b"unknown", *chain[3:]])
        assert [self.content[page] for page in pages] == chain[:3]
        self.refs.update(pages)

    def unshared(self) -> list[Page]:
        return [page for page, n in self.refs.items() if n == 1 and not self.pins[page]]

    def _drop_content(self) -> None:
        """Only what is still held, or cached with content, keeps its content."""
        for page in list(self.content):
            if self.allocator.state_of(page) == "free":
                raise AssertionError(f"page {page} lost its content without eviction")

    @invariant()
    def the_books_agree(self) -> None:
        self.allocator.check_integrity()
        held, pinned = set(+self.refs), set(+self.pins)
        cached = set(self.content) - held - pinned
        counts = self.allocator.counts()
        assert counts.quarantined == len(self.suspects)
        assert counts.used == len(held)
        assert counts.pinned == len(pinned - held)
        assert counts.cached == len(cached)
        assert counts.total == 8


TestBooks = Books.TestCase
TestBooks.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
