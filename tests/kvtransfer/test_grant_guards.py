"""Guards of grants, each alone: whose word frees pages, and which words a receiver believes."""

from __future__ import annotations

import pytest

from tests.kvtransfer.pair import D_EPOCH, P_EPOCH, PAGE_BYTES, PAGE_TOKENS, Pair, kinds
from twolane.kvtransfer import reasons
from twolane.kvtransfer.config import ReceiverConfig
from twolane.kvtransfer.events import Landed
from twolane.kvtransfer.key import Key
from twolane.v1 import transfer_pb2


@pytest.mark.parametrize("word", ["drained", "abandon"])
def test_the_senders_word_does_not_free_pages_that_this_process_may_still_write(word: str) -> None:
    pair = Pair(sender_writes=False)
    key = pair.granted(3)
    pair.receiver.cancel(key, pair.now)
    said = {
        "drained": transfer_pb2.ConnectRequest(drained=transfer_pb2.Drained(ticket=key.ticket(1))),
        "abandon": transfer_pb2.ConnectRequest(abandon=transfer_pb2.Abandon(key=key.proto())),
    }
    pair.tell_receiver(said[word])
    pair.receiver.poll(pair.now)
    assert pair.d_pages.counts().quarantined == 3, "a thread of ours may be amid a page"
    pair.pass_time(0.05)  # the landing says Stopped
    assert pair.d_pages.counts().quarantined == 0


def test_drained_of_another_transfer_does_not_free_the_pages_of_this_one() -> None:
    pair = Pair(sender_writes=True)
    first = pair.granted(3, "a")
    second = pair.granted(2, "b")
    pair.receiver.cancel(first, pair.now)
    liar = transfer_pb2.Drained(ticket=second.ticket(1))  # generation 1 is the first one's
    pair.tell_receiver(transfer_pb2.ConnectRequest(drained=liar))
    assert pair.d_pages.counts().quarantined == 3
    assert pair.receiver.dropped[reasons.GENERATION] >= 1


def test_reservation_that_was_queued_before_the_quarantine_was_full_waits_too() -> None:
    has_room = [False]
    config = ReceiverConfig(quarantine_cap_pages=2)
    pair = Pair(sender_writes=True, receiver=config, may_grant=lambda key, n: has_room[0])
    has_room[0] = True
    victim = pair.granted(2, "a")
    has_room[0] = False
    waiting = pair.key("b")
    pair.open(waiting, 1)
    pair.tell_receiver(*pair.to_receiver())
    assert pair.receiver.n_queued == 1
    pair.receiver.cancel(victim, pair.now)
    has_room[0] = True
    pair.receiver.tick(pair.now)
    assert pair.receiver.n_queued == 1, "2 of 2 pages wait for proof: nothing is granted"
    drained = transfer_pb2.Drained(ticket=victim.ticket(1))
    pair.tell_receiver(transfer_pb2.ConnectRequest(drained=drained))
    assert pair.receiver.n_queued == 0


def test_assign_and_reserve_that_come_after_abandon_get_no_pages() -> None:
    pair = Pair()
    key = pair.key()
    abandon = transfer_pb2.Abandon(key=key.proto(), reason=reasons.CANCELLED)
    pair.tell_receiver(transfer_pb2.ConnectRequest(abandon=abandon))
    pair.to_sender()
    reserve = transfer_pb2.Reserve(key=key.proto(), n_tokens=PAGE_TOKENS)
    pair.tell_receiver(transfer_pb2.ConnectRequest(reserve=reserve))
    assert kinds(pair.to_sender()) == ["refused"]
    assert not pair.receiver.expect(key, n_tokens=PAGE_TOKENS, now=pair.now)
    assert not pair.receiver.keys()


