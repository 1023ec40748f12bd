"""The options for the shared store. This module does not import redis, which a router without a
store does not need."""

from __future__ import annotations

from dataclasses import dataclass

from twolane.router.shared.address import StoreAddress

SOCKET_S = 0.25  # timeout to connect, and of an answer


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreConfig:
    """`cluster` names this cluster's part of the store."""

    address: StoreAddress
    cluster: str = "default"
    ask_s: float = 0.05  # how long a request waits for an answer
    socket_s: float = SOCKET_S  # how long everything else waits for an answer
    asks_at_once: int = 8  # each uses a connection
    queued: int = 10_000  # waiting writes; beyond that the oldest is dropped
    batch: int = 256
    batch_s: float = 0.003  # how long a write waits to be sent with others
    here_s: float = 1.0
    keep_s: float = 5.0
    stop_s: float = 0.5  # for the last writes at the end
