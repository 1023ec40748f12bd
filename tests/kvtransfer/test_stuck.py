"""Receivers that are slow, and such whose bytes do not move at all."""

from __future__ import annotations

from typing import Any

import pytest

from tests.kvtransfer.pair import D_EPOCH, P_EPOCH, PAGE_BYTES, HandOutlet, Pair, kinds
from twolane.kvtransfer.config import SenderConfig
from twolane.kvtransfer.events import Committed, Failed, Landed, Released, Unplaced
from twolane.kvtransfer.key import Key
from twolane.v1 import transfer_pb2

OTHER = 7
STUCK_S = SenderConfig().stuck_after_s


def with_hand_outlet(config: SenderConfig | None = None) -> tuple[Pair, HandOutlet]:
    """A pair whose sends complete by hand; peer OTHER, at the usual outlet, is `D_EPOCH`'s twin."""
    pair = Pair(sender=config)
    pair.sender.detach_peer(D_EPOCH, pair.now)
    pair.sender.forget_peer(D_EPOCH)
    outlet = HandOutlet()
    pair.sender.attach_peer(D_EPOCH, outlet, pair.now)
    return pair, outlet


def grant(pair: Pair, key: Key, n_pages: int, generation: int = 1) -> None:
    """Says the receiver."""
    reserved = transfer_pb2.Reserved(ticket=key.ticket(generation), pages=range(n_pages))
    message = transfer_pb2.ConnectResponse(reserved=reserved)
    pair.sender.on_message(key.receiver_epoch, message, pair.now)


def pass_time(pair: Pair, seconds: float, *peers: int) -> None:
    """The receivers answer heartbeats; nothing else happens."""
    until = pair.now + seconds
    while pair.now < until:
        pair.now = min(until, pair.now + 0.05)
        pair.sender.poll(pair.now)
        pair.sender.tick(pair.now)
        for epoch in peers or (D_EPOCH,):
            keys = [key.proto() for key in pair.sender.keys(epoch)]
            renewed = transfer_pb2.ConnectResponse(renewed=transfer_pb2.Renewed(keys=keys))
            pair.sender.on_message(epoch, renewed, pair.now)


def test_a_slow_receiver_slows_only_its_own_senders() -> None:
    """One receiver takes nothing. It is sent no more than its window; another gets all it asks."""
    config = SenderConfig(window_bytes=2 * PAGE_BYTES, post_bytes=PAGE_BYTES)
    pair, slow = with_hand_outlet(config)
    quick = HandOutlet()
    pair.sender.attach_peer(OTHER, quick, pair.now)
    rows = [Key(f"r{i}", 1, P_EPOCH, epoch) for epoch in (D_EPOCH, OTHER) for i in range(4)]
    for key in rows:
        pages = pair.p_pages.try_take(1)
        assert pages is not None
        pair.sender.open(key, n_tokens=16, prefix_hashes=[], priority=0, now=pair.now)
        pair.sender.offer(key, 0, pages, pair.now)
        pair.p_pages.release(pages)
    for key in rows:
        grant(pair, key, 1)
    begun = 0
    while quick.posts:
        begun += len(quick.posts)
        for _ in range(len(quick.posts)):
            quick.complete()
        pair.sender.poll(pair.now)
    assert begun == 4, "all of them"
    assert sum(plan.n_pages for _, _, plan in slow.posts) == 2, "its window, and no more"


def test_stuck_transfer_is_called_back_and_said_to_be_unplaced() -> None:
    pair, outlet = with_hand_outlet()
    key = pair.key()
    pair.open(key, 2, expect=False)
    grant(pair, key, 2)
    assert len(outlet.posts) == 1
    pass_time(pair, STUCK_S - 0.1)
    assert not outlet.cancelled
    assert not pair.sender.take_events()
    pass_time(pair, 0.2)
    assert outlet.cancelled == [1]
    assert pair.sender.take_events() == [Unplaced(key, "stuck")]
    pair.to_receiver()
    outlet.complete(ok=False)
    pair.sender.poll(pair.now)
    assert kinds(pair.to_receiver()) == ["drained", "reserve"], "proof first; then it asks again"


def test_pages_of_a_stuck_send_stay_pinned_until_it_is_proven_over() -> None:
    pair, outlet = with_hand_outlet()
    key = pair.key()
    pair.open(key, 2, expect=False)
    grant(pair, key, 2)
    pass_time(pair, STUCK_S + 0.1)
    pair.to_receiver()
    pair.sender.abandon(key, "cancelled", pair.now)
    pass_time(pair, 60.0)
    assert pair.p_pages.counts().pinned == 2, "it may be read still"
    assert "drained" not in kinds(pair.to_receiver())
    outlet.complete(ok=False)
    pair.sender.poll(pair.now)
    assert pair.p_pages.counts().free == 8