def test_page_that_is_announced_twice_keeps_the_checksum_of_the_first() -> None:
    pair = Pair()
    key = pair.granted(2)
    liar = transfer_pb2.Chunk(ticket=key.ticket(1), index=7, first_page=1, n_pages=1, checksums=[9])
    pair.pass_time(0.05)
    pair.tell_receiver(*[m for m in pair.to_receiver() if m.WhichOneof("message") == "chunk"])
    pair.tell_receiver(transfer_pb2.ConnectRequest(chunk=liar))
    assert pair.receiver.dropped[reasons.MALFORMED] == 1
    assert not pair.to_sender(), "nothing is spoilt"


def test_done_of_another_number_of_bytes_lands_nothing() -> None:
    pair = Pair()
    key = pair.granted(2)
    pair.pass_time(0.05)
    said = pair.to_receiver()
    assert kinds(said)[:2] == ["chunk", "done"]
    pair.tell_receiver(said[0])
    lie = transfer_pb2.ConnectRequest()
    lie.CopyFrom(said[1])
    lie.done.n_bytes = PAGE_BYTES
    pair.tell_receiver(lie)
    assert pair.receiver.dropped[reasons.MALFORMED] == 1
    pair.receiver.poll(pair.now)
    assert not pair.receiver.take_events()
    pair.tell_receiver(said[1])
    assert [type(event) for event in pair.receiver.take_events()] == [Landed]
    assert pair.receiver.keys() == [key]


def queue_behind_a_large_head(n_small: int) -> tuple[Pair, list[bool]]:
    """A row of four pages waits; behind it rows of one page. Nobody has room before `[True]`."""
    opened = [False]
    pair = Pair(n_pages=16, may_grant=lambda key, n: opened[0] and n < 4)
    for name, n_pages in [("head", 4), *((f"small{i}", 1) for i in range(n_small))]:
        pair.open(pair.key(name), n_pages)
    pair.tell_receiver(*pair.to_receiver())
    assert pair.receiver.n_queued == 1 + n_small
    return pair, opened


def test_small_reservations_pass_a_head_that_finds_no_room() -> None:
    pair, opened = queue_behind_a_large_head(n_small=2)
    opened[0] = True
    pair.receiver.tick(pair.now)
    reserved = [m.reserved for m in pair.to_sender() if m.WhichOneof("message") == "reserved"]
    assert [Key.of(r.ticket.key)[0] for r in reserved] == ["small0", "small1"]


def test_those_that_pass_a_head_take_no_more_pages_than_it_asks_for() -> None:
    pair, opened = queue_behind_a_large_head(n_small=9)
    opened[0] = True
    for _ in range(3):
        pair.receiver.tick(pair.now)
    reserved = [m.reserved for m in pair.to_sender() if m.WhichOneof("message") == "reserved"]
    assert [Key.of(r.ticket.key)[0] for r in reserved] == [f"small{i}" for i in range(4)]


def test_no_more_reservations_behind_a_head_are_looked_at_than_the_config_says() -> None:
    asked: list[str] = []

    def has_no_room(key: Key, n_pages: int) -> bool:
        asked.append(key.submission_id)
        return False

    pair = Pair(may_grant=has_no_room, receiver=ReceiverConfig(pass_looks=2))
    for name in "abcdef":
        pair.open(pair.key(name), 1)
    pair.tell_receiver(*pair.to_receiver())
    asked.clear()
    pair.receiver.tick(pair.now)
    assert asked == ["a", "b", "c"]


def test_landing_of_a_former_transport_is_heard_when_it_has_stopped() -> None:
    pair = Pair(sender_writes=False)
    key = pair.granted(3)
    pair.receiver.detach_peer(P_EPOCH, pair.now)
    other = pair.fabric.landing(D_EPOCH, pair.d_pool, "another")
    pair.receiver.attach_peer(P_EPOCH, other, pair.now)  # the sender fell back
    pair.receiver.cancel(key, pair.now)
    assert pair.d_pages.counts().quarantined == 3
    pair.pass_time(0.05)
    assert pair.d_pages.counts().quarantined == 0
