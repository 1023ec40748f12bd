"""One sender's connection to a nixl landing, and the agent by which it writes into the pool."""

from __future__ import annotations

import socket

from twolane.kvtransfer.transports.nixl.agent import NixlAgent
from twolane.kvtransfer.transports.nixl.channel import NixlChannel
from twolane.v1 import nixl_pb2


class SenderConnection:
    """Unknown until `meet`. Used by the landing's thread."""

    def __init__(self, stream: socket.socket) -> None:
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.stream = stream
        self.channel = NixlChannel(stream, nixl_pb2.NixlRequest)
        self.epoch = 0  # of the sender; 0 until its hello
        self.is_busy = False  # it has writes under way
        self.owed: dict[
            int, float
        ] = {}  # revoked generations without an answer, and their deadlines
        self._agent: NixlAgent | None = None

    @property
    def is_known(self) -> bool:
        """Its hello was for this receiver."""
        return self.epoch != 0

    @property
    def answers_until(self) -> float | None:
        """The earliest deadline of its answers; None: it owes none."""
        return min(self.owed.values(), default=None)

    def meet(self, epoch: int, agent: NixlAgent) -> None:
        """Its hello came. Owns the agent from here on."""
        self.epoch = epoch
        self._agent = agent

    def drive(self) -> None:
        """Let its agent write what has arrived. Raises `NixlError`."""
        if self._agent is not None:
            self._agent.drive()

    def leave(self) -> None:
        """It can no longer write to the pool when this returns."""
        self.is_busy = False
        self.owed.clear()
        if self._agent is not None:
            self._agent.close()  # guard: agent closed
            self._agent = None
        self.channel.close()
