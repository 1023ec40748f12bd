"""Requests to simulate: when they arrive, and how long they are."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Requests:
    """Requests in order of arrival, in seconds from 0, each with at least one token in and out."""

    arrivals_s: FloatArray
    prompt_tokens: IntArray
    output_tokens: IntArray

    def __post_init__(self) -> None:
        n = len(self.arrivals_s)
        assert n == len(self.prompt_tokens) == len(self.output_tokens)
        if n:
            assert self.arrivals_s[0] >= 0
            assert (np.diff(self.arrivals_s) >= 0).all(), "arrivals are in order"
            assert min(self.prompt_tokens.min(), self.output_tokens.min()) >= 1

    def __len__(self) -> int:
        return len(self.arrivals_s)

    @property
    def rate_per_s(self) -> float:
        """The mean rate; 0 for fewer than two requests, or if all arrive at once."""
        span_s = float(self.arrivals_s[-1] - self.arrivals_s[0]) if len(self) else 0.0
        return (len(self) - 1) / span_s if span_s > 0 else 0.0

    def first(self, n: int) -> Requests:
        """The first `n` of them, or all."""
        return Requests(self.arrivals_s[:n], self.prompt_tokens[:n], self.output_tokens[:n])

    def faster(self, factor: float) -> Requests:
        """The same requests at `factor` times the rate."""
        return Requests(self.arrivals_s / factor, self.prompt_tokens, self.output_tokens)


def poisson(
    rate_per_s: FloatArray, step_s: float, rng: np.random.Generator
) -> tuple[FloatArray, IntArray]:
    """Arrival times of a Poisson process whose rate is given for each step, and their steps."""
    counts = rng.poisson(rate_per_s * step_s)
    steps = np.repeat(np.arange(len(counts)), counts)
    arrivals_s = np.sort((steps + rng.random(len(steps))) * step_s)
    return arrivals_s, steps.astype(np.int64)


def uniform_lengths(
    arrivals_s: FloatArray, prompt: int, output: int, spread: float, rng: np.random.Generator
) -> Requests:
    """Lengths within +-`spread` of these means."""

    def draw(mean: int) -> IntArray:
        low, high = round(mean * (1 - spread)), round(mean * (1 + spread))
        return rng.integers(low, high, len(arrivals_s), endpoint=True)

    return Requests(arrivals_s, draw(prompt), draw(output))
