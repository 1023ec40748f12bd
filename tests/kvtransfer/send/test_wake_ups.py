"""What a sender does when its transport has completed posts."""

from __future__ import annotations

import pytest

from tests.kvtransfer.pair import D_EPOCH, P_EPOCH, PAGE_BYTES, HandOutlet, Pair
from twolane.kvtransfer.config import SenderConfig
from twolane.kvtransfer.key import Key
from twolane.kvtransfer.send.outbound import Outbound
from twolane.v1 import transfer_pb2

TWO_PAGES = SenderConfig(window_bytes=2 * PAGE_BYTES, post_bytes=PAGE_BYTES)


def pair_by_hand(n_pages: int) -> tuple[Pair, HandOutlet]:
    pair, outlet = Pair(n_pages=n_pages, sender=TWO_PAGES), HandOutlet()
    pair.send_by(outlet)
    return pair, outlet


def grant(pair: Pair, name: str, n_pages: int) -> Key:
    key = pair.key(name)
    pair.open(key, n_pages, expect=False)
    reserved = transfer_pb2.Reserved(ticket=key.ticket(1), pages=range(n_pages))
    pair.tell_sender(transfer_pb2.ConnectResponse(reserved=reserved))
    return key


def done(pair: Pair) -> list[str]:
    """The transfers for which DONE was said, in order."""
    said = [m.done.ticket.key for m in pair.to_receiver() if m.WhichOneof("message") == "done"]
    return [key.submission_id for key in said]


def test_wake_up_looks_at_no_transfer_that_waits_for_other_things(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pair, outlet = pair_by_hand(204)
    for n in range(200):
        pair.open(Key(f"unplaced {n}", 1, P_EPOCH, D_EPOCH), 1, expect=False)
    grant(pair, "busy", 4)
    looked_at, progress = [], Outbound.progress

    def look(out: Outbound, now: float) -> None:
        looked_at.append(out.key.submission_id)
        progress(out, now)

    monkeypatch.setattr(Outbound, "progress", look)
    outlet.complete()
    pair.sender.poll(pair.now)
    assert set(looked_at) == {"busy"}
    assert len(outlet.posts) == 2, "the window is full again"


def test_transfers_get_room_in_the_window_in_the_order_in_which_they_found_none() -> None:
    pair, outlet = pair_by_hand(12)
    names = ["a", "b", "c", "d"]
    keys = [grant(pair, name, 2) for name in names]
    order = []
    while outlet.posts:
        order.append(outlet.posts[0][0])
        outlet.complete()
        pair.sender.poll(pair.now)
    assert len(order) == 8
    assert done(pair) == names
    for key in keys:
        pair.sender.abandon(key, "cancelled", pair.now)
    assert pair.p_pages.counts().free == 12


def test_transfer_that_ends_while_it_waits_for_the_window_is_not_sent_and_not_kept() -> None:
    pair, outlet = pair_by_hand(12)
    first, second, third = (grant(pair, name, 2) for name in ("a", "b", "c"))
    pair.sender.abandon(second, "cancelled", pair.now)
    while outlet.posts:
        outlet.complete()
        pair.sender.poll(pair.now)
    assert done(pair) == ["a", "c"]
    assert pair.sender.keys() == [first, third]
    assert not any(peer.waiting for peer in pair.sender._posts.peers.values())
