"""From when on a step that is under way is late."""

from __future__ import annotations

import pytest

from engine.step import Page, RowWork
from twolane.params import SamplingParams
from worker.config import StepWatchConfig
from worker.step_watch import StepWatch

CONFIG = StepWatchConfig(late_s=5.0, late_factor=20.0, first_late_s=60.0)


def rows(*n_new: int) -> list[RowWork]:
    return [
        RowWork(
            row=i,
            token_ids=[0] * n,
            start=0,
            n_new=n,
            pages=[Page(0)],
            n_prompt=n,
            params=SamplingParams(),
            sample=True,
        )
        for i, n in enumerate(n_new)
    ]


def after(*took_s: float) -> StepWatch:
    """Steps of one decoding row that took so long, then another at time 0."""
    watch, begun = StepWatch(CONFIG), -sum(took_s)
    for seconds in took_s:
        watch.begin(rows(1), begun)
        begun += seconds
        watch.end(begun)
    watch.begin(rows(1), 0.0)
    return watch


def test_worker_that_rests_is_never_late() -> None:
    assert StepWatch(CONFIG).age_s(1000.0) == 0.0
    assert not StepWatch(CONFIG).is_late(1000.0)


def test_quick_steps_are_late_after_the_least_time_and_slow_ones_by_their_average() -> None:
    assert not after(0.01).is_late(4.9)
    assert after(0.01).is_late(5.1)
    assert not after(2.0, 2.0).is_late(39.0)
    assert after(2.0, 2.0).is_late(41.0)


def test_first_step_of_each_kind_has_more_time() -> None:
    watch, now = after(0.01), 0.01
    watch.end(now)
    for work in (rows(7), rows(1, 7)):
        watch.begin(work, now)
        assert not watch.is_late(now + 59.0)
        assert watch.is_late(now + 61.0)
        watch.end(now + 0.01)
        watch.begin(work, now + 0.01)
        assert watch.is_late(now + 6.0)
        now += 0.02
        watch.end(now)


def test_step_that_was_submitted_ahead_is_as_old_as_the_end_of_the_one_before_it() -> None:
    watch = after(0.01)
    watch.begin(rows(1), 0.1)
    assert watch.age_s(1.0) == 1.0
    assert watch.end(4.0) == pytest.approx(4.0)
    assert watch.age_s(6.0) == pytest.approx(2.0)
