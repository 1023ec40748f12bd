"""Silence, death, spoilt bytes, full pools: suspicion acts at once, pages wait for proof."""

from __future__ import annotations

import pytest

from tests.kvtransfer.pair import (
    D_EPOCH,
    LEASE,
    P_EPOCH,
    PAGE_BYTES,
    PAGE_TOKENS,
    HandOutlet,
    Pair,
    kinds,
)
from twolane.kvtransfer import reasons
from twolane.kvtransfer.config import LeaseConfig, ReceiverConfig, SenderConfig
from twolane.kvtransfer.events import Dead, Failed, Landed, Released, Verdict
from twolane.kvtransfer.key import Key
from twolane.kvtransfer.testing.memory import Faults
from twolane.v1 import transfer_pb2

HASHES = [b"one", b"two", b"three", b"four"]


def landed_of(pair: Pair) -> list[Landed]:
    return [event for event in pair.d_events if isinstance(event, Landed)]


def test_silent_receiver_is_given_up_after_one_lease_and_pages_are_held_until_then() -> None:
    pair = Pair()
    key = pair.key()
    pair.open(key, 2)
    pair.sender.detach_peer(D_EPOCH, pair.now)
    pair.pass_time(LEASE.lease_s - 0.5)
    assert pair.p_pages.counts().pinned == 2
    pair.pass_time(1.0)
    assert pair.sender.take_events() == [Failed(key, reasons.LEASE), Released(key)]
    assert pair.p_pages.counts().free == 8


def test_silent_sender_is_dead_after_one_lease_but_its_pages_are_not_free() -> None:
    pair = Pair(sender_writes=True)
    key = pair.key()
    pair.open(key, 2)
    pair.tell_receiver(*pair.to_receiver())
    pair.pass_time(LEASE.lease_s + 0.5)
    assert pair.receiver.take_events() == [Dead(key, reasons.LEASE)]
    assert pair.d_pages.counts().quarantined == 2
    pair.receiver.peer_gone(P_EPOCH, pair.now)
    assert pair.d_pages.counts().free == 8


def test_link_that_breaks_and_returns_goes_on_where_it_was() -> None:
    pair = Pair()
    pair.open(pair.key(), 4)
    pair.tell_receiver(*pair.to_receiver())
    pair.to_sender()  # Reserved is lost with the link
    pair.sender.detach_peer(D_EPOCH, pair.now)
    pair.receiver.detach_peer(P_EPOCH, pair.now)
    pair.pass_time(0.5)
    pair.attach()
    pair.run(1.0)
    assert len(landed_of(pair)) == 1


def test_sender_that_does_not_come_back_is_judged() -> None:
    pair = Pair()
    key = pair.key()
    pair.open(key, 2)
    pair.tell_receiver(*pair.to_receiver())
    pair.receiver.detach_peer(P_EPOCH, pair.now)
    pair.pass_time(1.2)
    assert pair.receiver.take_events() == [Dead(key, reasons.JUDGED)]
    assert pair.d_pages.counts().free == 8, "the landing's word is proof where it is the writer"


def test_verdict_is_landed_for_what_is_here_and_dead_for_the_rest() -> None:
    pair = Pair()
    whole, committed, waiting = pair.key("whole"), pair.key("committed"), pair.key("waiting")
    pair.open(whole, 2)
    pair.open(committed, 2)
    pair.run()
    pair.commit(committed)
    pair.receiver.expect(waiting, n_tokens=3, now=pair.now)
    verdicts = pair.receiver.judge(P_EPOCH, pair.now)
    assert sorted(verdicts, key=lambda v: v.key) == [
        Verdict(committed, True),
        Verdict(waiting, False),
        Verdict(whole, True),
    ]
    assert not pair.receiver.expect(waiting, n_tokens=3, now=pair.now), "dead for good"


def test_bytes_under_way_when_the_sender_dies_may_still_land() -> None:
    pair = Pair(faults=Faults(delay_s=(0.05, 0.05)))
    key = pair.key()
    pair.open(key, 2)
    pair.tell_receiver(*pair.to_receiver())
    pair.tell_sender(*pair.to_sender())
    pair.pass_time(0.05)  # read, and on their way
    pair.tell_receiver(*pair.to_receiver())
    pair.outlet.kill()
    pair.receiver.peer_gone(P_EPOCH, pair.now)
    assert pair.receiver.judge(P_EPOCH, pair.now) == [], "undecided"
    pair.pass_time(0.1)
    assert [type(event) for event in pair.receiver.take_events()] == [Landed]


