"""How far a measured figure may be from the true one."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
Interval = tuple[float, float]

_Z_95 = 1.959964
_RESAMPLES = 10_000


def wilson(held: int, n: int, z: float = _Z_95) -> Interval:
    """The Wilson score interval of a share, 95 % by default; (0, 1) for n = 0.

    Requests of one run are not independent, so the true interval is a little wider.
    """
    if n == 0:
        return 0.0, 1.0
    share = held / n
    scale = 1 + z**2 / n
    middle = (share + z**2 / (2 * n)) / scale
    half = z * math.sqrt(share * (1 - share) / n + z**2 / (4 * n**2)) / scale
    return (middle - half if held else 0.0), (middle + half if held < n else 1.0)


def bootstrap_ratio(values: FloatArray, base: FloatArray, *, seed: int = 0) -> Interval | None:
    """95 % interval of median(values) / median(base), where values[i] and base[i] belong together:
    pairs are resampled. None if the base's median may be 0."""
    if len(values) != len(base) or not len(values):
        raise ValueError(f"{len(values)} values and {len(base)} bases are no pairs")
    rng = np.random.default_rng(seed)
    picks = rng.integers(0, len(values), (_RESAMPLES, len(values)))
    bases = np.median(base[picks], axis=1)
    if not bases.all():
        return None
    ratios = np.median(values[picks], axis=1) / bases
    low, high = np.quantile(ratios, (0.025, 0.975))
    return float(low), float(high)


def bootstrap_median(values: FloatArray, *, seed: int = 0) -> Interval:
    """95 % interval of median(values)."""
    found = bootstrap_ratio(values, np.ones(len(values)), seed=seed)
    assert found is not None, "no base is 0"
    return found
