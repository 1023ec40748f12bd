"""The conversation of sender and receiver, one habit a test. Bytes are real, time is given."""

from __future__ import annotations

import itertools

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
from twolane.engine.step import Page
from twolane.kvtransfer import reasons
from twolane.kvtransfer.config import ReceiverConfig
from twolane.kvtransfer.events import Abandoned, Committed, Dead, Failed, Landed, Released, Unplaced
from twolane.kvtransfer.key import Key
from twolane.kvtransfer.testing.memory import Faults
from twolane.v1 import transfer_pb2


def landed_of(pair: Pair) -> list[Landed]:
    return [event for event in pair.d_events if isinstance(event, Landed)]


def test_reserve_is_repeated_with_growing_pauses_until_it_is_answered() -> None:
    pair = Pair()
    pair.open(pair.key(), 1)
    times = []
    while pair.now < 3.0:
        pair.pass_time(0.05)
        times += [pair.now] * kinds(pair.to_receiver()).count("reserve")
    gaps = [b - a for a, b in itertools.pairwise(times)]
    assert gaps == sorted(gaps)
    assert gaps[-1] == pytest.approx(LEASE.retry_most_s, abs=0.06)
    pair.sender.tick(pair.now + 1)
    pair.tell_receiver(*pair.to_receiver())
    pair.tell_sender(*pair.to_sender())
    pair.pass_time(2.0)
    assert "reserve" not in kinds(pair.to_receiver())


def test_repeated_reserve_gets_the_same_grant() -> None:
    pair = Pair()
    pair.open(pair.key(), 3)
    reserve = pair.to_receiver()
    pair.tell_receiver(*reserve, *reserve)
    first, second = pair.to_sender()
    assert first == second
    assert pair.d_pages.counts().used == 3


def test_reserve_that_overtakes_its_assign_is_parked_and_granted_when_that_comes() -> None:
    pair = Pair()
    key = pair.key()
    pair.open(key, 2, expect=False)
    pair.run(1.0)
    assert pair.receiver.n_queued == 1
    assert pair.d_pages.counts().used == 0
    pair.receiver.expect(key, n_tokens=2 * PAGE_TOKENS, now=pair.now)
    pair.run(1.5)
    assert len(landed_of(pair)) == 1


def test_reserve_without_an_assign_is_refused_after_one_lease() -> None:
    pair = Pair()
    key = pair.key()
    pair.open(key, 2, expect=False)
    pair.run(LEASE.lease_s + 2.0)
    assert Failed(key, reasons.UNASSIGNED) in pair.p_events
    assert Released(key) in pair.p_events
    assert not pair.d_events
    pair.assert_empty()


def test_assign_and_reserve_that_disagree_on_the_length_end_the_transfer() -> None:
    pair = Pair()
    key = pair.key()
    pair.receiver.expect(key, n_tokens=5, now=pair.now)
    pair.open(key, 2, expect=False)
    pair.run()
    assert pair.d_events == [Dead(key, reasons.MISMATCH)]
    assert pair.p_events == [Failed(key, reasons.MISMATCH), Released(key)]


def test_row_larger_than_the_pool_is_refused_at_once() -> None:
    pair = Pair()
    reserve = transfer_pb2.Reserve(key=pair.key().proto(), n_tokens=9 * PAGE_TOKENS)
    pair.tell_receiver(transfer_pb2.ConnectRequest(reserve=reserve))
    (answer,) = pair.to_sender()
    assert answer.refused.reason == reasons.TOO_LARGE


def test_grants_go_by_priority_then_age_and_nobody_overtakes_the_head() -> None:
    pair = Pair(n_pages=16)
    hold = pair.d_pages.try_take(16)
    assert hold is not None
    names = {"old": 0, "young": 0, "urgent": 5, "low": -3}
    for name, priority in names.items():
        pair.open(pair.key(name), 4, priority=priority)
    pair.run()
    assert pair.receiver.n_queued == 4
    order = []
    for i in range(4):
        pair.d_pages.release(hold[4 * i : 4 * i + 4])
        pair.run(0.3)
        order += [event.key.submission_id for event in landed_of(pair)[i:]]
    assert order == ["urgent", "old", "young", "low"]


