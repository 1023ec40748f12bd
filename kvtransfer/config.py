"""Times and bounds of KV transfers."""

from __future__ import annotations

from dataclasses import dataclass

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseConfig:
    """Used by both sides. An expired lease is suspicion, never proof."""

    lease_s: float = 6.0  # how long a side holds a transfer without a message about it
    heartbeat_s: float = 1.0  # between two Renews, one batch for each peer
    retry_first_s: float = 0.1  # RESERVE, DONE, Revoke, Abandon: first repeat, then doubling
    retry_most_s: float = 1.0

    def __post_init__(self) -> None:
        assert 0 < self.heartbeat_s < self.lease_s
        assert 0 < self.retry_first_s <= self.retry_most_s < self.lease_s


@dataclass(frozen=True, slots=True, kw_only=True)
class SenderConfig:
    """The sending side of a prefill worker."""

    lease: LeaseConfig = LeaseConfig()
    window_bytes: int = 64 * MIB  # most bytes posted and not completed, for each peer
    post_bytes: int = 8 * MIB  # most bytes of one post (and so of one Chunk)
    holding_cap_pages: int = 0  # no new prefill from here on; 0: no cap
    max_regrants: int = 5  # a transfer that loses its grant more often fails
    stuck_after_s: float = 3.0  # sends to a receiver are under way and none has moved

    def __post_init__(self) -> None:
        assert self.stuck_after_s > 0
        assert 0 < self.post_bytes <= self.window_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceiverConfig:
    """The receiving side of a decode worker."""

    lease: LeaseConfig = LeaseConfig()
    queue_limit: int = 256  # reservations that wait for pages; Busy beyond
    pass_looks: int = 8  # reservations behind a head without room that may be granted first
    quarantine_cap_pages: int = 0  # no grants from here on; 0: half the pool
    # A quarantine older than this asks for a fence, cap or not. Clusters: a multiple of --lease-s.
    fence_after_s: float = 60.0
    landing_timeout_s: float = 3.0  # DONE came, bytes did not: revoke, so that they are sent again
    max_late: int = 2  # such transfers: one that is late more often is dead, and goes another way
    reattach_s: float = 1.0  # a peer whose link is not back by then is judged
    judge_wait_s: float = 0.5  # bytes of a judged peer may still land for this long
    max_regrants: int = 5  # a transfer that loses its grant more often is dead
    require_checksums: bool = True
