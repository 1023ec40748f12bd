"""Which rate to measure next, to find the highest that meets an SLO.

    holds ●     ●     ●     ? ? ?     ○     ○   misses
    --------------------|---------|---------------------> rate
                       low       high    while high - low > tolerance: measure between them

The share that meets an SLO does not rise with the rate. If measured shares do, that is noise, and
neighbours are pooled until shares fall (isotonic regression): so bad luck at a low rate does not
end the search. If a share is so close to the limit that it could be on either side, its rate is
measured again, up to `repeats` runs, before it bounds the search; then the pooled share decides.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.load.confidence import Interval, wilson

_STEP_UP, _STEP_DOWN = 1.5, 0.5
_DIGITS = 3


@dataclass(frozen=True, slots=True)
class Tally:
    """How many requests of one rate met the SLO, over how many runs. A run that was aborted as
    hopeless makes the rate hopeless."""

    held: int = 0
    n: int = 0
    runs: int = 0
    is_hopeless: bool = False

    @property
    def share(self) -> float:
        return self.held / self.n if self.n else 0.0

    @property
    def interval(self) -> Interval:
        return wilson(self.held, self.n)

    def __add__(self, other: Tally) -> Tally:
        return Tally(
            self.held + other.held,
            self.n + other.n,
            self.runs + other.runs,
            self.is_hopeless or other.is_hopeless,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchConfig:
    """All of `rates_per_s` are measured, up to the first that is hopeless. `tolerance` is
    relative."""

    rates_per_s: Sequence[float]
    share: float = 0.9
    tolerance: float = 0.05
    repeats: int = 2
    lowest_per_s: float = 0.25
    highest_per_s: float = 256.0

    def holds(self, tally: Tally) -> bool:
        return not tally.is_hopeless and tally.share >= self.share

    def is_unclear(self, tally: Tally) -> bool:
        low, high = tally.interval
        return not tally.is_hopeless and low < self.share <= high


@dataclass(frozen=True, slots=True)
class Bracket:
    """The highest measured rate that meets the SLO, and the lowest that misses."""

    low_per_s: float | None
    high_per_s: float | None


def bracket(tallies: Mapping[float, Tally], config: SearchConfig) -> Bracket:
    low: float | None = None
    for rate_per_s, tally in falling(tallies).items():
        if not config.holds(tally):
            return Bracket(low, rate_per_s)
        low = rate_per_s
    return Bracket(low, None)


def falling(tallies: Mapping[float, Tally]) -> dict[float, Tally]:
    """By ascending rate, each with the tally of its pool: shares do not rise."""
    pools: list[tuple[list[float], Tally]] = []
    for rate_per_s, tally in sorted(tallies.items()):
        rates = [rate_per_s]
        while pools and not tally.is_hopeless and pools[-1][1].share < tally.share:
            lower, pooled = pools.pop()
            rates, tally = [*lower, *rates], pooled + tally
        pools.append((rates, tally))
    return {rate_per_s: tally for rates, tally in pools for rate_per_s in rates}


def next_rate(tallies: Mapping[float, Tally], config: SearchConfig) -> float | None:
    """None if the search is complete, and `bracket` its result."""
    hopeless = min((r for r, tally in tallies.items() if tally.is_hopeless), default=None)
    for rate_per_s in sorted(config.rates_per_s):
        if rate_per_s not in tallies and (hopeless is None or rate_per_s < hopeless):
            return rate_per_s
    pooled = falling(tallies)
    found = bracket(tallies, config)
    low, high = found.low_per_s, found.high_per_s
    for edge in (low, high):
        if edge is None:
            continue
        if config.is_unclear(pooled[edge]) and tallies[edge].runs < config.repeats:
            return edge
    if high is None:
        assert low is not None, "there is at least one rate"
        above = _round(low * _STEP_UP)
        return above if above <= config.highest_per_s else None
    if low is None:
        below = _round(high * _STEP_DOWN)
        return below if below >= config.lowest_per_s else None
    between = _round((low + high) / 2)
    is_narrow = high - low <= config.tolerance * high or between in (low, high)
    return None if is_narrow else between


def _round(rate_per_s: float) -> float:
    return float(f"{rate_per_s:.{_DIGITS}g}")
