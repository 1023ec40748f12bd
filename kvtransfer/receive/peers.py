"""The senders that a receiver has links with, or waits for proof about."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from twolane.kvtransfer.transport import Landing
from twolane.v1 import transfer_pb2


@dataclass(slots=True)
class InPeer:
    """One sender. Detached is suspicion, gone is proof."""

    landing: Landing
    attached: bool = True
    judge_at: float = math.inf  # it is judged unless it comes back before
    is_gone: bool = False


class InPeers:
    """Senders by epoch, and what is to be said to them."""

    def __init__(self) -> None:
        self.of: dict[int, InPeer] = {}
        self.outbox: list[tuple[int, transfer_pb2.ConnectResponse]] = []

    def landing_of(self, epoch: int) -> Landing | None:
        """Where its bytes arrive, while messages reach it."""
        peer = self.of.get(epoch)
        return peer.landing if peer is not None and peer.attached else None

    def is_gone(self, epoch: int) -> bool:
        """Whether that is proven, of a sender that has transfers here."""
        return self.of[epoch].is_gone

    def landings(self) -> list[Landing]:
        """Each once."""
        return list({id(peer.landing): peer.landing for peer in self.of.values()}.values())

    def say(self, epoch: int, **body: Any) -> None:
        """Queue one ConnectResponse, by the name of its field; lost when detached."""
        if self.landing_of(epoch) is not None:
            self.outbox.append((epoch, transfer_pb2.ConnectResponse(**body)))
