"""The senders that a receiver has links with, or whose pages are in quarantine."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from twolane.kvtransfer.transport import Landing
from twolane.v1 import transfer_pb2


@dataclass(slots=True)
class InPeer:
    """One sender. `attached` False is suspicion, `is_gone` is proof."""

    landing: Landing
    attached: bool = True
    judge_at: float = math.inf  # then it is judged, unless its link is back
    is_gone: bool = False


class InPeers:
    """Senders by epoch, and the messages to send to them."""

    def __init__(self) -> None:
        self.of: dict[int, InPeer] = {}
        self.outbox: list[tuple[int, transfer_pb2.ConnectResponse]] = []

    def landing_of(self, epoch: int) -> Landing | None:
        """The landing that its bytes arrive at; None if its link is down."""
        peer = self.of.get(epoch)
        return peer.landing if peer is not None and peer.attached else None

    def is_gone(self, epoch: int) -> bool:
        """Whether the end of that sender, which has transfers here, is proven."""
        return self.of[epoch].is_gone

    def landings(self) -> list[Landing]:
        """Each once."""
        return list({id(peer.landing): peer.landing for peer in self.of.values()}.values())

    def say(self, epoch: int, **body: Any) -> None:
        """Queue one ConnectResponse, by the name of its field; dropped if the link is down."""
        if self.landing_of(epoch) is not None:
            self.outbox.append((epoch, transfer_pb2.ConnectResponse(**body)))
