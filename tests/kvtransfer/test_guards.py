"""Each guard of page ownership, alone: take it away and the test of its name fails."""

from __future__ import annotations

import numpy as np
import pytest

from tests.kvtransfer.pair import (
    D_EPOCH,
    FIRST,
    LEASE,
    P_EPOCH,
    PAGE_TOKENS,
    HandOutlet,
    Pair,
    kinds,
)
from twolane.engine.step import Page
from twolane.kvtransfer import reasons
from twolane.kvtransfer.config import ReceiverConfig
from twolane.kvtransfer.events import Abandoned, Committed, Landed, Released
from twolane.kvtransfer.key import Key
from twolane.kvtransfer.testing.memory import Faults
from twolane.kvtransfer.transports.common.claims import LandingTable
from twolane.v1 import transfer_pb2


def test_late_chunk_and_done_of_an_earlier_generation_are_not_believed() -> None:
    pair = Pair(checksums=False)
    key = pair.key()
    pair.open(key, 2)
    pair.tell_receiver(*pair.to_receiver())
    pair.tell_sender(*pair.to_sender())
    pair.pass_time(0.05)
    late = pair.to_receiver()  # Chunk and Done of generation 1, on their way for long
    assert kinds(late)[:2] == ["chunk", "done"]
    ticket = key.ticket(1)
    pair.tell_receiver(transfer_pb2.ConnectRequest(drained=transfer_pb2.Drained(ticket=ticket)))
    reserve = transfer_pb2.Reserve(key=key.proto(), n_tokens=2 * PAGE_TOKENS)
    pair.to_sender()
    pair.tell_receiver(transfer_pb2.ConnectRequest(reserve=reserve))
    granted = pair.to_sender()
    assert granted[0].reserved.ticket.generation == 2
    pair.tell_receiver(*late)
    pair.pass_time(0.05)
    assert not pair.receiver.take_events(), "generation 2 has not landed"
    assert pair.receiver.dropped[reasons.GENERATION] >= 2


def test_bytes_of_an_earlier_generation_do_not_land_in_pages_granted_anew() -> None:
    table = LandingTable(checksums=True)
    pages = np.array([3, 4], dtype=np.int64)
    table.grant(P_EPOCH, 1, pages)
    table.revoke(1)
    table.grant(P_EPOCH, 2, pages)
    assert table.claim(P_EPOCH, 1, 0, 2) is None
    assert table.claim(P_EPOCH, 2, 0, 2) is not None
    assert table.dropped == {reasons.GENERATION: 1}


def test_bytes_of_a_sender_without_the_grant_do_not_land() -> None:
    table = LandingTable(checksums=True)
    table.grant(P_EPOCH, 1, np.array([3, 4], dtype=np.int64))
    assert table.claim(P_EPOCH + 1, 1, 0, 2) is None
    assert table.dropped == {reasons.EPOCH: 1}


@pytest.mark.parametrize(("first", "n"), [(-1, 1), (0, 3), (2, 1), (1, 2), (0, 0), (5, -4)])
def test_bytes_outside_of_the_grant_do_not_land(first: int, n: int) -> None:
    table = LandingTable(checksums=True)
    table.grant(P_EPOCH, 1, np.array([3, 4], dtype=np.int64))
    assert table.claim(P_EPOCH, 1, first, n) is None
    assert table.dropped == {reasons.MALFORMED: 1}


def test_landed_page_is_not_written_again_by_a_repeat() -> None:
    table = LandingTable(checksums=True)
    table.grant(P_EPOCH, 1, np.array([3, 4], dtype=np.int64))
    assert table.claim(P_EPOCH, 1, 0, 1) is not None
    assert table.claim(P_EPOCH, 1, 0, 2) is None
    assert table.dropped == {reasons.DUPLICATE: 1}


def test_receiver_drops_and_counts_messages_of_another_incarnation() -> None:
    pair = Pair()
    for wrong in (Key("r", 1, P_EPOCH, D_EPOCH - 1), Key("r", 1, P_EPOCH - 1, D_EPOCH)):
        reserve = transfer_pb2.Reserve(key=wrong.proto(), n_tokens=PAGE_TOKENS)
        pair.tell_receiver(transfer_pb2.ConnectRequest(reserve=reserve))
    assert pair.receiver.dropped == {reasons.EPOCH: 2}
    assert not pair.receiver.keys()
    assert not pair.to_sender()


