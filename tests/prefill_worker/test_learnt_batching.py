"""How long prefill waits for fuller steps, learnt from steps and arrivals made up for it."""

from __future__ import annotations

import pytest

from twolane.prefill_worker.batching import BatchingConfig, Patience
from twolane.prefill_worker.learnt_batching import LearntBatching

AT_ONCE = Patience(0.0)
EACH_S = 20e-6


def learnt(
    *, fixed_s: float, gap_s: float, n_tokens: int, config: BatchingConfig | None = None
) -> LearntBatching:
    """After 100 steps of 1 to 7 rows of `n_tokens`, and as many arrivals, `gap_s` apart."""
    batching = LearntBatching(config or BatchingConfig())
    now = 0.0
    for nth in range(100):
        batching.arrived(nth * gap_s)
        batching.started(n_tokens)
        in_step = n_tokens * (1 + nth % 7)
        batching.planned(in_step, now, is_alone=True)
        now += fixed_s + in_step * EACH_S
        batching.done(now)
    return batching


def test_the_cost_of_a_step_is_told_apart_from_that_of_its_tokens() -> None:
    fixed_s, each_s = learnt(fixed_s=0.005, gap_s=0.001, n_tokens=50).cost_s
    assert fixed_s == pytest.approx(0.005)
    assert each_s == pytest.approx(EACH_S)


def test_waits_for_short_prompts_that_come_close_together() -> None:
    found = learnt(fixed_s=0.0045, gap_s=0.001, n_tokens=50).patience
    assert found.window_s == pytest.approx(0.0045)
    assert found.most_rows == 1, "two rows lose 4 ms, and the step that is saved costs 3.5"
    assert learnt(fixed_s=0.0095, gap_s=0.001, n_tokens=50).patience.most_rows == 4


@pytest.mark.parametrize(
    ("fixed_s", "gap_s", "n_tokens"),
    [
        (0.001, 0.0001, 1024),  # the tokens cost more than a step without any
        (0.005, 0.006, 10),  # the next row is too far away
        (0.0, 0.0001, 10),  # steps without tokens are free
    ],
)
def test_starts_at_once_where_waiting_loses_more_than_it_saves(
    fixed_s: float, gap_s: float, n_tokens: int
) -> None:
    assert learnt(fixed_s=fixed_s, gap_s=gap_s, n_tokens=n_tokens).patience == AT_ONCE


def test_starts_at_once_before_anything_is_learnt_and_from_steps_that_are_all_alike() -> None:
    batching = LearntBatching(BatchingConfig())
    assert batching.patience == AT_ONCE
    for nth in range(50):
        batching.arrived(nth * 1e-4)
        batching.started(10)
        batching.planned(10, nth * 0.01, is_alone=True)
        batching.done(nth * 0.01 + 0.005)
    assert batching.patience == AT_ONCE


def test_the_bounds_hold_whatever_is_learnt() -> None:
    config = BatchingConfig(most_window_s=0.002, most_rows=4)
    found = learnt(fixed_s=1.0, gap_s=0.001, n_tokens=10, config=config).patience
    assert found.window_s == 0.002
    assert found.most_rows == 4


def test_steps_with_decode_rows_tell_nothing() -> None:
    batching = learnt(fixed_s=0.005, gap_s=0.001, n_tokens=50)
    before = batching.cost_s
    for nth in range(50):
        batching.planned(50, 10.0 + nth, is_alone=False)
        batching.done(10.5 + nth)
    assert batching.cost_s == before


def test_the_time_of_a_step_begins_when_the_one_before_it_ends() -> None:
    batching = LearntBatching(BatchingConfig())
    planned, done = 0.0, 0.0
    for nth in range(50):
        n_tokens = 100 + nth
        batching.planned(n_tokens, planned, is_alone=True)  # while the one before it runs
        if nth:
            batching.done(done)
        planned, done = done, done + 0.002 + n_tokens * EACH_S
    assert batching.cost_s[1] == pytest.approx(EACH_S, rel=0.05)
