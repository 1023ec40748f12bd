"""The chunk that is complete last travels in DONE: one message less before a row can join."""

from __future__ import annotations

import pytest

from tests.kvtransfer.pair import D_EPOCH, FIRST, P_EPOCH, PAGE_BYTES, PAGE_TOKENS, Pair, kinds
from twolane.kvtransfer import reasons
from twolane.kvtransfer.config import SenderConfig
from twolane.kvtransfer.events import Landed
from twolane.v1 import transfer_pb2


def said(pair: Pair) -> list[transfer_pb2.ConnectRequest]:
    """By the sender, once all its posts are complete."""
    pair.pass_time(0.02)
    return [it for it in pair.to_receiver() if it.WhichOneof("message") != "renew"]


def test_done_announces_the_last_chunk_and_the_row_lands() -> None:
    pair = Pair(takes_last_chunk=True)
    pair.granted(3)
    (done,) = said(pair)
    assert done.done.last_chunk.n_pages == 3
    assert len(done.done.last_chunk.checksums) == 3
    pair.tell_receiver(done)
    pair.pass_time(0.02)
    assert [type(event) for event in pair.receiver.take_events()] == [Landed]
    assert not pair.receiver.dropped


def test_an_older_receiver_hears_of_each_chunk_by_itself() -> None:
    pair = Pair()
    pair.granted(3)
    chunk, done = said(pair)
    assert kinds([chunk, done]) == ["chunk", "done"]
    assert not done.done.HasField("last_chunk")


def test_a_chunk_that_was_complete_before_the_first_token_is_announced_at_once() -> None:
    pair = Pair(takes_last_chunk=True)
    key = pair.key()
    pair.receiver.expect(key, n_tokens=3 * PAGE_TOKENS, now=pair.now)
    pair.sender.open(key, n_tokens=3 * PAGE_TOKENS, prefix_hashes=[], priority=0, now=pair.now)
    pages = pair.p_pages.try_take(3)
    assert pages is not None
    pair.sender.offer(key, 0, pages, pair.now)
    pair.tell_receiver(*pair.to_receiver())
    pair.tell_sender(*pair.to_sender())
    (chunk,) = said(pair)
    assert kinds([chunk]) == ["chunk"]
    pair.sender.finish(key, FIRST, pair.now)
    (done,) = pair.to_receiver()
    assert not done.done.HasField("last_chunk")
    pair.tell_receiver(chunk, done)
    pair.run()
    assert [type(event) for event in pair.d_events] == [Landed]


def test_earlier_chunks_are_announced_by_themselves() -> None:
    pair = Pair(takes_last_chunk=True, sender=SenderConfig(post_bytes=2 * PAGE_BYTES))
    pair.granted(3)
    first, done = said(pair)
    assert (first.chunk.index, first.chunk.first_page, first.chunk.n_pages) == (0, 0, 2)
    last = done.done.last_chunk
    assert (last.index, last.first_page, last.n_pages, done.done.n_chunks) == (1, 2, 1, 2)


def test_a_done_that_gets_lost_is_said_again_with_all_its_chunks() -> None:
    pair = Pair(takes_last_chunk=True)
    pair.granted(3)
    said(pair)  # lost
    pair.pass_time(0.3)
    again = said(pair)
    assert kinds(again)[:2] == ["chunk", "done"]
    assert not again[1].done.HasField("last_chunk")
    pair.tell_receiver(*again)
    pair.run()
    assert [type(event) for event in pair.d_events] == [Landed]


@pytest.mark.parametrize("field", ["first_page", "n_pages"])
def test_a_last_chunk_that_is_malformed_lands_nothing(field: str) -> None:
    pair = Pair(takes_last_chunk=True)
    pair.granted(3)
    (done,) = said(pair)
    setattr(done.done.last_chunk, field, 7)
    pair.tell_receiver(done)
    pair.pass_time(0.02)
    assert pair.receiver.dropped == {reasons.MALFORMED: 1}
    assert not pair.receiver.take_events()


@pytest.mark.parametrize("whose", ["another grant", "another row"])
def test_a_done_with_a_chunk_of_another_ticket_is_dropped(whose: str) -> None:
    pair = Pair(takes_last_chunk=True)
    pair.granted(3)
    (done,) = said(pair)
    if whose == "another grant":
        done.done.last_chunk.ticket.generation += 1
    else:
        done.done.last_chunk.ticket.key.submission_id = "other"
    pair.tell_receiver(done)
    pair.pass_time(0.02)
    assert pair.receiver.dropped == {reasons.MALFORMED: 1}
    assert not pair.receiver.take_events()


def test_a_row_that_is_cached_whole_has_no_last_chunk() -> None:
    pair = Pair(takes_last_chunk=True)
    hashes = [b"0" * 16, b"1" * 16]
    first = pair.key("first")
    pair.open(first, 2, prefix_hashes=hashes)
    pair.run()
    pair.commit_and_release(first)
    pair.run()
    pair.d_events.clear()
    pair.open(pair.key("second"), 2, prefix_hashes=hashes)
    pair.tell_receiver(*pair.to_receiver())
    pair.tell_sender(*pair.to_sender())
    (done,) = said(pair)
    assert (done.done.n_chunks, done.done.HasField("last_chunk")) == (0, False)
    pair.tell_receiver(done)
    pair.run()
    assert [type(event) for event in pair.d_events] == [Landed]


@pytest.mark.parametrize("takes", [False, True])
def test_a_link_that_breaks_before_the_last_post_is_complete_loses_no_chunk(takes: bool) -> None:
    """The link that follows may be to a receiver that reads DONE otherwise."""
    pair = Pair(takes_last_chunk=not takes)
    pair.granted(3)
    pair.sender.detach_peer(D_EPOCH, pair.now)
    pair.receiver.detach_peer(P_EPOCH, pair.now)
    assert not said(pair)
    pair.sender.attach_peer(D_EPOCH, pair.outlet, pair.now, takes_last_chunk=takes)
    pair.receiver.attach_peer(P_EPOCH, pair.landing, pair.now)
    again = said(pair)
    assert kinds(again)[:2] == ["chunk", "done"]
    pair.tell_receiver(*again)
    pair.run()
    assert [type(event) for event in pair.d_events] == [Landed]
