"""A load measurement: every load with every seed on every target, and its results.

    for each rate: for each seed: for each target, in turn (or all at once): one run

In turn, the order of the targets is reversed with every other seed, so that a machine that drifts
(heat, neighbours) favours no target. All targets see the same arrivals, lengths and prompts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from rich.console import Console

from benchmarks.load.client_processes import ClientProcessesConfig, run_plan
from benchmarks.load.compare import columns
from benchmarks.load.progress import RunProgress
from benchmarks.load.record import Record, Slo
from benchmarks.load.summary import (
    Point,
    Run,
    all_gaps_s,
    failures,
    held_by_seed,
    measure,
    served_rate,
)
from benchmarks.load.target import Target
from benchmarks.traffic.plan import ArrivalKind, PlanConfig, make_plan
from benchmarks.traffic.trace import Trace
from benchmarks.traffic.workload import Workload

Points = Mapping[str, Mapping[str, Point]]  # by load, by target

_WARM_UP_REQUESTS, _WARM_UP_PER_S = 8, 20.0
_WARM_UP_SEED = 0x57A47  # no run's seed, so that its prompts warm no prefix cache
_GAP_QUANTILES = np.linspace(0, 1, 201)


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepConfig:
    """What to measure. A rate of None is the trace's own speed."""

    rates_per_s: Sequence[float | None]
    seeds: Sequence[int]
    at_once: bool = False
    plan: PlanConfig
    crew: ClientProcessesConfig = field(default_factory=ClientProcessesConfig)
    slo: Slo

    def plan_at(self, rate_per_s: float | None) -> PlanConfig:
        return replace(self.plan, rate_per_s=rate_per_s)


def name_load(rate_per_s: float | None) -> str:
    """The name of a load in tables, plots and results."""
    return "trace speed" if rate_per_s is None else f"{rate_per_s:g}/s"


async def sweep(
    workload: Workload | Trace, targets: Sequence[Target], config: SweepConfig, console: Console
) -> Points:
    """Run all of it. Raises `ClientDiedError`; a request's failure is a record, not an error."""
    await warm_up(workload, targets, config.plan, config.crew)
    runs: dict[str, dict[str, list[Run]]] = {}
    for number, rate_per_s in enumerate(config.rates_per_s):
        load = name_load(rate_per_s)
        by_target = runs[load] = {target.name: [] for target in targets}
        for turn, seed in enumerate(config.seeds):
            plan = make_plan(workload, config.plan_at(rate_per_s), seed)
            if plan.n_cut:
                console.print(f"{load}, seed {seed}: {plan.n_cut} requests cut to fit the context")
            for group in _groups(targets, turn, at_once=config.at_once):
                names = " + ".join(target.name for target in group)
                title = f"{load} seed {seed} {names}"
                with RunProgress(title, len(plan) * len(group), config.slo, console) as progress:

                    def note(_: str, record: Record, progress: RunProgress = progress) -> None:
                        progress.note(record)

                    prompts = (seed, number)  # never the same twice: they would be cached
                    records_of = await run_plan(plan, prompts, group, config.crew, note)
                for name, records in records_of.items():
                    by_target[name].append(Run(seed, plan.span_s, records))
    return {
        load: {name: Point(some) for name, some in by_target.items()}
        for load, by_target in runs.items()
    }


def figures(points: Points, config: SweepConfig) -> dict[str, Any]:
    """The content of the saved result: figures, distributions, one line per request."""
    return {
        "loads": {
            load: {name: _figures_of(point, config.slo) for name, point in by_target.items()}
            for load, by_target in points.items()
        },
        "served_rate_per_s": served_rates(points, config),
    }


def served_rates(points: Points, config: SweepConfig) -> dict[str, float | None]:
    """By target, the highest measured rate that meets the SLO; None if even the lowest does not."""
    names = next(iter(points.values())).keys()
    shares: dict[str, dict[float, float]] = {name: {} for name in names}
    for rate_per_s in config.rates_per_s:
        if rate_per_s is None:
            continue
        for name, point in points[name_load(rate_per_s)].items():
            share = measure(point, config.slo)["held_share"]
            assert share is not None, "a share of all requests always exists"
            shares[name][rate_per_s] = share
    return {name: served_rate(held_at) for name, held_at in shares.items()}


def _figures_of(point: Point, slo: Slo) -> dict[str, Any]:
    gaps_ms = all_gaps_s(point.records) * 1e3
    quantiles = np.quantile(gaps_ms, _GAP_QUANTILES) if len(gaps_ms) else np.empty(0)
    return {
        "figures": {name: _six_digits(value) for name, value in measure(point, slo).items()},
        "held_share_by_seed": held_by_seed(point, slo),
        "failures": failures(point),
        "gap_ms_quantiles_0_to_1": [round(float(value), 3) for value in quantiles],
        "requests": columns([_line(run.seed, r) for run in point.runs for r in run.records]),
    }


def _line(seed: int, record: Record) -> dict[str, object]:
    return {
        "seed": seed,
        "index": record.index,
        "arrival_ms": round(record.arrival_s * 1e3, 1),
        "late_ms": round(record.late_s * 1e3, 2),
        "prompt_tokens": record.prompt_tokens,
        "output_tokens": record.output_tokens,
        "ttft_ms": None if record.ttft_s is None else round(record.ttft_s * 1e3, 2),
        "tpot_ms": None if record.tpot_s is None else round(record.tpot_s * 1e3, 3),
        "gap_p99_ms": round(record.gap_p99_s * 1e3, 2),
        "failure": record.failure,
    }


def _six_digits(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.6g}")


def _groups(targets: Sequence[Target], turn: int, *, at_once: bool) -> list[list[Target]]:
    if at_once:
        return [list(targets)]
    return [[target] for target in (targets if turn % 2 == 0 else reversed(targets))]


async def warm_up(
    workload: Workload | Trace,
    targets: Sequence[Target],
    plan: PlanConfig,
    crew: ClientProcessesConfig,
    turn: int = 0,
) -> None:
    """A few requests to each target, one target after the other; other prompts each turn."""
    sizes = replace(
        plan,
        arrivals=ArrivalKind.CONSTANT,
        rate_per_s=_WARM_UP_PER_S,
        n_requests=min(_WARM_UP_REQUESTS, plan.n_requests),
    )
    for target in targets:
        made = make_plan(workload, sizes, _WARM_UP_SEED)
        await run_plan(made, [_WARM_UP_SEED + turn], [target], crew, lambda *_: None)
