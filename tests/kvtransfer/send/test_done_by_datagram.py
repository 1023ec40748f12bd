"""DONE goes by a quicker way than the link where there is one, and may get lost there."""

from __future__ import annotations

import pytest

from tests.kvtransfer.pair import D_EPOCH, Pair, kinds
from twolane.kvtransfer.events import Landed
from twolane.v1 import transfer_pb2


class Way:
    """Takes what it is told, or does not."""

    def __init__(self) -> None:
        self.told: list[transfer_pb2.Done] = []
        self.is_open = True

    def try_send_done(self, done: transfer_pb2.Done) -> bool:
        if self.is_open:
            self.told.append(done)
        return self.is_open


def pair_with(way: Way) -> Pair:
    pair = Pair()
    pair.sender.attach_peer(
        D_EPOCH, pair.outlet, pair.now, takes_last_chunk=True, try_send_done=way.try_send_done
    )
    return pair


def said(pair: Pair) -> list[transfer_pb2.ConnectRequest]:
    """By the link, once all posts are complete."""
    pair.pass_time(0.02)
    return [it for it in pair.to_receiver() if it.WhichOneof("message") != "renew"]


def landed(pair: Pair) -> list[type]:
    pair.run()
    return [type(event) for event in pair.d_events]


def test_done_is_told_once_and_not_said() -> None:
    way = Way()
    pair = pair_with(way)
    pair.granted(3)
    assert not said(pair)
    (done,) = way.told
    assert done.last_chunk.n_pages == 3
    pair.tell_receiver(transfer_pb2.ConnectRequest(done=done))
    pair.pass_time(0.02)
    assert [type(event) for event in pair.receiver.take_events()] == [Landed]
    assert not pair.receiver.dropped


def test_a_done_that_is_lost_on_its_way_is_said_by_the_link() -> None:
    way = Way()
    pair = pair_with(way)
    pair.granted(3)
    assert not said(pair)
    pair.pass_time(0.3)
    again = said(pair)
    assert kinds(again)[:2] == ["chunk", "done"]
    assert len(way.told) == 1, "only the link repeats"
    pair.tell_receiver(*again)
    assert landed(pair) == [Landed]


@pytest.mark.parametrize("is_there", [True, False])
def test_a_done_that_cannot_be_told_is_said(is_there: bool) -> None:
    way = Way()
    way.is_open = False
    pair = pair_with(way) if is_there else Pair(takes_last_chunk=True)
    pair.granted(3)
    assert kinds(said(pair)) == ["done"]
    assert not way.told


def test_a_done_that_overtakes_a_chunk_waits_for_it() -> None:
    way = Way()
    way.is_open = False
    pair = pair_with(way)
    pair.granted(3)
    (done,) = said(pair)
    last = done.done.last_chunk
    chunk = transfer_pb2.ConnectRequest(chunk=last)
    done.done.ClearField("last_chunk")
    pair.tell_receiver(done)
    pair.pass_time(0.05)
    assert not pair.receiver.take_events()
    pair.tell_receiver(chunk)
    assert landed(pair) == [Landed]


def test_nothing_is_told_while_the_link_is_down() -> None:
    way = Way()
    pair = pair_with(way)
    pair.granted(3)
    pair.sender.detach_peer(D_EPOCH, pair.now)
    assert not said(pair)
    assert not way.told
    pair.sender.attach_peer(D_EPOCH, pair.outlet, pair.now, takes_last_chunk=True)
    again = said(pair)
    assert kinds(again)[:2] == ["chunk", "done"]
    pair.tell_receiver(*again)
    assert landed(pair) == [Landed]
