"""A connection that gets nothing through carries no more pages."""

from __future__ import annotations

import socket

import numpy as np
import pytest

from tests.kvtransfer.device_pair import P_EPOCH, Ear
from tests.kvtransfer.test_page_lanes import KEY, LANES, outlet_to, random_pages, read
from twolane.kvtransfer.copy_plan import CopyPlan
from twolane.kvtransfer.page_lane import PageLane, ReceiverLane, SenderLane
from twolane.kvtransfer.transports.common.key_proof import ReceiverHandshake
from twolane.kvtransfer.transports.stream import outlet as outlet_module


@pytest.mark.parametrize("lane", LANES)
def test_pages_are_not_sent_behind_others_that_do_not_get_through(
    lane: PageLane, monkeypatch: pytest.MonkeyPatch
) -> None:
    pages, key = np.arange(4, dtype=np.int64), ReceiverLane(lane, KEY)
    mute: list[bool] = []
    monkeypatch.setattr(outlet_module, "is_mute", lambda stream: bool(mute))
    wire = socket.create_server(("127.0.0.1", 0))
    address = f"127.0.0.1:{wire.getsockname()[1]}"
    with outlet_to(address, random_pages(4), SenderLane(lane, key.key_for(P_EPOCH))) as outlet:
        out = Ear(outlet)
        outlet.post(1, 1, CopyPlan(0, pages, pages))
        first, _ = wire.accept()
        greet(first, lane, key)
        assert out.wait_for(1)[0].ok, "the kernel has them"
        mute.append(True)
        outlet.post(2, 2, CopyPlan(0, pages, pages))
        second, _ = wire.accept()
        mute.clear()
        greet(second, lane, key)
        assert out.wait_for(2)[1].ok
        first.close()
        second.close()
    wire.close()


def greet(peer: socket.socket, lane: PageLane, key: ReceiverLane) -> None:
    """As a receiver does."""
    hello = read(peer, 32)
    if lane is not PageLane.PLAIN:
        handshake = ReceiverHandshake(key.key_for(P_EPOCH), hello)
        peer.sendall(handshake.take(read(peer, 32)))
        handshake.take(read(peer, 32))
