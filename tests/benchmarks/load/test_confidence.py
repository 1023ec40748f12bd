import numpy as np
import pytest

from benchmarks.load.confidence import bootstrap_ratio, wilson


@pytest.mark.parametrize(
    ("held", "n", "interval"),
    [
        # R: prop.test(held, n, correct = FALSE)$conf.int
        (90, 100, (0.8256343, 0.9447708)),
        (0, 10, (0.0, 0.2775328)),
        (270, 300, (0.8608984, 0.9290160)),
    ],
)
def test_wilsons_interval_is_that_of_the_books(
    held: int, n: int, interval: tuple[float, float]
) -> None:
    assert wilson(held, n) == pytest.approx(interval, abs=1e-4)


def test_nothing_measured_is_nothing_known() -> None:
    assert wilson(0, 0) == (0.0, 1.0)


def test_the_interval_of_a_ratio_holds_the_true_one_and_shrinks_with_more_pairs() -> None:
    rng = np.random.default_rng(1)
    widths = []
    for n in (20, 500):
        base = rng.normal(100, 5, n)
        found = bootstrap_ratio(base * 1.05 + rng.normal(0, 1, n), base)
        assert found is not None
        low, high = found
        assert low < 1.05 < high
        widths.append(high - low)
    assert widths[1] < widths[0] / 3


def test_values_without_partners_are_refused() -> None:
    with pytest.raises(ValueError, match="no pairs"):
        bootstrap_ratio(np.ones(3), np.ones(4))


def test_nothing_is_so_many_times_a_median_that_may_be_zero() -> None:
    assert bootstrap_ratio(np.ones(4), np.zeros(4)) is None
    assert bootstrap_ratio(np.ones(4), np.array([0.0, 0.0, 1.0, 1.0])) is None
