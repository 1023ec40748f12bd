"""What a worker refused from its peers, wherever it came in."""

from __future__ import annotations

from typing import Any

from twolane.decode_worker.role import DecodeRole
from twolane.engine.fake import FakeEngine
from twolane.kvtransfer import reasons
from twolane.kvtransfer.link.done_socket import DoneSocket
from twolane.worker.config import WorkerConfig
from twolane.worker.context import WorkerContext
from twolane.worker.peers.peers import Peers, Wiring
from twolane.worker.role import Roles


def never(*_: Any) -> Any:
    raise AssertionError("nobody is dialled")


async def test_refused_datagrams_are_counted_with_the_rest() -> None:
    context = WorkerContext(WorkerConfig(worker_id="decode-0"), FakeEngine())
    roles, socket = Roles(decode=DecodeRole(context)), DoneSocket()
    without = Peers(context, roles, Wiring(never, never, {}, ()), wake=never)
    peers = Peers(context, roles, Wiring(never, never, {}, (), done_socket=socket), wake=never)
    assert not without.dropped
    assert not peers.dropped
    socket.dropped[reasons.UNPROVEN] += 2
    assert peers.dropped == {reasons.UNPROVEN: 2}
