"""The pace of a worker, as its load tells it."""

from __future__ import annotations

import pytest

from twolane.worker.steps.pace import Pace


def test_tokens_of_prompts_and_answers_are_told_apart_over_ten_seconds() -> None:
    pace = Pace()
    for second in range(10):
        pace.note_tokens([1, 1, 1, 50], 100.0 + second)
        pace.note_tokens([1], 100.5 + second)
    assert pace.tokens_per_s(110.0) == (50.0, 4.0)
    assert pace.tokens_per_s(115.9) == (25.0, 2.0)
    assert pace.tokens_per_s(140.0) == (0.0, 0.0)


def test_one_slow_step_of_a_hundred_is_in_the_99th_percentile_alone() -> None:
    pace = Pace()
    assert pace.quantiles_s() == (0.0, 0.0)
    for n in range(100):
        pace.note_step(1.0 if n in (50, 60) else 0.01)
    assert pace.quantiles_s() == (0.01, 1.0)


def test_old_steps_are_forgotten() -> None:
    pace = Pace()
    pace.note_step(9.0)
    for _ in range(300):
        pace.note_step(0.02)
    assert pace.quantiles_s() == pytest.approx((0.02, 0.02))