def test_full_queue_says_busy_and_the_transfer_is_placed_when_there_is_room() -> None:
    pair = Pair(receiver=ReceiverConfig(queue_limit=1))
    hold = pair.d_pages.try_take(8)
    assert hold is not None
    pair.open(pair.key("a"), 2)
    pair.open(pair.key("b"), 2)
    pair.run(3.0)
    assert pair.p_events == [Unplaced(pair.key("b"), "busy")], "told once"
    pair.d_pages.release(hold)
    pair.run(3.0)
    assert {event.key.submission_id for event in landed_of(pair)} == {"a", "b"}


def test_policy_keeps_pages_back() -> None:
    room = [False]
    pair = Pair(may_grant=lambda key, n: room[0])
    pair.open(pair.key(), 2)
    pair.run(2 * LEASE.lease_s)
    assert pair.receiver.n_queued == 1, "waiting is not silence: the lease is renewed"
    room[0] = True
    pair.run()
    assert len(landed_of(pair)) == 1


def test_pages_of_the_prefix_cache_are_not_sent_and_cannot_be_evicted() -> None:
    pair = Pair()
    hashes = [b"one", b"two", b"three"]
    first = pair.key("first")
    pair.open(first, 4, prefix_hashes=hashes)
    pair.run()
    pair.commit_and_release(first)
    assert pair.d_pages.counts().cached == 3
    pair.run()
    second = pair.key("second")
    pair.open(second, 4, prefix_hashes=[*hashes[:2], b"other"])
    pair.tell_receiver(*pair.to_receiver())
    assert pair.d_pages.counts().used == 4
    assert pair.d_pages.try_take(5) is None, "the promised pages are held"
    pair.run()
    landed = landed_of(pair)[-1]
    assert landed.skip_pages == 2
    assert len(landed.pages) == 4
    pair.commit_and_release(second)
    pair.run()
    assert Committed(second, 2, 2 * PAGE_BYTES) in pair.p_events
    pair.assert_empty()


def test_row_that_is_cached_whole_moves_no_page() -> None:
    pair = Pair()
    for name in ("first", "second"):
        key = pair.key(name)
        pair.open(key, 2, prefix_hashes=[b"one", b"two"])
        pair.run()
        assert landed_of(pair)[-1].key == key
        pair.commit_and_release(key)
    pair.run()
    assert Committed(pair.key("second"), 0, 0) in pair.p_events
    pair.assert_empty()


def test_lost_chunks_and_done_are_said_again_until_commit() -> None:
    pair = Pair()
    key = pair.key()
    pair.open(key, 2)
    pair.tell_receiver(*pair.to_receiver())
    pair.tell_sender(*pair.to_sender())
    pair.pass_time(0.05)
    assert kinds(pair.to_receiver())[:2] == ["chunk", "done"]  # and these are lost
    pair.run(1.5)
    assert len(landed_of(pair)) == 1
    pair.commit(key)
    assert kinds(pair.to_sender()) == ["commit"]  # lost too
    pair.run(1.5)
    assert [type(event) for event in pair.p_events] == [Committed, Released]


def test_lost_reserved_is_said_again_though_the_reservation_is_known() -> None:
    pair = Pair()
    pair.open(pair.key(), 2)
    pair.tell_receiver(*pair.to_receiver())
    assert kinds(pair.to_sender()) == ["reserved"]
    pair.run(3.0)
    assert len(landed_of(pair)) == 1


def test_bytes_that_got_lost_are_sent_again_under_a_new_ticket() -> None:
    pair = Pair(faults=Faults(delay_s=(0.001, 0.001), drop=1.0))
    pair.open(pair.key(), 2)
    pair.run(1.0)
    pair.fabric.faults = Faults(delay_s=(0.001, 0.001))
    pair.run(5.0)
    assert len(landed_of(pair)) == 1
    assert pair.d_pages.counts().used == 2


def test_bytes_that_never_come_end_their_transfer_at_the_third_try() -> None:
    """By another way its row may be decoded long before a fourth."""
    pair = Pair(faults=Faults(delay_s=(0.001, 0.001), drop=1.0))
    key = pair.key()
    pair.open(key, 2)
    config = ReceiverConfig()
    tries = config.max_late + 1
    pair.run(tries * config.landing_timeout_s - 1.0)
    assert not pair.d_events
    pair.run(2.0)
    assert pair.d_events == [Dead(key, "incomplete")]
    assert pair.d_pages.counts().used == 0


