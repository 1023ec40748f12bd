"""Words that come late, twice, about another grant, or that make no sense: each alone."""

from __future__ import annotations

from typing import Any

import numpy as np
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
from twolane.kvtransfer.config import ReceiverConfig, SenderConfig
from twolane.kvtransfer.events import Dead, Failed, Landed, Verdict
from twolane.kvtransfer.key import Key
from twolane.kvtransfer.testing.memory import Faults
from twolane.kvtransfer.transports.common.claims import LandingTable
from twolane.v1 import transfer_pb2


def to_sender(pair: Pair, **body: Any) -> None:
    pair.tell_sender(transfer_pb2.ConnectResponse(**body))


def to_receiver(pair: Pair, **body: Any) -> None:
    pair.tell_receiver(transfer_pb2.ConnectRequest(**body))


def sending(n_pages: int = 2) -> tuple[Pair, Key, HandOutlet]:
    """A sender whose row was just offered, and its outlet; the receiver is the test's."""
    pair, outlet = Pair(), HandOutlet()
    pair.send_by(outlet)
    key = pair.key()
    pair.open(key, n_pages)
    pair.to_receiver()
    return pair, key, outlet


def reserve(pair: Pair, key: Key, generation: int, **fields: Any) -> None:
    to_sender(pair, reserved=transfer_pb2.Reserved(ticket=key.ticket(generation), **fields))


# -- to a sender --------------------------------------------------------------------------------


def test_reserved_under_another_ticket_stops_the_sends_to_the_pages_of_the_first() -> None:
    pair, key, outlet = sending()
    reserve(pair, key, 1, pages=[4, 5])
    reserve(pair, key, 2, pages=[6, 7])
    assert outlet.cancelled == [1]
    while outlet.posts:
        outlet.complete(ok=False)
    pair.sender.poll(pair.now)
    assert kinds(pair.to_receiver()) == ["drained", "reserve"]


@pytest.mark.parametrize(
    ("skip_pages", "pages"), [(0, [4]), (0, [4, 5, 6]), (1, [4, 5]), (-1, [4, 5, 6])]
)
def test_reserved_of_other_pages_than_the_row_has_fails_the_transfer(
    skip_pages: int, pages: list[int]
) -> None:
    pair, key, outlet = sending()
    reserve(pair, key, 1, skip_pages=skip_pages, pages=pages)
    assert pair.sender.take_events()[0] == Failed(key, reasons.MALFORMED)
    assert not outlet.posts


def test_receiver_that_has_forgotten_a_grant_is_asked_again() -> None:
    pair, key, outlet = sending()
    reserve(pair, key, 1, pages=[4, 5])
    refused = transfer_pb2.Refused(key=key.proto(), reason=reasons.UNKNOWN)
    to_sender(pair, refused=refused)
    assert outlet.cancelled == [1]
    while outlet.posts:
        outlet.complete(ok=False)
    pair.sender.poll(pair.now)
    assert kinds(pair.to_receiver()) == ["drained", "reserve"]


def test_answer_to_a_renew_that_was_on_its_way_is_none_to_the_abandon_behind_it() -> None:
    pair, key, _ = sending()
    pair.sender.abandon(key, reasons.CANCELLED, pair.now)
    pair.pass_time(0.05)
    assert kinds(pair.to_receiver()) == ["abandon"]  # it gets lost
    to_sender(pair, refused=transfer_pb2.Refused(key=key.proto(), reason=reasons.UNKNOWN))
    pair.pass_time(2 * LEASE.retry_first_s)
    assert kinds(pair.to_receiver()) == ["abandon"]
    to_sender(pair, refused=transfer_pb2.Refused(key=key.proto(), reason=reasons.ABANDONED))
    pair.pass_time(LEASE.lease_s / 2)
    assert not pair.to_receiver()


# -- to a receiver ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("first_page", "n_pages", "n_checksums"),
    [(-1, 1, 1), (0, 0, 0), (1, 2, 2), (2, 1, 1), (0, 2, 1), (0, 1, 2), (0, 2, 0)],
)
def test_chunk_that_makes_no_sense_announces_nothing(
    first_page: int, n_pages: int, n_checksums: int
) -> None:
    pair = Pair()
    key = pair.granted(2)
    chunk = transfer_pb2.Chunk(
        ticket=key.ticket(1),
        first_page=first_page,
        n_pages=n_pages,
        checksums=[9] * n_checksums,
    )
    to_receiver(pair, chunk=chunk)
    assert pair.receiver.dropped == {reasons.MALFORMED: 1}
    pair.run()
    assert [type(event) for event in pair.d_events] == [Landed]


def test_nothing_is_owed_to_who_asks_after_a_grant_that_is_revoked() -> None:
    table = LandingTable(checksums=True)
    table.grant(P_EPOCH, 1, np.array([3, 4], dtype=np.int64))
    table.revoke(1)
    assert table.check(1, 0, 2) == []
    assert table.landed(1, 0, 2, None) == []


def test_revoke_is_said_at_once_to_a_sender_that_is_back() -> None:
    pair = Pair(sender_writes=True)
    pair.receiver.cancel(pair.granted(3), pair.now)
    pair.pass_time(2 * LEASE.lease_s)
    pair.to_sender()
    while not pair.to_sender():
        pair.pass_time(0.05)  # up to where it was just repeated
    pair.receiver.detach_peer(P_EPOCH, pair.now)
    pair.receiver.attach_peer(P_EPOCH + 1, pair.landing, pair.now)
    pair.receiver.tick(pair.now)
    assert not pair.to_sender(), "another sender is back"
    pair.attach()
    pair.receiver.tick(pair.now)
    assert kinds(pair.to_sender()) == ["revoke"]


