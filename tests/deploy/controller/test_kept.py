"""How long a pool is kept at the largest need of late."""

from __future__ import annotations

import pytest

from twolane.deploy.controller.kept import Kept


def burst(kept: Kept, at_s: float, workers: int = 5) -> None:
    """One look with a need of so many, and 2 s later one of 1."""
    kept.add(at_s, workers)
    kept.add(at_s + 2, 1)


def test_the_largest_need_of_the_last_minutes_is_kept() -> None:
    kept = Kept(240.0, 900.0)
    burst(kept, 0.0)
    assert kept.add(240.0, 1) == 5
    assert kept.add(241.0, 1) == 1


def test_a_need_that_comes_back_after_the_workers_went_is_kept_longer_the_next_time() -> None:
    kept = Kept(240.0, 900.0)
    burst(kept, 0.0)
    assert kept.add(299.0, 1) == 1
    burst(kept, 300.0)
    assert kept.kept_s == pytest.approx(360.0, abs=1.0)
    assert kept.add(640.0, 1) == 5
    assert kept.add(665.0, 1) == 1


def test_a_smaller_need_that_comes_back_counts_and_a_larger_one_does_not() -> None:
    kept = Kept(240.0, 900.0)
    burst(kept, 0.0)
    burst(kept, 400.0, workers=6)
    assert kept.kept_s == 240.0, "it was never that large: nothing that was kept would have helped"
    burst(kept, 800.0, workers=3)
    assert kept.kept_s == pytest.approx(480.0, abs=2.0)


def test_it_is_bounded_and_forgotten_within_hours() -> None:
    kept = Kept(240.0, 900.0)
    burst(kept, 0.0)
    burst(kept, 890.0)
    assert kept.kept_s == pytest.approx(900.0, abs=1.0)
    for second in range(1000, 1000 + 4 * 3600, 2):
        kept.add(second, 1)
    assert kept.kept_s == pytest.approx(240.0, rel=0.06)
    burst(kept, 20_000.0)
    burst(kept, 21_000.0)
    assert kept.kept_s < 260, "that long ago is no return"
