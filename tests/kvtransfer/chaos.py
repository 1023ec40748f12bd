"""What may go wrong in a schedule, and what pages hold."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from twolane.kvtransfer.config import LeaseConfig
from twolane.kvtransfer.testing.memory import Faults
from twolane.v1 import transfer_pb2

PAGE_BYTES = 32
PAGE_TOKENS = 16
LEASE = LeaseConfig(lease_s=0.6, heartbeat_s=0.1, retry_first_s=0.03, retry_most_s=0.12)
TICK_S = 0.06
Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True, kw_only=True)
class Chaos:
    """What may go wrong, and how often."""

    seed: int
    sender_writes: bool = False
    n_requests: int = 4
    drop: float = 0.0  # of a control message
    duplicate: float = 0.0
    late: float = 0.0  # by up to three leases
    corrupt: float = 0.0
    data: Faults = field(default_factory=Faults)
    blows: int = 0  # deaths, cuts and stops
    cancels: int = 0
    retargets: int = 0
    finishes: int = 0  # first tokens that end their request


def pattern(*words: object) -> Bytes:
    """The content of a page that belongs to `words`."""
    return np.frombuffer(random.Random(repr(words)).randbytes(PAGE_BYTES), dtype=np.uint8)


@dataclass(slots=True)
class Request:
    name: str
    n_tokens: int
    group: int  # requests of one group share their first pages
    shared: int  # how many
    contents: list[Bytes] = field(default_factory=list)
    hashes: list[bytes] = field(default_factory=list)
    attempt: int = 0
    origin: int = 0  # the attempt that computed what is being moved


def corrupted(message: Any, rng: random.Random) -> Any:
    """A copy with one field damaged, of those that the protocol can tell."""
    copy = type(message)()
    copy.CopyFrom(message)
    kind = copy.WhichOneof("message")
    body = getattr(copy, kind)
    if isinstance(body, transfer_pb2.Chunk):
        how = rng.randrange(4)
        if how == 0 and body.checksums:
            body.checksums[rng.randrange(len(body.checksums))] ^= 1 << rng.randrange(64)
        elif how == 1:
            body.first_page += rng.randint(-8, 8)
        elif how == 2:
            body.n_pages += rng.randint(-8, 8)
        else:
            body.ticket.generation += rng.randint(1, 3)
    elif isinstance(body, transfer_pb2.Done) and rng.random() < 0.5:
        body.n_bytes += rng.randint(1, 100)
    elif isinstance(body, transfer_pb2.Reserve) and rng.random() < 0.5:
        body.n_tokens = rng.choice([0, -1, 10**9, body.n_tokens + PAGE_TOKENS])
    elif hasattr(body, "ticket"):
        body.ticket.key.sender_epoch ^= 1 << rng.randrange(62)
    elif hasattr(body, "keys"):
        body.keys[0].receiver_epoch ^= 1 << rng.randrange(62)
    else:
        body.key.receiver_epoch ^= 1 << rng.randrange(62)
    return copy