def test_row_that_needs_no_page_of_a_sender_ends_once_when_that_is_gone() -> None:
    pair = Pair(sender_writes=True)
    hashes = [b"1" * 32, b"2" * 32]
    pair.open(pair.key("first"), 2, prefix_hashes=hashes)
    pair.run()
    pair.commit_and_release(pair.key("first"))
    pair.open(pair.key("second"), 2, prefix_hashes=hashes)
    pair.tell_receiver(*pair.to_receiver())
    assert [m.reserved.skip_pages for m in pair.to_sender() if m.HasField("reserved")] == [2]
    pair.receiver.peer_gone(P_EPOCH, pair.now)
    assert pair.receiver.take_events() == [Dead(pair.key("second"), reasons.JUDGED)]
    assert pair.d_pages.counts().quarantined == 0


def test_row_that_landed_at_the_second_try_outlives_its_senders_silence() -> None:
    pair = Pair(faults=Faults(delay_s=(0.001, 0.001), corrupt=1.0))
    key = pair.key()
    pair.open(key, 2)
    pair.run(0.02)
    pair.fabric.faults = Faults(delay_s=(0.001, 0.001))
    pair.run(1.0)
    assert [type(event) for event in pair.d_events] == [Landed]
    pair.receiver.detach_peer(P_EPOCH, pair.now)
    pair.pass_time(2 * LEASE.lease_s)
    assert pair.receiver.try_commit(key, pair.now) is not None


def test_queued_reservation_of_a_silent_sender_is_given_up_after_one_lease() -> None:
    pair = Pair(may_grant=lambda key, n: False)
    key = pair.granted(2)
    assert pair.receiver.n_queued == 1
    pair.pass_time(LEASE.lease_s + 0.1)
    assert pair.receiver.take_events() == [Dead(key, reasons.LEASE)]


def test_done_is_not_said_while_pages_wait_for_the_link_to_come_back() -> None:
    config = SenderConfig(window_bytes=PAGE_BYTES, post_bytes=PAGE_BYTES)
    pair, outlet = Pair(sender=config), HandOutlet()
    pair.send_by(outlet)
    key = pair.key()
    pair.open(key, 2)
    reserve(pair, key, 1, pages=[4, 5])
    pair.sender.detach_peer(D_EPOCH, pair.now)
    outlet.complete()
    pair.sender.poll(pair.now)
    pair.sender.attach_peer(D_EPOCH, outlet, pair.now)
    assert len(outlet.posts) == 1, "the second page"


@pytest.mark.parametrize(("n_tokens", "n_hashes"), [(0, 0), (-1, 0), (PAGE_TOKENS, 2)])
def test_reserve_of_no_row_at_all_gets_no_page(n_tokens: int, n_hashes: int) -> None:
    pair, hashes = Pair(), [b"1" * 32] * n_hashes
    reserve = transfer_pb2.Reserve(key=pair.key().proto(), n_tokens=n_tokens, prefix_hashes=hashes)
    to_receiver(pair, reserve=reserve)
    assert pair.receiver.dropped == {reasons.MALFORMED: 1}
    assert not pair.receiver.keys()


def test_repeated_reserve_gets_its_grant_though_the_queue_is_full() -> None:
    has_room = [True]
    config = ReceiverConfig(queue_limit=1)
    pair = Pair(receiver=config, may_grant=lambda key, n: has_room[0])
    key = pair.key("a")
    pair.open(key, 1)
    first = pair.to_receiver()
    pair.tell_receiver(*first)
    has_room[0] = False
    pair.open(pair.key("b"), 1)
    pair.tell_receiver(*pair.to_receiver())
    assert pair.receiver.n_queued == 1
    pair.to_sender()
    pair.tell_receiver(*first)
    assert kinds(pair.to_sender()) == ["reserved"]


def test_verdicts_on_one_sender_are_not_about_the_rows_of_another() -> None:
    pair = Pair()
    pair.open(pair.key(), 2)
    pair.run()
    pair.commit(pair.key())
    assert pair.receiver.judge(P_EPOCH, pair.now) == [Verdict(pair.key(), True)]
    assert pair.receiver.judge(P_EPOCH + 1, pair.now) == []


def test_reservation_that_is_known_to_be_queued_is_not_asked_for_again_soon() -> None:
    pair, key, _ = sending()
    to_sender(pair, renewed=transfer_pb2.Renewed(keys=[key.proto()]))
    pair.pass_time(1.5 * LEASE.heartbeat_s)
    assert "reserve" not in kinds(pair.to_receiver())
    pair.pass_time(LEASE.heartbeat_s)
    assert "reserve" in kinds(pair.to_receiver())


def test_receiver_is_not_heard_about_a_row_that_goes_to_another() -> None:
    pair, key, outlet = sending()
    reserved = transfer_pb2.Reserved(ticket=key.ticket(1), pages=[4, 5])
    pair.sender.on_message(D_EPOCH + 1, transfer_pb2.ConnectResponse(reserved=reserved), pair.now)
    assert pair.sender.dropped == {reasons.EPOCH: 1}
    assert not outlet.posts


def test_row_does_not_go_on_to_a_receiver_that_nothing_can_be_sent_to() -> None:
    pair, key, _ = sending()
    pair.sender.fail_peer(D_EPOCH + 1, "no transport", pair.now)
    assert not pair.sender.retarget(key, Key("r", 2, P_EPOCH, D_EPOCH + 1), pair.now)
    assert pair.sender.keys() == [key], "where it was"
