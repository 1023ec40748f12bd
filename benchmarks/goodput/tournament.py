"""All runs of a goodput measurement, and their evaluation.

    for each round: for each contender, in an order that rotates:  start, warm up,
        measure rate after rate until the search of every SLO is over,  stop

The searches share their runs. Each round searches again, with other arrivals and prompts, so the
spread of the rounds shows the uncertainty. All contenders get the same requests at one rate.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from benchmarks.goodput.measured import Measured
from benchmarks.goodput.search import Bracket, SearchConfig, Tally, bracket, next_rate
from benchmarks.load.record import Slo

_T = TypeVar("_T")
LATE_RUNS = 2  # of one rate, until it counts as the client's limit


@dataclass(frozen=True, slots=True, kw_only=True)
class TournamentConfig:
    """`late_s`: how late the client may send, at the 99th percentile."""

    slos: Sequence[Slo]
    search: SearchConfig
    late_s: float = 0.01


@dataclass(slots=True)
class Tournament:
    """`runs` are in the order of measurement."""

    config: TournamentConfig
    runs: list[Measured] = field(default_factory=list)

    def next_run(self, contender: str, round_: int) -> tuple[float, int] | None:
        """The rate to measure next, and how often it was already measured in this round. None if
        the search is complete."""
        ours = [r for r in self.runs if (r.contender, r.round) == (contender, round_)]
        for slo in self.config.slos:
            rate_per_s = next_rate(self._tallies(ours, slo), self.config.search)
            if rate_per_s is None:
                continue
            before = [run for run in ours if run.rate_per_s == rate_per_s]
            if sum(run.is_late(self.config.late_s) for run in before) >= LATE_RUNS:
                continue
            return rate_per_s, len(before)
        return None

    def client_limit_per_s(self, contender: str) -> float | None:
        """The lowest rate that was tried, but never with a client on time."""
        ours = [run for run in self.runs if run.contender == contender]
        fine = {run.rate_per_s for run in ours if not run.is_late(self.config.late_s)}
        return min((r.rate_per_s for r in ours if r.rate_per_s not in fine), default=None)

    def tallies(self, contender: str, slo: Slo) -> dict[float, Tally]:
        """By rate, over all rounds."""
        return self._tallies([run for run in self.runs if run.contender == contender], slo)

    def brackets(self, contender: str, slo: Slo) -> list[Bracket]:
        """The result of each round."""
        rounds = sorted({run.round for run in self.runs if run.contender == contender})
        return [
            bracket(
                self._tallies(
                    [r for r in self.runs if (r.contender, r.round) == (contender, round_)], slo
                ),
                self.config.search,
            )
            for round_ in rounds
        ]

    def _tallies(self, runs: Sequence[Measured], slo: Slo) -> dict[float, Tally]:
        """By ascending rate; runs of a late client do not count."""
        found: dict[float, Tally] = {}
        for run in sorted(runs, key=lambda run: run.rate_per_s):
            if not run.is_late(self.config.late_s):
                found[run.rate_per_s] = found.get(run.rate_per_s, Tally()) + run.tally(slo)
        return found


def in_turn(contenders: Sequence[_T], round_: int) -> list[_T]:
    """Rotates the order: each contender is first once in as many rounds as there are contenders."""
    first = round_ % len(contenders)
    return [*contenders[first:], *contenders[:first]]
