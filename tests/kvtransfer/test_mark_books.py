"""Which mark a plan waits for: that of the last page that it reads, if that page has one."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from tests.kvtransfer.pair import D_EPOCH, P_EPOCH, PAGE_BYTES, PAGE_TOKENS, HandOutlet
from twolane.engine.allocator import PageAllocator
from twolane.engine.step import Page
from twolane.kvtransfer.config import SenderConfig
from twolane.kvtransfer.key import Key
from twolane.kvtransfer.layouts.gather import Paging
from twolane.kvtransfer.send.grant import OutGrant
from twolane.kvtransfer.send.sender import Sender
from twolane.v1 import transfer_pb2

KEY = Key("r", 1, P_EPOCH, D_EPOCH)
OTHER = 303
MARKS = [(2, 5, "first"), (5, 8, "second"), (8, 10, "third")]  # pages 0 and 1: of the prefix
ROW = list(range(100, 110))
ALL_TOKENS = len(ROW) * PAGE_TOKENS - 3


def reserved(
    key: Key, n_pages: int, *, skip: int = 0, generation: int = 1
) -> transfer_pb2.Reserved:
    ticket = transfer_pb2.Ticket(key=key.proto(), generation=generation)
    return transfer_pb2.Reserved(ticket=ticket, pages=list(range(n_pages - skip)), skip_pages=skip)


def waits(paging: Paging, offers: list[int], most: int, *, skip: int = 0) -> list[object]:
    """The marks of all plans, where so many pages were offered before each."""
    n_pages = paging.n_pages(ALL_TOKENS)
    grant = OutGrant(reserved(KEY, n_pages, skip=skip), paging, ALL_TOKENS)
    found: list[object] = []
    for n in offers:
        while (plan := grant.next_plan(ROW[:n], most, MARKS)) is not None:
            found.append(plan.after)
    assert grant.n_posted == n_pages
    return found


EVEN = Paging(16, 16, PAGE_BYTES)


@pytest.mark.parametrize(
    ("offers", "most", "skip", "found"),
    [
        ([2, 5, 8, 10], 99, 0, [None, "first", "second", "third"]),
        ([10], 99, 0, ["third"]),
        ([10], 4, 0, ["first", "second", "third"]),
        ([10], 1, 0, [None] * 2 + ["first"] * 3 + ["second"] * 3 + ["third"] * 2),
        ([10], 1, 8, ["third"] * 2),
        ([5, 10], 99, 1, ["first", "third"]),
    ],
)
def test_a_plan_waits_for_the_last_page_that_it_reads(
    offers: list[int], most: int, skip: int, found: list[object]
) -> None:
    assert waits(EVEN, offers, most, skip=skip) == found


@pytest.mark.parametrize(
    ("target_tokens", "offers", "most", "found"),
    [
        (64, [2, 5, 8, 10], 99, ["first", "second", "third"]),  # the first: pages 0 to 3
        (64, [10], 1, ["first", "second", "third"]),
        (64, [10], 99, ["third"]),
        (32, [10], 1, [None, "first", "second", "second", "third"]),
        (8, [10], 1, [None] * 4 + ["first"] * 6 + ["second"] * 6 + ["third"] * 4),
        (48, [2, 5, 8, 10], 99, ["first", "second", "third"]),
    ],
)
def test_a_plan_of_other_pages_waits_for_the_last_that_these_are_made_of(
    target_tokens: int, offers: list[int], most: int, found: list[object]
) -> None:
    assert waits(Paging(16, target_tokens, PAGE_BYTES), offers, most) == found


@pytest.mark.parametrize("n_tokens", [1, 16, 17, 63, 64, 65, 157])
@pytest.mark.parametrize(("ours", "theirs"), [(16, 16), (16, 64), (64, 16), (48, 32)])
def test_the_sources_of_some_pages_are_those_that_their_slots_name(
    ours: int, theirs: int, n_tokens: int
) -> None:
    paging = Paging(ours, theirs, PAGE_BYTES)
    row = list(range(-(-n_tokens // ours)))
    for n in range(1, paging.n_pages(n_tokens) + 1):
        slots = paging.sources(row, 0, n, n_tokens)
        a_page = 1 if paging.is_even else ours // (theirs // paging.units)
        assert paging.n_sources(n, n_tokens) == slots.max() // a_page + 1


@dataclass
class Sending:
    """A sender with one row of ten pages, the first two found in the prefix index."""

    sender: Sender
    pages: PageAllocator
    row: list[Page]
    outlets: dict[int, HandOutlet]

    def offer(self, key: Key, first: int, stop: int, mark: object | None = None) -> None:
        self.sender.offer(key, first, self.row[first:stop], 0.0, after=mark)

    def offer_all(self, key: Key) -> None:
        self.offer(key, 0, 2)
        for begin, end, mark in MARKS:
            self.offer(key, begin, end, mark)

    def grant(self, key: Key, generation: int = 1) -> None:
        message = transfer_pb2.ConnectResponse(reserved=reserved(key, 10, generation=generation))
        self.sender.on_message(key.receiver_epoch, message, 0.0)

    def posted(self, epoch: int = D_EPOCH) -> list[tuple[int, int, object]]:
        """(first page, pages, mark) of each post that is not complete."""
        plans = [plan for _, _, plan in self.outlets[epoch].posts]
        return [(plan.first, plan.n_pages, plan.after) for plan in plans]


@pytest.fixture
def sending() -> Sending:
    pages = PageAllocator(16)
    sender = Sender(
        P_EPOCH,
        pages,
        page_tokens=PAGE_TOKENS,
        page_bytes=PAGE_BYTES,
        config=SenderConfig(post_bytes=4 * PAGE_BYTES, window_bytes=8 * PAGE_BYTES),
    )
    outlets = {epoch: HandOutlet() for epoch in (D_EPOCH, OTHER)}
    for epoch, outlet in outlets.items():
        sender.attach_peer(epoch, outlet, 0.0)
    sender.open(KEY, n_tokens=ALL_TOKENS, prefix_hashes=[], priority=0, now=0.0)
    row = pages.try_take(10)
    assert row is not None
    return Sending(sender, pages, row, outlets)


def test_each_chunk_is_posted_with_its_own_mark(sending: Sending) -> None:
    sending.grant(KEY)
    sending.offer_all(KEY)
    assert sending.posted() == [(0, 2, None), (2, 3, "first"), (5, 3, "second")]
    for _ in range(3):  # the window has room again
        sending.outlets[D_EPOCH].complete()
    sending.sender.poll(0.0)
    assert sending.posted() == [(8, 2, "third")]


def test_posts_made_when_the_grant_comes_late_still_wait(sending: Sending) -> None:
    sending.offer_all(KEY)
    sending.grant(KEY)
    assert sending.posted() == [(0, 4, "first"), (4, 4, "second")]
    sending.outlets[D_EPOCH].complete()
    sending.sender.poll(0.0)
    assert sending.posted() == [(4, 4, "second"), (8, 2, "third")]


def test_a_grant_that_follows_a_revoked_one_waits_again(sending: Sending) -> None:
    sending.grant(KEY)
    sending.offer_all(KEY)
    ticket = reserved(KEY, 10).ticket
    revoke = transfer_pb2.ConnectResponse(revoke=transfer_pb2.Revoke(ticket=ticket))
    sending.sender.on_message(D_EPOCH, revoke, 0.0)
    assert sending.outlets[D_EPOCH].cancelled == [1]
    for _ in range(3):
        sending.outlets[D_EPOCH].complete(ok=False)
    sending.sender.poll(0.0)
    sending.grant(KEY, generation=2)
    assert sending.posted() == [(0, 4, "first"), (4, 4, "second")]


def test_a_row_that_goes_elsewhere_takes_its_marks_along(sending: Sending) -> None:
    elsewhere = Key("r", 2, P_EPOCH, OTHER)
    sending.offer(KEY, 0, 2)
    sending.offer(KEY, 2, 5, "first")
    assert sending.sender.retarget(KEY, elsewhere, 0.0)
    sending.offer(elsewhere, 5, 8, "second")
    sending.grant(elsewhere)
    sending.offer(elsewhere, 8, 10)
    assert sending.posted(OTHER) == [(0, 4, "first"), (4, 4, "second")]
    sending.outlets[OTHER].complete()
    sending.sender.poll(0.0)
    assert sending.posted(OTHER) == [(4, 4, "second"), (8, 2, None)]


def test_pages_that_wait_stay_pinned_until_their_post_is_complete(sending: Sending) -> None:
    sending.grant(KEY)
    sending.offer(KEY, 0, 5, "first")
    sending.sender.abandon(KEY, "cancelled", 0.0)
    sending.pages.release(sending.row)
    assert sending.pages.counts().pinned == 5
    for _ in range(2):
        sending.outlets[D_EPOCH].complete(ok=False)
    sending.sender.poll(0.0)
    assert sending.pages.counts().free == 16
