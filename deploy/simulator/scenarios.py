"""The simulated scenarios: named traces, each from a seed, with those used for tuning marked.

    diurnal     24 h around 66 requests/s with 8 bursts that come within 20 s, every second one of
                long prompts
    swings      6 h in which long prompts and long answers take turns each half hour
    quick       the same each 20 minutes
    azure-conv, azure-code     the arrivals and lengths of Azure's traces of 2023, more of them
    zero        work, two hours without, work again
    failing     a burst whose first three starts never get ready

The constants of the law were chosen on `TUNING` alone. `HELD_OUT` was simulated after that, and is
what results report.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import resources

import numpy as np

from twolane.deploy.simulator.requests import FloatArray, IntArray, Requests, poisson
from twolane.deploy.simulator.trace_file import parse_trace

HOUR_S = 3600.0
_STEP_S = 0.5
_LONGEST = 8_192

TUNING: tuple[tuple[str, int], ...] = (
    ("diurnal", 1), ("diurnal", 2), ("diurnal", 3), ("diurnal", 7), ("diurnal", 11),
    ("diurnal", 12), ("diurnal", 31), ("diurnal", 32), ("swings", 1),
    ("azure-code", 1), ("azure-code", 2), ("azure-code", 3),
)  # fmt: skip
HELD_OUT: tuple[tuple[str, int], ...] = (
    ("failing", 31), ("zero", 31), ("azure-conv", 31), ("azure-code", 31), ("swings", 31),
    ("quick", 31), ("diurnal", 41), ("diurnal", 42),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Scenario:
    """`budget`: GPUs. `prefill`, `decode`: workers at the start. `minimum`: of each pool."""

    requests: Requests
    span_s: float
    budget: int
    prefill: int
    decode: int
    minimum: int = 1
    failing: frozenset[int] = frozenset()


def scenario(name: str, seed: int) -> Scenario:
    return SCENARIOS[name](np.random.default_rng(seed))


def _lengths(is_long: np.ndarray, rng: np.random.Generator) -> tuple[IntArray, IntArray]:
    """Long prompts with short answers, or the opposite; log-normal."""
    n = len(is_long)
    prompts = np.where(is_long, rng.lognormal(np.log(6000) - 0.125, 0.5, n),
                       rng.lognormal(np.log(1000) - 0.32, 0.8, n))  # fmt: skip
    outputs = np.where(is_long, rng.lognormal(np.log(100) - 0.125, 0.5, n),
                       rng.lognormal(np.log(400) - 0.32, 0.8, n))  # fmt: skip
    return (
        prompts.clip(16, _LONGEST).astype(np.int64),
        outputs.clip(2, 2_000).astype(np.int64),
    )


def _requests(rate: FloatArray, mix: FloatArray, rng: np.random.Generator) -> Requests:
    """`mix`: the share of long prompts in each step."""
    arrivals_s, steps = poisson(rate, _STEP_S, rng)
    return Requests(arrivals_s, *_lengths(rng.random(len(steps)) < mix[steps], rng))


def _diurnal(rng: np.random.Generator) -> Scenario:
    span_s = 24 * HOUR_S
    at_s = np.arange(int(span_s / _STEP_S)) * _STEP_S
    wave = np.sin(2 * np.pi * (at_s / span_s - 0.25))
    rate, mix = 66 + 54 * wave, 0.22 - 0.17 * wave
    for nth in range(8):
        begin, length = rng.uniform(HOUR_S, 23 * HOUR_S), rng.uniform(300, 900)
        inside = (at_s > begin) & (at_s < begin + length)
        rate[inside] *= 1 + 0.8 * np.minimum(1, (at_s[inside] - begin) / 20)
        if nth % 2:
            mix[inside] = np.minimum(0.5, mix[inside] + 0.25)
    return Scenario(_requests(rate, mix, rng), span_s, 24, 4, 4)


def _swinging(period_s: float) -> Callable[[np.random.Generator], Scenario]:
    def make(rng: np.random.Generator) -> Scenario:
        span_s = 6 * HOUR_S
        at_s = np.arange(int(span_s / _STEP_S)) * _STEP_S
        into = np.clip((at_s % period_s) / 60, 0, 1)
        is_odd = (at_s // period_s) % 2 == 1
        mix = np.where(is_odd, 0.05 + 0.45 * into, 0.5 - 0.45 * into)
        rate = 1.3 * np.where(is_odd, 110 - 60 * into, 50 + 60 * into)
        return Scenario(_requests(rate, mix, rng), span_s, 12, 6, 6)

    return make


def _azure(name: str, factor: int) -> Callable[[np.random.Generator], Scenario]:
    """`factor` copies of the trace, each shifted around by a random time: more requests of the
    same shape."""

    def make(rng: np.random.Generator) -> Scenario:
        data = resources.files(__package__) / "data" / f"azure_llm_2023_{name}.csv.gz"
        trace = parse_trace(data.read_bytes(), data.name)
        span_s = float(trace.arrivals_s[-1]) + 1
        shifts = rng.uniform(0, 60, factor)
        arrivals_s = np.concatenate([(trace.arrivals_s + shift) % span_s for shift in shifts])
        order = np.argsort(arrivals_s)
        return Scenario(
            Requests(
                arrivals_s[order],
                np.tile(trace.prompt_tokens, factor)[order].clip(1, _LONGEST),
                np.tile(trace.output_tokens, factor)[order],
            ),
            span_s, 12, 2, 2,
        )  # fmt: skip

    return make


def _zero(rng: np.random.Generator) -> Scenario:
    span_s = 4 * HOUR_S
    at_s = np.arange(int(span_s / _STEP_S)) * _STEP_S
    rate = np.where((at_s < HOUR_S) | (at_s > 3 * HOUR_S), 20.0, 0.0)
    return Scenario(_requests(rate, np.full(len(rate), 0.2), rng), span_s, 8, 1, 1, minimum=0)


def _failing(rng: np.random.Generator) -> Scenario:
    span_s = 2 * HOUR_S
    at_s = np.arange(int(span_s / _STEP_S)) * _STEP_S
    rate = np.where((at_s > 1200) & (at_s < 5400), 60.0, 25.0)
    mix = np.full(len(rate), 0.2)
    return Scenario(_requests(rate, mix, rng), span_s, 12, 3, 3, failing=frozenset({0, 1, 2}))


SCENARIOS: Mapping[str, Callable[[np.random.Generator], Scenario]] = {
    "diurnal": _diurnal,
    "swings": _swinging(1800.0),
    "quick": _swinging(1200.0),
    "azure-conv": _azure("conv", 6),
    "azure-code": _azure("code", 8),
    "zero": _zero,
    "failing": _failing,
}