def failed_attempt(pair: Pair) -> tuple[list[int], transfer_pb2.Reserved]:
    """Both sides gave it up while its bytes are being written. Its source pages, its grant."""
    key = pair.key(attempt=1)
    source = pair.open(key, 4, prefix_hashes=HASHES)
    pair.tell_receiver(*pair.to_receiver())
    (answer,) = pair.to_sender()
    pair.tell_sender(answer)
    pair.pass_time(0.05)
    assert pair.sender.pinned_pages(), "nothing is under way"
    pair.receiver.judge(P_EPOCH, pair.now)
    pair.receiver.cancel(key, pair.now)
    pair.sender.abandon(key, reasons.CANCELLED, pair.now)
    pair.to_receiver()
    pair.to_sender()
    return source, answer.reserved


def test_a_retry_is_a_new_attempt_with_new_pages() -> None:
    pair = Pair(n_pages=12, sender_writes=True, faults=Faults(delay_s=(0.5, 0.5)))
    first_source, first = failed_attempt(pair)
    second = pair.key(attempt=2)
    source = pair.open(second, 4, prefix_hashes=HASHES)
    pair.tell_receiver(*pair.to_receiver())
    answers = pair.to_sender()
    (reserved,) = (answer.reserved for answer in answers if answer.HasField("reserved"))
    assert Key.of(reserved.ticket.key) == second
    assert reserved.ticket.generation > first.ticket.generation
    assert reserved.skip_pages == 0, "pages of a failed attempt were taken for proven"
    assert not {*reserved.pages} & {*first.pages}
    assert not {*source} & {*first_source}
    pair.tell_sender(*answers)
    pair.run(3.0)
    (landed,) = landed_of(pair)
    assert (landed.key, landed.pages) == (second, tuple(reserved.pages))
    for i, page in enumerate(landed.pages):
        assert (pair.d_pool[page] == pair.content(second, i)).all()
    pair.commit_and_release(second)
    pair.run(1.0)
    pair.assert_empty()


def test_a_retry_for_which_there_are_no_new_pages_waits_for_proof() -> None:
    pair = Pair(n_pages=12, sender_writes=True, faults=Faults(delay_s=(0.5, 0.5)))
    others = pair.d_pages.try_take(5)
    assert others is not None
    _, first = failed_attempt(pair)
    pair.open(pair.key(attempt=2), 4)
    pair.tell_receiver(*pair.to_receiver())
    assert pair.d_pages.counts().quarantined == 4
    answers = pair.to_sender()
    assert "reserved" not in kinds(answers)
    pair.tell_sender(*answers)
    pair.run(3.0)
    (landed,) = landed_of(pair)
    assert {*landed.pages} & {*first.pages}, "proven free, they are as good as any"


def test_an_attempt_that_failed_does_not_come_back() -> None:
    pair = Pair(n_pages=12, sender_writes=True)
    failed_attempt(pair)
    key = pair.key(attempt=1)
    assert not pair.receiver.expect(key, n_tokens=PAGE_TOKENS, now=pair.now)
    reserve = transfer_pb2.Reserve(key=key.proto(), n_tokens=PAGE_TOKENS)
    pair.tell_receiver(transfer_pb2.ConnectRequest(reserve=reserve))
    assert kinds(pair.to_sender()) == ["refused"]


def test_full_quarantine_takes_no_reservation_and_names_whom_to_fence() -> None:
    pair = Pair(sender_writes=True, receiver=ReceiverConfig(quarantine_cap_pages=2))
    bad, good = pair.key("bad"), pair.key("good")
    pair.open(bad, 2)
    pair.tell_receiver(*pair.to_receiver())
    pair.to_sender()
    assert pair.receiver.fence_wanted(pair.now) == []
    pair.receiver.cancel(bad, pair.now)
    pair.to_sender()
    assert pair.receiver.fence_wanted(pair.now) == [P_EPOCH]
    pair.receiver.expect(good, n_tokens=PAGE_TOKENS, now=pair.now)
    reserve = transfer_pb2.Reserve(key=good.proto(), n_tokens=PAGE_TOKENS)
    pair.tell_receiver(transfer_pb2.ConnectRequest(reserve=reserve))
    assert kinds(pair.to_sender()) == ["busy"]
    pair.receiver.peer_gone(P_EPOCH, pair.now)
    assert pair.receiver.fence_wanted(pair.now) == []
    assert pair.d_pages.counts().free == 8


