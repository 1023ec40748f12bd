"""When requests arrive: open loop, so no client waits for an answer before sending the next.

Each function returns n times in seconds, in order, since the start of the run. Gaps between
arrivals have mean 1 / rate; the kinds differ in their spread:

    constant   no spread            poisson   coefficient of variation 1            bursty   any
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]


def constant(rate_per_s: float, n: int) -> FloatArray:
    """One every 1 / rate seconds."""
    return np.arange(1, n + 1) / rate_per_s


def poisson(rate_per_s: float, n: int, rng: np.random.Generator) -> FloatArray:
    """Exponential gaps: arrivals of many independent users."""
    return np.cumsum(rng.exponential(1 / rate_per_s, n))


def bursty(rate_per_s: float, cv: float, n: int, rng: np.random.Generator) -> FloatArray:
    """Gamma gaps whose standard deviation is `cv` times their mean; 1 is Poisson, 2 and more are
    bursts with pauses between."""
    shape = 1 / cv**2
    return np.cumsum(rng.gamma(shape, 1 / (rate_per_s * shape), n))
