"""How many workers a trace needs within an SLO, split or colocated, and what they cost.

A set of workers *holds* a trace if at least `share` of its requests hold the SLO. Requests that
have no answer by the end of the trace, and could not hold the SLO any more, count as missed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice

import numpy as np

from twolane.deploy.controller.observation import Role
from twolane.deploy.controller.priors import Hardware
from twolane.deploy.simulator.cluster import Cluster, ClusterConfig, Slo
from twolane.deploy.simulator.colocated import Colocated
from twolane.deploy.simulator.requests import Requests
from twolane.deploy.simulator.workers import late_share

_STEPS = 100_000  # of a simulation, at most about
_FEW = 100  # divisions to try before the largest ones say whether any will do


class PlanError(ValueError):
    """No plan can be made. The message says why, and what would help."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """Workers, of one GPU each. Colocated ones have both roles."""

    prefill: int = 0
    decode: int = 0
    colocated: int = 0

    @property
    def gpus(self) -> int:
        return self.prefill + self.decode + self.colocated

    def __str__(self) -> str:
        if self.colocated:
            return f"{self.colocated} colocated"
        return f"{self.prefill} prefill + {self.decode} decode"


@dataclass(frozen=True, slots=True)
class Outcome:
    """`held`: share of all requests. `late_first`, `late_gaps`: shares that missed that part."""

    sizes: Sizes
    held: float
    late_first: float
    late_gaps: float


@dataclass(frozen=True, slots=True)
class Plan:
    """`split`, `colocated`: the smallest sizes that hold; None where none within the bound does.
    `tried`: all that was simulated. `hours`: the span of the trace."""

    split: Outcome | None
    colocated: Outcome | None
    tried: tuple[Outcome, ...]
    hours: float


def simulate(requests: Requests, sizes: Sizes, hardware: Hardware, slo: Slo) -> Outcome:
    """Simulate the requests on these workers."""
    if sizes.colocated:
        return _colocated(requests, sizes, hardware, slo)
    dt_s = min(0.25, max(0.02, _end_s(requests) / _STEPS))
    config = ClusterConfig(hardware=hardware, slo=slo, dt_s=dt_s)
    roles = [frozenset({Role.PREFILL})] * sizes.prefill + [frozenset({Role.DECODE})] * sizes.decode
    cluster = Cluster(config, requests, roles)
    tally = cluster.run(_end_s(requests))
    n = max(1, tally.requests)
    return Outcome(sizes, 1 - tally.missed / n, tally.late_first / n, tally.late_gaps / n)


def _end_s(requests: Requests) -> float:
    """How long to simulate: the arrivals, and time for the last answers. What is still queued then
    has missed."""
    return float(requests.arrivals_s[-1]) + 60.0


def _colocated(requests: Requests, sizes: Sizes, hardware: Hardware, slo: Slo) -> Outcome:
    """Each request goes to the worker with the least to do: prompts first, then requests."""
    workers = [Colocated(hardware, slo.gap_s) for _ in range(sizes.colocated)]
    n = len(requests)
    first_s, late, done_s = [math.inf] * n, [0.0] * n, [math.inf] * n
    prompts, outputs = requests.prompt_tokens.tolist(), requests.output_tokens.tolist()
    for index, at_s in enumerate(requests.arrivals_s.tolist()):
        for worker in workers:
            worker.run_until(at_s, first_s, late, done_s)
        chosen = min(workers, key=lambda worker: (worker.backlog, worker.load))
        chosen.add(at_s, index, prompts[index], outputs[index])
    for worker in workers:
        worker.run_until(_end_s(requests), first_s, late, done_s)
    ttft = np.array(first_s) - requests.arrivals_s + hardware.first_token_s
    late_first = ttft > slo.ttft_s
    late_gaps = np.array(late) > 0.01 * requests.output_tokens
    late_gaps |= np.isinf(done_s)
    missed = late_first | late_gaps
    return Outcome(
        sizes, 1 - float(missed.mean()), float(late_first.mean()), float(late_gaps.mean())
    )


def make_plan(
    requests: Requests, hardware: Hardware, slo: Slo, *, share: float = 0.9, most_gpus: int = 64
) -> Plan:
    """The smallest split and colocated sets of workers that hold the trace.

    Raises `PlanError` if a request fits into no worker, or no set of `most_gpus` holds it; at once
    if none of any size does.
    """
    check(requests, hardware)
    check_alone(requests, hardware, slo, share)
    tried: dict[Sizes, Outcome] = {}

    def holds(sizes: Sizes) -> bool:
        if sizes not in tried:
            tried[sizes] = simulate(requests, sizes, hardware, slo)
        return tried[sizes].held >= share

    split = _smallest_split(requests, hardware, holds, most_gpus)
    bound = split.gpus * 2 if split else most_gpus
    colocated = _smallest((Sizes(colocated=n) for n in range(1, min(bound, most_gpus) + 1)), holds)
    hours = max(float(requests.arrivals_s[-1]), 1.0) / 3600
    if split is None and colocated is None:
        best = max(tried.values(), key=lambda outcome: outcome.held)
        raise PlanError(
            f"no set of up to {most_gpus} workers holds the SLO for {share:.0%} of the requests: "
            f"{best.sizes} hold it for {best.held:.1%} ({best.late_first:.1%} have a late first "
            f"token, {best.late_gaps:.1%} late gaps)"
        )
    return Plan(
        tried[split] if split else None,
        tried[colocated] if colocated else None,
        tuple(tried.values()),
        hours,
    )


def _smallest_split(
    requests: Requests, hardware: Hardware, holds: Callable[[Sizes], bool], most_gpus: int
) -> Sizes | None:
    """Tries each total of both pools, from the least that the mean load needs. More workers hold
    more: if none of the largest divisions holds, no smaller one does."""
    prompts = requests.prompt_tokens.astype(np.float64)
    cost = hardware.prefill
    work_s = (cost.fixed_s + cost.each_s * prompts + cost.more_s * prompts**2).sum()
    span_s = float(requests.arrivals_s[-1]) + 1.0
    least_prefill = max(1, math.ceil(work_s / (span_s + 60)))
    context = float(prompts.mean() + requests.output_tokens.mean() / 2)
    fullest = hardware.rows / hardware.decode.step_s(hardware.rows, hardware.rows * context)
    least_decode = max(1, math.ceil(requests.output_tokens.sum() / (span_s + 60) / fullest))
    least = least_prefill + least_decode

    def divisions(gpus: int) -> list[Sizes]:
        prefills = range(least_prefill, gpus - least_decode + 1)
        return [Sizes(prefill=n, decode=gpus - n) for n in prefills]

    sizes = (one for gpus in range(least, most_gpus + 1) for one in divisions(gpus))
    if (found := _smallest(islice(sizes, _FEW), holds)) is not None:
        return found
    likely = sorted(
        divisions(most_gpus), key=lambda one: abs(one.prefill * least - least_prefill * one.gpus)
    )
    return _smallest(sizes, holds) if _smallest(iter(likely), holds) is not None else None


def _smallest(sizes: Iterator[Sizes], holds: Callable[[Sizes], bool]) -> Sizes | None:
    return next((one for one in sizes if holds(one)), None)


def highest_rate(
    requests: Requests, sizes: Sizes, hardware: Hardware, slo: Slo, *, share: float = 0.9,
    tolerance: float = 0.01,
) -> float:  # fmt: skip
    """Requests per second at which those workers still hold the trace, played faster or slower.
    0 if they do not even at a hundredth of the trace's own rate. Raises `PlanError`, also
    if they do not at any rate."""
    check(requests, hardware)
    check_alone(requests, hardware, slo, share)
    if requests.rate_per_s == 0:
        raise PlanError("the trace has one request, or all at once: it has no rate to change")

    def holds(factor: float) -> bool:
        return simulate(requests.faster(factor), sizes, hardware, slo).held >= share

    low, high = 0.0, 0.0
    factor = 1.0
    while not low or not high:
        if holds(factor):
            low, factor = factor, factor * 2
        else:
            high, factor = factor, factor / 2
        if factor < 0.01:
            return 0.0
        if factor > 10_000:
            raise PlanError("no rate is too high for these workers: the trace is too short")
    while high / low > 1 + tolerance:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low * requests.rate_per_s


def check(requests: Requests, hardware: Hardware) -> None:
    """Raises `PlanError` if a request could never be served."""
    totals = requests.prompt_tokens + requests.output_tokens
    if int(totals.max()) > hardware.kv_tokens:
        nth = int(totals.argmax())
        raise PlanError(
            f"request {nth + 1} has {int(totals[nth]):,} tokens, and one {hardware.gpu} has room "
            f"for {hardware.kv_tokens:,}"
        )


def check_alone(requests: Requests, hardware: Hardware, slo: Slo, share: float) -> None:
    """Raises `PlanError` if too few requests would hold the SLO even if each were alone on idle
    workers: more of these would not help."""
    prompts, nth = np.unique(requests.prompt_tokens, return_inverse=True)
    alone = [
        (hardware.prefill.step_s(n, n**2), hardware.decode.step_s(1, n)) for n in prompts.tolist()
    ]
    first_s, step_s = np.array(alone)[nth].T
    first_s += hardware.first_token_s
    late = np.array([late_share(one, slo.gap_s, hardware) for _, one in alone])[nth]
    late_first = first_s > slo.ttft_s
    late_gaps = late * (requests.output_tokens - 1) > 0.01 * requests.output_tokens
    held = 1 - float((late_first | late_gaps).mean())
    if held >= share:
        return
    why = [
        f"{missed.mean():.1%} have {what}, of {1e3 * np.median(took[missed]):.3g} ms in the median"
        for missed, what, took in (
            (late_first, "too long a time to first token", first_s),
            (late_gaps, "too long gaps", step_s + hardware.gap_jitter_s),
        )
        if missed.any()
    ]
    raise PlanError(
        f"no number of workers on {hardware.gpu} holds the SLO for {share:.0%} of the requests: "
        f"even alone on idle workers {held:.1%} hold it ({'; '.join(why)})"
    )