def test_sender_drops_and_counts_messages_of_another_incarnation() -> None:
    pair = Pair()
    pair.open(pair.key(), 1)
    pair.to_receiver()
    wrong = Key("r", 1, P_EPOCH - 1, D_EPOCH)
    reserved = transfer_pb2.Reserved(ticket=wrong.ticket(1), pages=[0])
    pair.tell_sender(transfer_pb2.ConnectResponse(reserved=reserved))
    assert pair.sender.dropped == {reasons.EPOCH: 1}
    assert not pair.to_receiver(), "no word to a grant that is another incarnation's"


def test_page_with_a_wrong_checksum_never_lands() -> None:
    config = ReceiverConfig(max_regrants=0)
    pair = Pair(faults=Faults(delay_s=(0.001, 0.001), corrupt=1.0), receiver=config)
    pair.open(pair.key(), 2)
    pair.run(0.5)
    assert [type(event).__name__ for event in pair.d_events] == ["Dead"]
    assert pair.d_events[0].reason == reasons.CORRUPT
    pair.run()
    pair.assert_empty()


def test_corrupted_page_is_sent_again_under_a_new_ticket() -> None:
    pair = Pair(faults=Faults(delay_s=(0.001, 0.001), corrupt=1.0))
    pair.open(pair.key(), 2)
    pair.run(0.02)
    pair.fabric.faults = Faults(delay_s=(0.001, 0.001))
    pair.run(1.0)
    landed = [event for event in pair.d_events if isinstance(event, Landed)]
    assert len(landed) == 1
    for i, page in enumerate(landed[0].pages):
        assert (pair.d_pool[page] == pair.content(pair.key(), i)).all()


def test_destination_pages_are_not_free_before_the_sender_says_that_it_is_drained() -> None:
    pair = Pair(sender_writes=True)
    key = pair.key()
    pair.open(key, 3)
    pair.tell_receiver(*pair.to_receiver())
    pair.tell_sender(*pair.to_sender())  # granted: the sender is writing now
    pair.receiver.cancel(key, pair.now)
    assert pair.d_pages.counts().quarantined == 3
    pair.pass_time(20 * LEASE.lease_s)  # no passage of time is proof, nor is a landing's word
    assert pair.d_pages.counts().quarantined == 3
    assert pair.receiver.quarantined_pages == 3
    revokes = [m for m in pair.to_sender() if m.WhichOneof("message") == "revoke"]
    pair.tell_sender(revokes[0])
    pair.tell_receiver(*pair.to_receiver())
    assert pair.d_pages.counts().free == 8


def test_sender_answers_drained_only_after_its_last_write() -> None:
    pair = Pair()
    outlet = HandOutlet()
    pair.sender.detach_peer(D_EPOCH, pair.now)
    pair.sender.forget_peer(D_EPOCH)
    pair.sender.attach_peer(D_EPOCH, outlet, pair.now)
    key = pair.key()
    pair.open(key, 1)
    pair.to_receiver()
    reserved = transfer_pb2.Reserved(ticket=key.ticket(1), pages=[5])
    pair.tell_sender(transfer_pb2.ConnectResponse(reserved=reserved))
    revoke = transfer_pb2.Revoke(ticket=key.ticket(1))
    pair.tell_sender(transfer_pb2.ConnectResponse(revoke=revoke))
    assert outlet.cancelled == [1]
    assert not pair.to_receiver(), "a write is under way"
    outlet.complete(ok=False)
    pair.sender.poll(pair.now)
    assert kinds(pair.to_receiver()) == ["drained", "reserve"]


