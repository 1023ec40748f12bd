"""The law's input: the workers, the need of each pool, and what forbids a change.

All times are seconds of one clock, the controller's. An observation is a value: nothing in it
changes after it was made.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class Role(StrEnum):
    PREFILL = "prefill"
    DECODE = "decode"

    @property
    def other(self) -> Role:
        return Role.DECODE if self is Role.PREFILL else Role.PREFILL


BOTH = frozenset(Role)


class State(StrEnum):
    """A worker as the controller sees it. In every state it holds its GPUs.

    STARTING -> READY -> DRAINING -> gone        FLIPPING: READY, on the way to its new roles
    any -> LOST: its host is silent, and nothing proves that it has ended
    """

    STARTING = "starting"
    READY = "ready"
    FLIPPING = "flipping"
    DRAINING = "draining"
    LOST = "lost"


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """`roles`: those that it has, or is on the way to. `rows`: running and waiting ones.
    `since_s`: when it came into its state. `has_ticket`: drained, and may be killed. `is_held`: an
    operator drained, pinned or flipped it by hand, and the law leaves it alone."""

    worker_id: str
    roles: frozenset[Role]
    state: State
    since_s: float
    gpus: int = 1
    node: str = ""
    rows: int = 0
    started_s: float = 0.0
    n_above: int = 0  # workers whose hosts must leave before its own can
    has_ticket: bool = False
    is_held: bool = False

    def __post_init__(self) -> None:
        assert self.roles, f"{self.worker_id} has no role"
        assert self.gpus >= 1
        assert self.rows >= 0
        assert self.state is State.DRAINING or not self.has_ticket, "a ticket without a drain"

    @property
    def serves_or_will(self) -> bool:
        """Whether it counts for its pool: it serves, or will without another decision."""
        return self.state in (State.STARTING, State.READY, State.FLIPPING)


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """How many workers one pool needs, and why.

    `workers`: for the demand expected by the time that a new worker would be ready.
    `soon`: for the demand expected within two flips. `kept`: the most that was needed lately.
    `load`: the demand now without the backlog, in workers; may be a fraction. `busy`: the same in
    workers that have no time to spare, as prefill's have so that few prompts wait. The rest is what
    these came from, in tokens per second, tokens, seconds.
    """

    workers: int
    soon: int
    kept: int
    load: float
    busy: float
    forecast_per_s: float = 0.0
    horizon_s: float = 0.0
    headroom: float = 1.0
    capacity_per_s: float = 0.0
    backlog_tokens: float = 0.0
    oldest_wait_s: float = 0.0
    rows: int = 0
    unplaced: int = 0
    bound_by: str = "rate"  # rate, backlog, rows, pages

    def __post_init__(self) -> None:
        assert self.soon >= 0
        assert 0 <= self.workers <= self.kept, "a need is part of its own history"


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """A snapshot of the cluster.

    `attainment`: share of the last five minutes' requests that held the SLO; None: there were none.
    `waiting`: requests that wait for any worker at all. `idle_s`: time since the last request.
    `failed_starts`: in a row, the last one at `failed_s`. `by_hand_s`: when an operator last
    changed a size. `last_down_s`: when the law last drained a worker. `flipped_s`: when it last
    flipped one to that role. `start_s`: 90th percentile of measured starts. `pins`: sizes that an
    operator fixed. `found`: the pools as the controller found them, while it has not seen for long
    enough what they need.
    """

    workers: tuple[Worker, ...]
    needs: Mapping[Role, Need]
    attainment: float | None = None
    waiting: int = 0
    idle_s: float = 0.0
    failed_starts: int = 0
    failed_s: float | None = None
    by_hand_s: float | None = None
    last_down_s: float | None = None
    flipped_s: Mapping[Role, float] = field(default_factory=dict)
    start_s: float = 75.0
    pins: Mapping[Role, int] = field(default_factory=dict)
    found: Mapping[Role, int] = field(default_factory=dict)
    records_events: bool = True

    def __post_init__(self) -> None:
        assert set(self.needs) == set(Role)
        ids = [worker.worker_id for worker in self.workers]
        assert len(ids) == len(set(ids)), "two workers of one id"
        assert self.start_s > 0

    @property
    def held_gpus(self) -> int:
        """GPUs of all workers, whatever their state."""
        return sum(worker.gpus for worker in self.workers)