def test_transport_that_fails_a_post_makes_the_sender_begin_again() -> None:
    pair = Pair()
    outlet = HandOutlet()
    pair.sender.detach_peer(D_EPOCH, pair.now)
    pair.sender.forget_peer(D_EPOCH)
    pair.sender.attach_peer(D_EPOCH, outlet, pair.now)
    pair.open(pair.key(), 2)
    pair.tell_receiver(*pair.to_receiver())
    pair.tell_sender(*pair.to_sender())
    outlet.complete(ok=False)
    pair.sender.poll(pair.now)
    drained_and_reserve = pair.to_receiver()
    assert kinds(drained_and_reserve) == ["drained", "reserve"]
    pair.tell_receiver(*drained_and_reserve)
    (_, reserved) = pair.to_sender()
    assert reserved.reserved.ticket.generation == 2


def test_finish_abandon_frees_both_sides_and_is_no_death() -> None:
    pair = Pair()
    key = pair.key()
    pair.open(key, 2)
    pair.tell_receiver(*pair.to_receiver())
    pair.sender.abandon(key, reasons.FINISH, pair.now)
    pair.run(1.0)
    assert pair.d_events == [Abandoned(key, reasons.FINISH)]
    assert pair.p_events == [Released(key)]
    assert pair.sender.is_idle(D_EPOCH), "the receiver's answer ends the repeats"
    pair.assert_empty()


def test_retarget_sends_the_same_pages_to_another_receiver_without_the_role() -> None:
    pair = Pair()
    outlet = HandOutlet()
    other = D_EPOCH + 1
    pair.sender.attach_peer(other, outlet, pair.now)
    key, new = pair.key(), Key("r", 2, P_EPOCH, other)
    source = pair.open(key, 2)
    pair.tell_receiver(*pair.to_receiver())
    pair.sender.detach_peer(D_EPOCH, pair.now)  # it died
    assert pair.sender.retarget(key, new, pair.now)
    assert not pair.sender.retarget(key, Key("r", 3, P_EPOCH, other), pair.now)
    assert pair.sender.take_events() == [Released(key)]
    (reserve,) = pair.to_receiver()
    assert Key.of(reserve.reserve.key) == new
    reserved = transfer_pb2.Reserved(ticket=new.ticket(9), pages=[4, 5])
    pair.sender.on_message(other, transfer_pb2.ConnectResponse(reserved=reserved), pair.now)
    assert outlet.posts[0][2].src.tolist() == source
    assert pair.p_pages.counts().pinned == 2


def test_books_name_every_page_that_is_held_at_every_moment() -> None:
    pair = Pair()
    key = pair.key()

    def audit() -> None:
        pair.sender.check_integrity()
        pair.receiver.check_integrity()
        held, pinned = pair.receiver.held_pages(), pair.sender.pinned_pages()
        for number in range(8):
            assert pair.d_pages.refs_of(Page(number)) == held[number]
        assert pair.d_pages.counts().quarantined == pair.receiver.quarantined_pages
        assert pair.p_pages.counts().pinned == len(pinned)

    assert not pair.sender.is_granted(key)
    pair.open(key, 3, prefix_hashes=[b"one"])
    audit()
    assert not pair.sender.is_granted(key)
    pair.tell_receiver(*pair.to_receiver())
    pair.tell_sender(*pair.to_sender())
    audit()
    assert pair.sender.is_granted(key)
    while not pair.d_events:
        audit()
        pair.run(0.001)
    audit()
    pair.commit_and_release(key)
    audit()
    pair.run()
    audit()
    assert not pair.sender.is_granted(key)
    assert not pair.receiver.held_pages()
    assert not pair.sender.pinned_pages()


def test_receivers_books_that_miss_a_page_are_found_out() -> None:
    pair = Pair()
    pair.open(pair.key(), 2)
    pair.tell_receiver(*pair.to_receiver())
    pair.receiver.check_integrity()
    pair.receiver._ins.clear()
    with pytest.raises(AssertionError, match="grants that no transfer has"):
        pair.receiver.check_integrity()


def test_senders_books_that_miss_a_send_are_found_out() -> None:
    pair = Pair()
    pair.open(pair.key(), 2)
    pair.tell_receiver(*pair.to_receiver())
    pair.tell_sender(*pair.to_sender())
    pair.sender.check_integrity()
    pair.sender._outs.clear()
    with pytest.raises(AssertionError, match="sends of transfers that are over"):
        pair.sender.check_integrity()