def test_source_page_stays_pinned_until_its_send_completes() -> None:
    pair = Pair()
    outlet = HandOutlet()
    pair.sender.detach_peer(D_EPOCH, pair.now)
    pair.sender.forget_peer(D_EPOCH)
    pair.sender.attach_peer(D_EPOCH, outlet, pair.now)
    key = pair.key()
    pair.open(key, 2)
    reserved = transfer_pb2.Reserved(ticket=key.ticket(1), pages=[5, 6])
    pair.tell_sender(transfer_pb2.ConnectResponse(reserved=reserved))
    pair.sender.abandon(key, reasons.CANCELLED, pair.now)
    assert pair.p_pages.counts().pinned == 2, "the transport still reads them"
    assert pair.p_pages.try_take(7) is None
    assert not pair.sender.take_events()
    outlet.complete(ok=False)
    pair.sender.poll(pair.now)
    assert pair.p_pages.counts().free == 8
    assert pair.sender.take_events() == [Released(key)]


def test_offered_page_keeps_its_content_when_the_prefill_role_lets_go() -> None:
    pair = Pair()
    pages = pair.open(pair.key(), 2)
    assert pair.p_pages.counts().pinned == 2
    others = pair.p_pages.try_take(6)
    assert others is not None
    assert not set(others) & set(pages)


def test_late_assign_and_reserve_of_a_cancelled_key_get_no_pages() -> None:
    pair = Pair()
    key = pair.key()
    pair.receiver.cancel(key, pair.now)
    assert not pair.receiver.expect(key, n_tokens=PAGE_TOKENS, now=pair.now)
    reserve = transfer_pb2.Reserve(key=key.proto(), n_tokens=PAGE_TOKENS)
    pair.tell_receiver(transfer_pb2.ConnectRequest(reserve=reserve))
    answers = pair.to_sender()
    assert kinds(answers) == ["refused"]
    assert answers[0].refused.reason == reasons.CANCELLED
    assert not pair.receiver.keys()
    assert pair.d_pages.counts().free == 8


def test_late_reserved_of_a_drained_ticket_is_not_written_to() -> None:
    pair = Pair()
    key = pair.key()
    pair.open(key, 1)
    pair.to_receiver()
    ticket = key.ticket(4)
    revoke = transfer_pb2.Revoke(ticket=ticket)
    pair.tell_sender(transfer_pb2.ConnectResponse(revoke=revoke))
    assert kinds(pair.to_receiver()) == ["drained"]
    reserved = transfer_pb2.Reserved(ticket=ticket, pages=[5])
    pair.tell_sender(transfer_pb2.ConnectResponse(reserved=reserved))
    assert kinds(pair.to_receiver()) == ["drained"]
    pair.pass_time(0.05)
    assert "chunk" not in kinds(pair.to_receiver()), "written to"
    assert pair.sender.dropped == {reasons.GENERATION: 1}


def test_commit_of_an_earlier_generation_does_not_unpin() -> None:
    pair = Pair()
    key = pair.key()
    pair.open(key, 1)
    pair.tell_receiver(*pair.to_receiver())
    pair.tell_sender(*pair.to_sender())
    pair.pass_time(0.05)
    commit = transfer_pb2.Commit(ticket=key.ticket(7))
    pair.tell_sender(transfer_pb2.ConnectResponse(commit=commit))
    assert pair.p_pages.counts().pinned == 1
    assert not any(isinstance(event, Committed) for event in pair.sender.take_events())


def test_row_arrives_whole_and_in_order() -> None:
    pair = Pair()
    key = pair.key()
    pair.open(key, 3)
    pair.run()
    assert len(pair.d_events) == 1
    landed = pair.d_events[0]
    assert landed.first == FIRST
    assert landed.skip_pages == 0
    pages = pair.commit(key)
    for i, page in enumerate(pages):
        assert (pair.d_pool[page] == pair.content(key, i)).all()
    pair.run()
    assert pair.p_events == [Committed(key, 3, 3 * 64), Released(key)]
    pair.d_pages.release([Page(page) for page in pages])
    pair.assert_empty()


def test_row_that_was_given_up_after_it_landed_is_not_taken() -> None:
    pair = Pair()
    key = pair.key()
    pair.open(key, 2)
    pair.run()
    pair.sender.abandon(key, reasons.CANCELLED, pair.now)
    pair.run()
    assert [type(event) for event in pair.d_events] == [Landed, Abandoned]
    assert pair.receiver.try_commit(key, pair.now) is None
    pair.run()
    pair.assert_empty()
