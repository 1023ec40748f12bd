"""The requests of one run, decided before it starts: arrivals and lengths, all from one seed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np
import numpy.typing as npt

from benchmarks.traffic import arrivals
from benchmarks.traffic.trace import Trace
from benchmarks.traffic.workload import Workload

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

_LENGTHS, _ARRIVALS = 1, 2  # streams of the seed: other arrivals leave the lengths as they are


class ArrivalKind(StrEnum):
    CONSTANT = "constant"
    POISSON = "poisson"
    BURSTY = "bursty"
    TRACE = "trace"


class PlanError(ValueError):
    """The parts are inconsistent; the message says which."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanConfig:
    """`rate_per_s` may be None for trace arrivals only: then the trace's own speed.

    Lengths are multiplied by `scale`, then cut to fit `context_tokens`: the answer to half of it at
    most, the prompt to the rest.
    """

    arrivals: ArrivalKind = ArrivalKind.POISSON
    rate_per_s: float | None = None
    cv: float = 1.0
    n_requests: int = 300
    scale: float = 1.0
    context_tokens: int = 4_096

    def __post_init__(self) -> None:
        if self.rate_per_s is None and self.arrivals is not ArrivalKind.TRACE:
            raise PlanError(f"{self.arrivals} arrivals need a rate")
        for name in ("rate_per_s", "cv", "scale", "n_requests"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise PlanError(f"{name} is {value}; it must be above 0")
        if self.context_tokens < 2:
            raise PlanError(f"context_tokens is {self.context_tokens}; it must be at least 2")

    def within(self, context_tokens: int) -> PlanConfig:
        """The same, for a model whose context may be smaller."""
        return replace(self, context_tokens=min(self.context_tokens, context_tokens))


@dataclass(frozen=True, slots=True)
class Plan:
    """For each request: its arrival, its prompt's length, the answer length that it requests."""

    arrivals_s: FloatArray
    prompt_tokens: IntArray
    output_tokens: IntArray
    n_cut: int  # how many requests were shortened to fit the context

    def __len__(self) -> int:
        return len(self.arrivals_s)

    @property
    def span_s(self) -> float:
        """The last arrival."""
        return float(self.arrivals_s[-1])


def make_plan(workload: Workload | Trace, config: PlanConfig, seed: int) -> Plan:
    """The same arguments give the same plan. A trace gives a run of consecutive requests that
    starts where the seed says, with its own times where the arrivals are to be the trace's."""
    rng = np.random.default_rng([seed, _LENGTHS])
    n = config.n_requests
    recorded: Trace | None = None
    if isinstance(workload, Trace):
        if n > len(workload):
            raise PlanError(f"the trace has {len(workload)} requests, not {n}")
        start = int(rng.integers(0, len(workload) - n, endpoint=True))
        recorded = workload.window(start, n)
        prompt, output = recorded.prompt_tokens, recorded.output_tokens
    else:
        prompt, output = workload.prompt.draw(n, rng), workload.output.draw(n, rng)
    if config.arrivals is not ArrivalKind.TRACE:
        times_s = _draw_arrivals(config, np.random.default_rng([seed, _ARRIVALS]))
    elif isinstance(workload, Trace) and recorded is not None:
        speed = 1.0 if config.rate_per_s is None else config.rate_per_s / workload.rate_per_s
        times_s = recorded.arrivals_s / speed
    else:
        raise PlanError("trace arrivals need a trace as the workload")
    return _fit(times_s, prompt, output, config)


def _draw_arrivals(config: PlanConfig, rng: np.random.Generator) -> FloatArray:
    assert config.rate_per_s is not None, "the config's constructor saw to that"
    match config.arrivals:
        case ArrivalKind.CONSTANT:
            return arrivals.constant(config.rate_per_s, config.n_requests)
        case ArrivalKind.POISSON:
            return arrivals.poisson(config.rate_per_s, config.n_requests, rng)
        case _:
            return arrivals.bursty(config.rate_per_s, config.cv, config.n_requests, rng)


def _fit(times_s: FloatArray, prompt: IntArray, output: IntArray, config: PlanConfig) -> Plan:
    prompt = np.maximum(1, np.rint(prompt * config.scale)).astype(np.int64)
    output = np.maximum(1, np.rint(output * config.scale)).astype(np.int64)
    fit_output = np.minimum(output, config.context_tokens // 2)
    fit_prompt = np.minimum(prompt, config.context_tokens - fit_output)
    n_cut = int(((fit_prompt != prompt) | (fit_output != output)).sum())
    return Plan(times_s, fit_prompt, fit_output, n_cut)