def test_old_quarantine_asks_for_a_fence_below_the_cap() -> None:
    config = ReceiverConfig(fence_after_s=20.0)
    pair = Pair(n_pages=64, sender_writes=True, receiver=config)
    pair.open(pair.key(), 1)
    pair.tell_receiver(*pair.to_receiver())
    pair.receiver.cancel(pair.key(), pair.now)
    assert pair.receiver.fence_wanted(19.0) == []
    assert pair.receiver.fence_wanted(21.0) == [P_EPOCH]


def test_one_heartbeat_renews_every_lease_of_a_peer() -> None:
    pair = Pair(n_pages=16)
    hold = pair.d_pages.try_take(16)
    assert hold is not None
    for i in range(3):
        pair.open(pair.key(f"r{i}"), 1)
    pair.tell_receiver(*pair.to_receiver())
    pair.pass_time(1.0)
    renews = [m for m in pair.to_receiver() if m.WhichOneof("message") == "renew"]
    assert [len(m.renew.keys) for m in renews] == [3]


def test_window_bounds_what_one_receiver_may_have_under_way() -> None:
    config = SenderConfig(window_bytes=3 * PAGE_BYTES, post_bytes=2 * PAGE_BYTES)
    pair = Pair(sender=config)
    outlet, other = HandOutlet(), HandOutlet()
    pair.sender.detach_peer(D_EPOCH, pair.now)
    pair.sender.forget_peer(D_EPOCH)
    pair.sender.attach_peer(D_EPOCH, outlet, pair.now)
    pair.sender.attach_peer(7, other, pair.now)
    for key in (pair.key(), Key("s", 1, P_EPOCH, 7)):
        pair.open(key, 4, expect=False)
        reserved = transfer_pb2.Reserved(ticket=key.ticket(1), pages=[0, 1, 2, 3])
        message = transfer_pb2.ConnectResponse(reserved=reserved)
        pair.sender.on_message(key.receiver_epoch, message, pair.now)
    assert [plan.n_pages for _, _, plan in outlet.posts] == [2, 1]
    assert [plan.n_pages for _, _, plan in other.posts] == [2, 1], "a slow peer is alone"
    outlet.complete()
    pair.sender.poll(pair.now)
    assert [plan.n_pages for _, _, plan in outlet.posts] == [1, 1]


def test_holding_cap_shows_as_full_until_pages_are_released() -> None:
    pair = Pair(sender=SenderConfig(holding_cap_pages=4))
    pair.open(pair.key("a"), 3)
    was_full = [pair.sender.is_full]
    pair.open(pair.key("b"), 1)
    was_full.append(pair.sender.is_full)
    pair.run()
    pair.commit(pair.key("a"))
    pair.run()
    was_full.append(pair.sender.is_full)
    assert pair.sender.held_pages == 1
    assert was_full == [False, True, False]


def test_transfer_that_is_spoilt_again_and_again_ends_in_failure() -> None:
    pair = Pair(faults=Faults(delay_s=(0.001, 0.001), corrupt=1.0))
    key = pair.key()
    pair.open(key, 1)
    pair.run(3.0)
    assert pair.d_events == [Dead(key, reasons.CORRUPT)]
    assert Released(key) in pair.p_events
    pair.assert_empty()


@pytest.mark.parametrize("field", ["fixed", "empty"])
def test_message_without_content_is_counted_and_ignored(field: str) -> None:
    pair = Pair()
    if field == "empty":
        pair.tell_receiver(transfer_pb2.ConnectRequest())
        pair.tell_sender(transfer_pb2.ConnectResponse())
    else:
        pair.tell_receiver(transfer_pb2.ConnectRequest(hello=transfer_pb2.SenderHello()))
        pair.tell_sender(transfer_pb2.ConnectResponse(hello=transfer_pb2.ReceiverHello()))
    assert pair.receiver.dropped == {reasons.MALFORMED: 1}
    assert pair.sender.dropped == {reasons.MALFORMED: 1}


def test_lease_config_refuses_a_heartbeat_longer_than_the_lease() -> None:
    with pytest.raises(AssertionError):
        LeaseConfig(lease_s=1.0, heartbeat_s=2.0)
