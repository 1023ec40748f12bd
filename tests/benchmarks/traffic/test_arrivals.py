import numpy as np
import pytest

from benchmarks.traffic import arrivals


def _gaps(times_s: np.ndarray) -> np.ndarray:
    return np.diff(times_s, prepend=0.0)


@pytest.mark.parametrize("rate_per_s", [0.5, 20.0])
def test_poisson_gaps_have_the_asked_mean_and_spread(rate_per_s: float) -> None:
    gaps = _gaps(arrivals.poisson(rate_per_s, 50_000, np.random.default_rng(1)))
    assert gaps.mean() == pytest.approx(1 / rate_per_s, rel=0.02)
    assert gaps.std() / gaps.mean() == pytest.approx(1, rel=0.02)
    # Exponential, not only of the same moments: a share e^-1 of gaps is above the mean.
    assert (gaps > gaps.mean()).mean() == pytest.approx(np.exp(-1), abs=0.01)


@pytest.mark.parametrize("cv", [0.5, 1.0, 3.0])
def test_bursty_gaps_have_the_asked_coefficient_of_variation(cv: float) -> None:
    gaps = _gaps(arrivals.bursty(8.0, cv, 200_000, np.random.default_rng(2)))
    assert gaps.mean() == pytest.approx(1 / 8, rel=0.03)
    assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.03)


def test_constant_arrivals_are_evenly_spaced() -> None:
    assert arrivals.constant(4.0, 3).tolist() == [0.25, 0.5, 0.75]


def test_arrivals_are_in_order_and_depend_on_the_seed_alone() -> None:
    draw = [arrivals.bursty(5.0, 4.0, 100, np.random.default_rng(seed)) for seed in (7, 7, 8)]
    assert (draw[0] == draw[1]).all()
    assert (draw[0] != draw[2]).any()
    assert (np.diff(draw[0]) >= 0).all()
