"""The part of a run that counts: the steady middle.

    arrivals   |  warm-up  |        window        |  cool-down  |
               0        from_s                  to_s     until all of the window have ended

Load goes on through the cool-down, so that the last of the window are served among others, too. A
run ends when every request that arrived in the window has; or earlier, when the queue grows without
bound. Little's law, number = rate x time, detects that for two queues:

    waiting for the first token   longer than rate x TTFT            the mean wait is over the SLO
    in flight                     longer than rate x longest answer  so is the mean answer

each by more than Poisson arrivals make likely, and for so long that more requests have suffered
than may miss the SLO.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from benchmarks.load.record import Record, Slo
from benchmarks.traffic.plan import Plan, PlanConfig, make_plan
from benchmarks.traffic.trace import Trace
from benchmarks.traffic.workload import Workload

_SUFFERING_SHARE = 0.25  # of the window; an SLO allows a tenth
_MIN_SUFFERING_S = 3.0
_SIGMAS = 4.0
CUT_OFF = "CUT_OFF"  # the failure of a request that had not ended when its run was given up


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowConfig:
    """The window takes `n_requests` at the rate, or `min_s` where that is longer."""

    warm_up_s: float = 10.0
    n_requests: int = 300
    min_s: float = 20.0
    cool_down_s: float = 10.0

    def span_s(self, rate_per_s: float) -> float:
        return max(self.min_s, self.n_requests / rate_per_s)

    def run_s(self, rate_per_s: float) -> float:
        return self.warm_up_s + self.span_s(rate_per_s) + self.cool_down_s


@dataclass(frozen=True, slots=True)
class Window:
    """One run's plan, and the part of it that counts."""

    plan: Plan
    rate_per_s: float
    from_s: float
    to_s: float

    def measured(self) -> list[Record]:
        """Of each request in the window, a record of no answer yet."""
        plan = self.plan
        first, end = np.searchsorted(plan.arrivals_s, (self.from_s, self.to_s)).tolist()
        return [
            Record(
                index,
                float(plan.arrivals_s[index]) - self.from_s,
                0.0,
                int(plan.prompt_tokens[index]),
                int(plan.output_tokens[index]),
                (),
                CUT_OFF,
            )
            for index in range(first, end)
        ]

    def holds(self, record: Record) -> bool:
        """Whether the request arrived in the window."""
        return self.from_s <= record.arrival_s < self.to_s

    def pick(self, records: Sequence[Record]) -> list[Record]:
        """The window's records, arrivals counted from its start. Missing ones are failures with a
        reason of their own."""
        came = {record.index: record for record in records}
        return [
            replace(came[asked.index], arrival_s=asked.arrival_s) if asked.index in came else asked
            for asked in self.measured()
        ]


def make_window(
    workload: Workload | Trace,
    plan: PlanConfig,
    config: WindowConfig,
    *,
    rate_per_s: float,
    seed: int,
) -> Window:
    """The same arguments give the same run."""
    mean = rate_per_s * config.run_s(rate_per_s)
    n_requests = math.ceil(mean + 3 * math.sqrt(mean))  # enough for the cool-down, nearly always
    sized = replace(plan, rate_per_s=rate_per_s, n_requests=n_requests)
    from_s = config.warm_up_s
    to_s = from_s + config.span_s(rate_per_s)
    return Window(make_plan(workload, sized, seed), rate_per_s, from_s, to_s)


class Watch:
    """Follows one run, and decides when it may end. `why_halted` is empty unless it is hopeless for
    every one of the SLOs."""

    def __init__(self, window: Window, slos: Sequence[Slo]) -> None:
        self._window = window
        self._due = {record.index for record in window.measured()}
        self._n_first = self._n_ended = 0
        self._suffers_since_s: float | None = None
        self.why_halted = ""
        mean_output = float(window.plan.output_tokens.mean())
        rate_per_s = window.rate_per_s
        self._most_waiting = _likely(rate_per_s * max(slo.ttft_s for slo in slos))
        longest_s = max(slo.ttft_s + mean_output * slo.gap_s for slo in slos)
        self._most_under_way = _likely(rate_per_s * longest_s)
        self._patience_s = max(_MIN_SUFFERING_S, _SUFFERING_SHARE * (window.to_s - window.from_s))

    def on_first(self, index: int) -> None:
        self._n_first += 1

    def on_record(self, record: Record) -> None:
        self._n_ended += 1
        self._n_first += not record.token_times_s  # it waits no longer, either
        self._due.discard(record.index)

    def halt(self, at_s: float) -> bool:
        """To be called regularly, with the time since the run's start."""
        if not self._due:
            return True
        n_arrived = int(np.searchsorted(self._window.plan.arrivals_s, at_s, side="right"))
        waiting, under_way = n_arrived - self._n_first, n_arrived - self._n_ended
        if waiting <= self._most_waiting and under_way <= self._most_under_way:
            self._suffers_since_s = None
        elif self._suffers_since_s is None:
            self._suffers_since_s = at_s
        elif at_s - self._suffers_since_s >= self._patience_s:
            self.why_halted = f"{waiting} wait for their first token, {under_way} are under way"
        return bool(self.why_halted)


def _likely(mean: float) -> float:
    return mean + _SIGMAS * math.sqrt(mean) + _SIGMAS
