"""What a router is told of the shared store. Needs no redis, which a router without one does not
have to have."""

from __future__ import annotations

from dataclasses import dataclass

from twolane.router.shared.address import StoreAddress

SOCKET_S = 0.25  # to connect, and for an answer


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreConfig:
    """`cluster` is the part of the store that this cluster has."""

    address: StoreAddress
    cluster: str = "default"
    ask_s: float = 0.05  # that a request waits
    socket_s: float = SOCKET_S  # that everything else waits for an answer
    asks_at_once: int = 8  # each has a connection
    queued: int = 10_000  # writes that wait; then the oldest goes
    batch: int = 256
    batch_s: float = 0.003  # that a write waits for others
    here_s: float = 1.0
    keep_s: float = 5.0
    stop_s: float = 0.5  # for last words
