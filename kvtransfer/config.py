"""Times and bounds of the transfer lane."""

from __future__ import annotations

from dataclasses import dataclass

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseConfig:
    """Shared by both sides. A lease that runs out is suspicion, never proof."""

    lease_s: float = 6.0  # how long either side believes in the other without hearing of a key
    heartbeat_s: float = 1.0  # one batched Renew a peer
    retry_first_s: float = 0.1  # RESERVE, DONE, Revoke, Abandon: first repeat, then doubling
    retry_most_s: float = 1.0

    def __post_init__(self) -> None:
        assert 0 < self.heartbeat_s < self.lease_s
        assert 0 < self.retry_first_s <= self.retry_most_s < self.lease_s


@dataclass(frozen=True, slots=True, kw_only=True)
class SenderConfig:
    """One prefill worker's sending side."""

    lease: LeaseConfig = LeaseConfig()
    window_bytes: int = 64 * MIB  # most bytes handed to the transport and not completed, a peer
    post_bytes: int = 8 * MIB  # most bytes of one post (and so of one Chunk)
    holding_cap_pages: int = 0  # `is_full` from here on; 0: no cap
    max_regrants: int = 5  # a transfer whose grant is lost more often fails
    stuck_after_s: float = 3.0  # sends to a receiver are under way, and nothing of them moved

    def __post_init__(self) -> None:
        assert self.stuck_after_s > 0
        assert 0 < self.post_bytes <= self.window_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceiverConfig:
    """One decode worker's receiving side."""

    lease: LeaseConfig = LeaseConfig()
    queue_limit: int = 256  # reservations that wait for pages; Busy beyond
    pass_looks: int = 8  # at so many behind a head without room, whether they find some
    quarantine_cap_pages: int = 0  # no reservation is granted from here on; 0: half the pool
    fence_after_s: float = 60.0  # a quarantine older than this asks for a fence below the cap too
    landing_timeout_s: float = 3.0  # DONE is here, bytes are not: revoke, so that they come again
    reattach_s: float = 1.0  # a peer whose link broke and that is not back by then is judged
    judge_wait_s: float = 0.5  # bytes of a judged peer that are under way may land this long
    max_regrants: int = 5  # a transfer that is spoilt more often is dead
    require_checksums: bool = True
