"""The law's limits: budget, pool sizes, SLO and waiting times."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from twolane.deploy.controller.observation import Role


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolLimits:
    """Workers of one pool. `flips`: its workers may take the other role, and it takes theirs."""

    minimum: int = 1
    maximum: int = 1024
    gpus: int = 1  # of one worker
    flips: bool = True

    def __post_init__(self) -> None:
        assert 0 <= self.minimum <= self.maximum
        assert self.gpus >= 1

    def within(self, workers: int) -> int:
        return min(max(workers, self.minimum), self.maximum)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """`budget_gpus` holds at every instant, for workers in any state.

    `attainment`: the share of requests that should hold the SLO. Times in seconds:
    `kept_s`: a pool shrinks only below the largest need of that long; up to `most_kept_s`, if needs
    come back later than that (`twolane.deploy.controller.kept`). `calm_s`: between two drains.
    `settle_s`: a pool that took a worker by a flip gives none by a flip for that long.
    `veto_s`: how long after a failed start, or a change by hand, nothing shrinks. `idle_s`: without
    a request, until pools of minimum 0 go to zero. `guard`: a start is given up after so many times
    the usual time, which doubles with each failure up to `most_patience_s`. After `failures` failed
    starts in a row none is made for `backoff_s`, doubling.
    """

    budget_gpus: int
    pools: Mapping[Role, PoolLimits] = field(
        default_factory=lambda: {role: PoolLimits() for role in Role}
    )
    attainment: float = 0.985
    kept_s: float = 240.0
    most_kept_s: float = 900.0
    calm_s: float = 40.0
    settle_s: float = 60.0
    veto_s: float = 300.0
    idle_s: float = 900.0
    guard: float = 3.0
    failures: int = 3
    backoff_s: float = 30.0
    most_backoff_s: float = 600.0
    most_patience_s: float = 900.0

    def __post_init__(self) -> None:
        assert self.budget_gpus >= 1
        assert set(self.pools) == set(Role)
        assert 0 < self.attainment <= 1
        assert self.guard > 1
        assert self.kept_s <= self.most_kept_s
        least = sum(pool.minimum * pool.gpus for pool in self.pools.values())
        assert least <= self.budget_gpus, "the minimums need more than the budget"
        zeros = [pool.minimum == 0 for pool in self.pools.values()]
        assert all(zeros) or not any(zeros), "only both pools together may go to zero"

    @property
    def goes_to_zero(self) -> bool:
        return all(pool.minimum == 0 for pool in self.pools.values())

    @property
    def may_flip(self) -> bool:
        """Whether workers may change pools: they have equal sizes, and both pools allow it."""
        one, two = self.pools.values()
        return one.flips and two.flips and one.gpus == two.gpus
