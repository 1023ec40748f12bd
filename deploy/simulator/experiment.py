"""Runs the law and its contenders on one scenario, and checks the bounds that it must hold."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from twolane.deploy.controller.capacity import decode_tokens_per_s, rows_within
from twolane.deploy.controller.forecast import ForecastConfig
from twolane.deploy.controller.limits import Limits, PoolLimits
from twolane.deploy.controller.observation import Role
from twolane.deploy.controller.priors import Hardware, hardware
from twolane.deploy.simulator.cluster import Cluster, ClusterConfig, Controller, Slo
from twolane.deploy.simulator.controllers import FairHpa, Law, the_law
from twolane.deploy.simulator.requests import Requests
from twolane.deploy.simulator.scenarios import Scenario
from twolane.deploy.simulator.tally import Tally

SLO = Slo(ttft_s=0.5, gap_s=0.020)
_TIGHT = ForecastConfig(least=1.0, first=1.0, most=1.0)
_GENEROUS = ForecastConfig(least=2.3, first=2.3, most=2.6)
_PEAK_S = 600.0
_PEAK_HELD = 0.985
_PREFILL_SHARE, _STEP_SHARE = 0.72, 0.7  # of a mean load, as the law counts


@dataclass(frozen=True, slots=True)
class Run:
    """The result of one contender on one scenario."""

    contender: str
    tally: Tally
    hours: float

    @property
    def gpu_hours(self) -> float:
        return self.tally.gpu_s / 3600

    @property
    def most_actions_an_hour(self) -> int:
        return max(self.tally.hours.values(), default=0)


CONTENDERS = ("law", "no flips", "tight", "generous", "fair HPA", "static peak", "static mean")


def run(contender: str, scenario: Scenario, gpu: str = "h200") -> Run:
    """Simulate one contender. Raises KeyError if there is none of that name."""
    made = hardware(gpu)
    makers: Mapping[str, Callable[[], tuple[Controller | None, tuple[int, int]]]] = {
        "law": lambda: (_law(scenario, made), _start(scenario)),
        "no flips": lambda: (_law(scenario, made, flips=False), _start(scenario)),
        "tight": lambda: (_law(scenario, made, forecast=_TIGHT), _start(scenario)),
        "generous": lambda: (_law(scenario, made, forecast=_GENEROUS), _start(scenario)),
        "fair HPA": lambda: (_hpa(scenario, made), _start(scenario)),
        "static peak": lambda: (None, static_peak(scenario.requests, made)),
        "static mean": lambda: (None, static_mean(scenario, made)),
    }
    controller, sizes = makers[contender]()
    config = ClusterConfig(
        hardware=made, slo=SLO, failing=scenario.failing, knows_slo=isinstance(controller, Law)
    )
    cluster = Cluster(config, scenario.requests, workers_of(*sizes), controller)
    tally = cluster.run(scenario.span_s)
    return Run(contender, tally, scenario.span_s / 3600)


def workers_of(prefill: int, decode: int) -> list[frozenset[Role]]:
    return [frozenset({Role.PREFILL})] * prefill + [frozenset({Role.DECODE})] * decode


def _start(scenario: Scenario) -> tuple[int, int]:
    return scenario.prefill, scenario.decode


def _law(
    scenario: Scenario,
    made: Hardware,
    *,
    flips: bool = True,
    forecast: ForecastConfig | None = None,
) -> Controller:
    pools = {role: PoolLimits(minimum=scenario.minimum, flips=flips) for role in Role}
    limits = Limits(budget_gpus=scenario.budget, pools=pools)
    return the_law(made, SLO, limits, forecast or ForecastConfig())


def _hpa(scenario: Scenario, made: Hardware) -> Controller:
    prompts = scenario.requests.prompt_tokens.astype(np.float64)
    step = made.prefill
    busy_s = (step.fixed_s + step.each_s * prompts + step.more_s * prompts**2).sum()
    context = float(prompts.mean() + scenario.requests.output_tokens.mean() / 2)
    rows = rows_within(made.decode, SLO.gap_s - made.gap_jitter_s, context, made.rows)
    return FairHpa(scenario.budget, float(prompts.sum() / busy_s), rows)


def static_mean(scenario: Scenario, made: Hardware) -> tuple[int, int]:
    """Pools for the mean load of the whole span."""
    prompts = scenario.requests.prompt_tokens.astype(np.float64)
    outputs = scenario.requests.output_tokens
    step = made.prefill
    busy_s = (step.fixed_s + step.each_s * prompts + step.more_s * prompts**2).sum()
    context = float(prompts.mean() + outputs.mean() / 2)
    rows = rows_within(made.decode, _STEP_SHARE * SLO.gap_s, context, made.rows)
    each = decode_tokens_per_s(made.decode, rows, context)
    return (
        max(1, math.ceil(busy_s / scenario.span_s / _PREFILL_SHARE)),
        max(1, math.ceil(float(outputs.sum()) / scenario.span_s / each)),
    )


def static_peak(requests: Requests, made: Hardware) -> tuple[int, int]:
    """The smallest pools that hold the SLO for 98.5 % of the requests in the ten minutes with the
    most prompt tokens, and in those with the most answer tokens: sizes for the peak, and known
    beforehand, as no operator knows them."""
    busiest = [
        _busiest(requests, lengths) for lengths in (requests.prompt_tokens, requests.output_tokens)
    ]
    plenty = 48

    def missed(prefill: int, decode: int) -> tuple[float, float]:
        worst_first = worst_gaps = 0.0
        for part in busiest:
            config = ClusterConfig(hardware=made, slo=SLO)
            tally = Cluster(config, part, workers_of(prefill, decode)).run(_PEAK_S + 60)
            n = max(1, tally.requests)
            worst_first = max(worst_first, tally.late_first / n)
            worst_gaps = max(worst_gaps, tally.missed / n)
        return worst_first, worst_gaps

    decode = _least(lambda n: missed(plenty, n)[1] <= 1 - _PEAK_HELD, plenty)
    prefill = _least(lambda n: missed(n, decode)[1] <= 1 - _PEAK_HELD, plenty)
    return prefill, decode


def _busiest(requests: Requests, lengths: np.ndarray) -> Requests:
    """The ten minutes with the largest sum of `lengths`."""
    sums = np.bincount((requests.arrivals_s // 60).astype(np.int64), weights=lengths)
    minutes = int(_PEAK_S // 60)
    window = np.convolve(sums, np.ones(minutes), "valid") if len(sums) > minutes else sums[:1]
    begin_s = 60.0 * int(window.argmax())
    first, last = np.searchsorted(requests.arrivals_s, [begin_s, begin_s + _PEAK_S])
    return Requests(
        requests.arrivals_s[first:last] - begin_s,
        requests.prompt_tokens[first:last],
        requests.output_tokens[first:last],
    )


def _least(holds: Callable[[int], bool], most: int) -> int:
    low, high = 0, most
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


@dataclass(frozen=True, slots=True)
class Bar:
    """One condition of success: `value` must be at most `bound`. `value` is None if the contender
    that it compares with was not run: then it is not held."""

    name: str
    value: float | None
    bound: float

    @property
    def is_held(self) -> bool:
        return self.value is not None and self.value <= self.bound

    def __str__(self) -> str:
        if self.value is None:
            return f"MISSING {self.name}: not run, to be <= {self.bound:g}"
        word = "held" if self.is_held else "MISSED"
        return f"{word:7} {self.name}: {self.value:.3g} <= {self.bound:g}"


def bars(name: str, runs: Sequence[Run], budget: int) -> list[Bar]:
    """What the law must hold on that scenario, alone and against contenders."""
    by_name = {one.contender: one for one in runs}
    law = by_name["law"]
    missed = 100 * law.tally.missed_share
    found = [
        Bar("requests lost by scaling", law.tally.lost, 0),
        Bar("GPUs at most", law.tally.most_gpus, budget),
        Bar("actions in the busiest hour", law.most_actions_an_hour, 40),
    ]
    if name not in ("diurnal", "swings", "quick"):
        return found
    found.append(Bar("missed, %", missed, 1.5 if name == "diurnal" else 1.0))
    if name == "diurnal":
        peak = by_name.get("static peak")
        share = None if peak is None else law.gpu_hours / peak.gpu_hours
        found.append(Bar("GPU-hours of the static peak's", share, 0.55))
    against, most = ("fair HPA", 0.25) if name == "diurnal" else ("no flips", 0.2)
    other = by_name.get(against)
    part = None if other is None else missed / max(1e-9, 100 * other.tally.missed_share)
    found.append(Bar(f"missed, of what {against} missed", part, most))
    return found
