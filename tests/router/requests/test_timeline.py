"""What a router learns of an answer's steps from its tokens."""

from __future__ import annotations

import pytest

from twolane.router.requests.ledger import Timeline


def told(times_s: list[float]) -> Timeline:
    timeline = Timeline(arrived=0.0)
    for now in times_s:
        timeline.note_token(now)
    return timeline


def test_step_is_the_mean_gap_without_the_first_however_tokens_are_bunched() -> None:
    assert told([5.0, 5.5]).step_s == 0
    assert told([5.0, 5.5, 5.51]).step_s == pytest.approx(0.01)
    assert told([5.0, 5.5, 5.54, 5.54, 5.54, 5.54]).step_s == pytest.approx(0.01)


def test_what_was_before_an_attempt_and_the_way_of_its_pages_are_no_steps() -> None:
    timeline = told([5.0, 5.5, 5.51, 5.52, 35.0])  # its worker died, and it waited for another
    timeline.moved()
    for now in (35.5, 35.52, 35.54):
        timeline.note_token(now)
    assert timeline.step_s == pytest.approx(0.02)


def test_tokens_that_come_together_after_a_long_pause_of_the_router_are_steps_of_before() -> None:
    late = [5.525 + 2.0] * 80
    after = [late[-1] + 0.025 * n for n in range(1, 21)]
    assert told([5.0, 5.5, 5.525, *late, *after]).step_s == pytest.approx(0.025, rel=0.01)
