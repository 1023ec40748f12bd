"""One sender's connection to a nixl landing, and the agent that lets it into the pool."""

from __future__ import annotations

import socket

from twolane.kvtransfer.transports.nixl.agent import NixlAgent
from twolane.kvtransfer.transports.nixl.channel import NixlChannel
from twolane.v1 import nixl_pb2


class SenderConnection:
    """A stranger until `meet`. Used by the landing's thread."""

    def __init__(self, stream: socket.socket) -> None:
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.stream = stream
        self.channel = NixlChannel(stream, nixl_pb2.NixlRequest)
        self.epoch = 0  # of the sender; 0 until its hello
        self.is_busy = False  # it writes
        self.owed: dict[int, float] = {}  # revoked generations it has not answered for; until when
        self._agent: NixlAgent | None = None

    @property
    def is_known(self) -> bool:
        """It said hello, and means us."""
        return self.epoch != 0

    @property
    def answers_until(self) -> float | None:
        """It has so long to answer; None: nothing is asked of it."""
        return min(self.owed.values(), default=None)

    def meet(self, epoch: int, agent: NixlAgent) -> None:
        """Its hello. The agent is ours."""
        self.epoch = epoch
        self._agent = agent

    def drive(self) -> None:
        """What has arrived is written. Raises `NixlError`."""
        if self._agent is not None:
            self._agent.drive()

    def leave(self) -> None:
        """Nothing of it can write to the pool any more when this returns."""
        self.is_busy = False
        self.owed.clear()
        if self._agent is not None:
            self._agent.close()  # guard: agent closed
            self._agent = None
        self.channel.close()
