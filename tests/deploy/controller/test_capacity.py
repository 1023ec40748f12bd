"""What one worker can do, learnt from its steps."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from twolane.deploy.controller.capacity import (
    MOST_CHANGE_PER_MIN,
    PRIOR_STEPS,
    Clamped,
    LearntCost,
    StepCost,
    decode_tokens_per_s,
    prefill_tokens_per_s,
    rows_within,
)

PRIOR = StepCost(0.004, 15e-6, 28e-9)
TYPICAL = (100.0, 100_000.0)
OTHER = StepCost(0.006, 20e-6, 40e-9)


def steps(n: int, seed: int, cost: StepCost, noise: float) -> list[tuple[float, float, float]]:
    some = Random(seed)
    found: list[tuple[float, float, float]] = []
    for _ in range(n):
        rows = some.randint(10, 200)
        context = rows * some.uniform(300, 2_000)
        found.append(
            (rows, context, cost.step_s(rows, context) * some.uniform(1 - noise, 1 + noise))
        )
    return found


def test_without_a_step_the_prior_holds() -> None:
    cost = LearntCost(PRIOR, TYPICAL).cost
    assert cost.step_s(*TYPICAL) == pytest.approx(PRIOR.step_s(*TYPICAL))


def test_the_prior_is_forgotten_as_steps_come() -> None:
    learnt = LearntCost(PRIOR, TYPICAL)
    true = OTHER.step_s(*TYPICAL)
    errors = []
    for nth, step in enumerate(steps(3_000, 1, OTHER, 0.05)):
        learnt.add(*step)
        if nth + 1 in (20, PRIOR_STEPS, 500, 3_000):
            errors.append(abs(learnt.cost.step_s(*TYPICAL) / true - 1))
    assert errors == sorted(errors, reverse=True)
    assert errors[0] > 0.2, "20 steps are few beside a prior of 200"
    assert errors[1] < 0.15
    assert errors[-1] < 0.02


def test_it_agrees_with_least_squares_of_numpy() -> None:
    learnt = LearntCost(PRIOR, TYPICAL)
    seen = steps(4_000, 2, OTHER, 0.1)
    for step in seen:
        learnt.add(*step)
    last = np.array(seen[-2_000:])
    weights = 0.998 ** np.arange(len(last))[::-1] / last[:, 2] ** 2
    features = np.column_stack([np.ones(len(last)), last[:, :2]])
    scale = np.sqrt(weights)[:, None]
    best, *_ = np.linalg.lstsq(features * scale, last[:, 2] * scale[:, 0], rcond=None)
    for rows, context in ((50, 40_000), (150, 200_000)):
        expected = best @ [1, rows, context]
        assert learnt.cost.step_s(rows, context) == pytest.approx(expected, rel=0.01)


def test_it_follows_a_change_within_a_window() -> None:
    learnt = LearntCost(PRIOR, TYPICAL)
    for step in [*steps(2_000, 3, PRIOR, 0.05), *steps(1_500, 4, OTHER, 0.05)]:
        learnt.add(*step)
    assert learnt.cost.step_s(*TYPICAL) == pytest.approx(OTHER.step_s(*TYPICAL), rel=0.05)


def test_equal_steps_for_hours_do_not_blow_it_up() -> None:
    learnt = LearntCost(PRIOR, TYPICAL)
    for _ in range(50_000):
        learnt.add(*TYPICAL, PRIOR.step_s(*TYPICAL))
    learnt.add(180, 300_000, 1.5 * PRIOR.step_s(180, 300_000))
    cost = learnt.cost
    assert min(cost.fixed_s, cost.each_s, cost.more_s) >= 0
    assert cost.step_s(*TYPICAL) == pytest.approx(PRIOR.step_s(*TYPICAL), rel=0.3)


def test_a_capacity_changes_by_30_percent_a_minute_at_most() -> None:
    capacity = Clamped(1000.0)
    capacity.follow(0.0, 1000.0)
    for second in range(1, 61):
        capacity.follow(float(second), 10.0)
    assert capacity.value == pytest.approx(1000 / (1 + MOST_CHANGE_PER_MIN))
    for second in range(61, 121):
        capacity.follow(float(second), 1e9)
    assert capacity.value == pytest.approx(1000)


def test_one_odd_step_cannot_halve_the_fleet() -> None:
    learnt = LearntCost(PRIOR, TYPICAL)
    for step in steps(600, 5, PRIOR, 0.05):
        learnt.add(*step)
    capacity = Clamped(decode_tokens_per_s(learnt.cost, 100, 1000))
    before = capacity.follow(0.0, capacity.value)
    learnt.add(100, 100_000, 5.0)
    after = capacity.follow(2.0, decode_tokens_per_s(learnt.cost, 100, 1000))
    assert after > 0.98 * before


def test_rows_are_those_that_a_step_has_time_for() -> None:
    rows = rows_within(PRIOR, 0.012, 1_000, 256)
    assert PRIOR.step_s(rows, rows * 1_000) <= 0.012 < PRIOR.step_s(rows + 1, (rows + 1) * 1_000)
    assert rows_within(PRIOR, 0.012, 10, 128) == 128
    assert rows_within(PRIOR, 0.001, 1_000, 256) == 1


def test_prefill_capacity_depends_on_the_mix() -> None:
    cost = StepCost(0.001, 22e-6, 0.4e-9)
    short = prefill_tokens_per_s(cost, [100] * 10)
    usual = prefill_tokens_per_s(cost, [2_000] * 10)
    long = prefill_tokens_per_s(cost, [30_000] * 10)
    assert short < usual
    assert long < usual
    assert usual == pytest.approx(2_000 / cost.step_s(2_000, 4e6))