def test_receiver_that_takes_a_little_at_a_time_is_not_stuck() -> None:
    config = SenderConfig(window_bytes=2 * PAGE_BYTES, post_bytes=PAGE_BYTES)
    pair, outlet = with_hand_outlet(config)
    key = pair.key()
    pair.open(key, 6, expect=False)
    grant(pair, key, 6)
    for _ in range(6):
        pass_time(pair, STUCK_S - 0.2)
        outlet.complete()
    pass_time(pair, 0.1)
    assert not outlet.cancelled
    assert not pair.sender.take_events()


def test_post_that_moves_a_little_at_a_time_is_not_stuck_until_it_moves_no_more() -> None:
    pair, outlet = with_hand_outlet()
    key = pair.key()
    pair.open(key, 2, expect=False)
    grant(pair, key, 2)
    for _ in range(6):  # a link of a few Mbit/s
        pass_time(pair, STUCK_S - 0.2)
        outlet.n_moved += 1000
    pass_time(pair, STUCK_S - 0.2)
    assert not outlet.cancelled
    pass_time(pair, 0.4)
    assert outlet.cancelled == [1]


def test_pause_between_chunks_is_not_taken_for_being_stuck() -> None:
    pair, outlet = with_hand_outlet()
    key = pair.key()
    pair.sender.open(key, n_tokens=32, prefix_hashes=[], priority=0, now=pair.now)
    grant(pair, key, 2)
    pages = pair.p_pages.try_take(2)
    assert pages is not None
    for i, page in enumerate(pages):
        pass_time(pair, 3 * STUCK_S)  # the prompt is being computed
        pair.sender.offer(key, i, [page], pair.now)
        pass_time(pair, 0.1)
        assert not outlet.cancelled
        outlet.complete()


def test_pages_that_are_computed_for_long_are_not_stuck_and_are_once_they_are_there() -> None:
    pair, outlet = with_hand_outlet()
    key = pair.key()
    pair.sender.open(key, n_tokens=32, prefix_hashes=[], priority=0, now=pair.now)
    grant(pair, key, 2)
    pages = pair.p_pages.try_take(2)
    assert pages is not None
    pair.sender.offer(key, 0, pages, pair.now, after=object())
    assert len(outlet.posts) == 1
    pass_time(pair, 3 * STUCK_S)
    pair.sender.computed(key, 1, pair.now)  # the send is of both
    pass_time(pair, 3 * STUCK_S)
    assert not outlet.cancelled
    pair.sender.computed(key, 2, pair.now)
    pass_time(pair, STUCK_S - 0.1)
    assert not outlet.cancelled
    pass_time(pair, 0.2)
    assert outlet.cancelled == [1]


@pytest.mark.parametrize("frees_late", [False, True])
def test_stuck_transfer_goes_to_another_receiver_with_the_same_pages(frees_late: bool) -> None:
    """`frees_late`: the stuck outlet takes its time with giving the pages back."""
    pair, outlet = with_hand_outlet()
    stuck = Key("r", 1, P_EPOCH, OTHER)
    pair.sender.forget_peer(D_EPOCH)
    pair.sender.attach_peer(OTHER, outlet, pair.now)
    pair.attach()
    pair.open(stuck, 3, expect=False)
    grant(pair, stuck, 3)
    pass_time(pair, STUCK_S + 0.1, OTHER)
    events: list[Any] = pair.sender.take_events()
    assert events == [Unplaced(stuck, "stuck")]
    moved = pair.key(attempt=2)
    pair.receiver.expect(moved, n_tokens=48, now=pair.now)
    assert pair.sender.retarget(stuck, moved, pair.now)
    if not frees_late:
        outlet.complete(ok=False)
    pair.run(0.3)
    assert [type(event) for event in pair.d_events] == [Landed]
    pair.commit_and_release(moved)
    pair.run(0.3)
    assert Committed(moved, 3, 3 * PAGE_BYTES) in pair.p_events
    assert (Released(stuck) in pair.p_events) is not frees_late
    if frees_late:
        outlet.complete(ok=False)
        pair.run(0.1)
    assert Released(stuck) in pair.p_events
    pair.assert_empty()


def test_transfer_that_is_stuck_again_and_again_fails_within_bounds() -> None:
    pair, outlet = with_hand_outlet()
    key = pair.key()
    pair.open(key, 1, expect=False)
    config = SenderConfig()
    for generation in range(1, config.max_regrants + 2):
        grant(pair, key, 1, generation)
        pass_time(pair, STUCK_S + 0.1)
        outlet.complete(ok=False)
        pair.sender.poll(pair.now)
    assert Failed(key, "regrants") in pair.sender.take_events()
    assert pair.p_pages.counts().free == 8
