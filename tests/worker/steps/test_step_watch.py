"""From when on a step that is under way is late."""

from __future__ import annotations

import pytest

from twolane.engine.step import Page, RowWork
from twolane.params import SamplingParams
from twolane.worker.config import StepWatchConfig
from twolane.worker.steps.step_watch import StepWatch

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


def is_late(watch: StepWatch, since_s: float, seconds: float) -> bool:
    """So long after `since_s`, when it was looked at ten times a second."""
    for i in range(round(10 * seconds)):
        watch.look(since_s + i / 10)
    return watch.is_late(since_s + seconds)


def test_worker_that_rests_is_never_late() -> None:
    assert StepWatch(CONFIG).age_s(1000.0) == 0.0
    assert not StepWatch(CONFIG).is_late(1000.0)


def test_quick_steps_are_late_after_the_least_time_and_slow_ones_by_their_average() -> None:
    assert not is_late(after(0.01), 0.0, 4.9)
    assert is_late(after(0.01), 0.0, 5.1)
    assert not is_late(after(2.0, 2.0), 0.0, 39.0)
    assert is_late(after(2.0, 2.0), 0.0, 41.0)


def test_first_step_of_each_kind_has_more_time() -> None:
    watch, now = after(0.01), 0.01
    watch.end(now)
    for work in (rows(7), rows(1, 7)):
        watch.begin(work, now)
        assert not is_late(watch, now, 59.0)
        assert is_late(watch, now + 59.0, 2.0)
        now += 61.0
        watch.end(now)
        watch.step_s = 0.01  # as it was
        watch.begin(work, now)
        assert is_late(watch, now, 6.0)
        now += 6.0
        watch.end(now)
        watch.step_s = 0.01


def test_step_that_was_submitted_ahead_is_as_old_as_the_end_of_the_one_before_it() -> None:
    watch = after(0.01)
    watch.begin(rows(1), 0.1)
    assert watch.age_s(0.7) == pytest.approx(0.7)
    assert watch.end(4.0) == pytest.approx(4.0)
    assert watch.age_s(4.5) == pytest.approx(0.5)


def test_time_in_which_the_process_was_stopped_counts_little() -> None:
    watch = after(0.01)
    assert not is_late(watch, 0.0, 2.0)
    assert not watch.is_late(100.0), "nobody looked for long: this process did not run either"
    assert is_late(watch, 100.0, 4.0), "now it runs, and the step does not end"
