"""Lengths of prompts and answers: the named workloads, and how to define others.

chat, code, summarise   the lengths of the DistServe paper's workloads, as log-normals and
                        uniforms with its means; the spread of each is ours
balanced                1,024 in, 512 out, each ± 20 %
azure-code, azure-conv  the bundled traces (workloads/README.md)
1024x128                every prompt 1,024 tokens, every answer 128
a path                  a trace file in either format of `benchmarks.traffic.trace`
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist
from typing import Protocol

import numpy as np
import numpy.typing as npt

from benchmarks.traffic.trace import BUNDLED, Trace, read_trace

IntArray = npt.NDArray[np.int64]


class Spread(Protocol):
    """A distribution of lengths in tokens."""

    def draw(self, n: int, rng: np.random.Generator) -> IntArray: ...


@dataclass(frozen=True, slots=True)
class LogNormal:
    """min(cap, log-normal), its median chosen so that the mean after capping is `mean`."""

    mean: float
    sigma: float
    cap: int

    def draw(self, n: int, rng: np.random.Generator) -> IntArray:
        lengths = np.minimum(rng.lognormal(self._mu(), self.sigma, n), self.cap)
        return np.maximum(1, np.rint(lengths)).astype(np.int64)

    def _mu(self) -> float:
        """By bisection: the mean after capping grows with mu."""
        low, high = 0.0, math.log(self.cap) + 4 * self.sigma
        for _ in range(60):
            mu = (low + high) / 2
            low, high = (mu, high) if self._capped_mean(mu) < self.mean else (low, mu)
        return low

    def _capped_mean(self, mu: float) -> float:
        below = NormalDist().cdf
        z = (math.log(self.cap) - mu) / self.sigma
        uncapped = math.exp(mu + self.sigma**2 / 2) * below(z - self.sigma)
        return uncapped + self.cap * (1 - below(z))


@dataclass(frozen=True, slots=True)
class Uniform:
    """Whole numbers from low to high, both included."""

    low: int
    high: int

    def draw(self, n: int, rng: np.random.Generator) -> IntArray:
        return rng.integers(self.low, self.high, n, endpoint=True)


@dataclass(frozen=True, slots=True)
class Workload:
    """Lengths drawn independently of each other and of the arrivals."""

    prompt: Spread
    output: Spread


WORKLOADS: Mapping[str, Workload] = {
    "chat": Workload(LogNormal(755, 0.7, 2_048), LogNormal(200, 1.0, 2_048)),
    "code": Workload(LogNormal(171, 0.5, 2_048), LogNormal(98, 0.4, 1_024)),
    "summarise": Workload(Uniform(1_900, 2_048), LogNormal(91, 0.7, 1_024)),
    "balanced": Workload(Uniform(820, 1_228), Uniform(410, 614)),
}
TRACES: Mapping[str, Path] = {
    "azure-code": BUNDLED / "azure_llm_2023_code.csv.gz",
    "azure-conv": BUNDLED / "azure_llm_2023_conv.csv.gz",
}


class UnknownWorkloadError(ValueError):
    """Neither a name, nor INxOUT, nor a trace file."""


def find_workload(name: str) -> Workload | Trace:
    """See the module's docstring for the names. Raises `UnknownWorkloadError`, `TraceError`."""
    if name in WORKLOADS:
        return WORKLOADS[name]
    if fixed := re.fullmatch(r"(\d+)x(\d+)", name):
        n_prompt, n_output = int(fixed[1]), int(fixed[2])
        if n_prompt and n_output:
            return Workload(Uniform(n_prompt, n_prompt), Uniform(n_output, n_output))
    path = TRACES.get(name, Path(name))
    if not path.is_file():
        known = ", ".join([*WORKLOADS, *TRACES])
        raise UnknownWorkloadError(f"{name!r} is none of {known}, INxOUT, or a trace file")
    return read_trace(path)
