"""Who starts, and who computes how much: tables of snapshots."""

from __future__ import annotations

import pytest

from twolane.prefill_worker.batching import Patience, Start, Waiting, share_out, who_starts

FIXED = Patience(0.010, above_rows=2)
BUDGET = 100


def queue(*tokens: int) -> list[Waiting]:
    return [Waiting(i * 0.001, n) for i, n in enumerate(tokens)]


@pytest.mark.parametrize(
    ("waiting", "budget", "n_started", "now", "start"),
    [
        ([], BUDGET, 0, 0.0, Start(0)),
        # short queue: at once
        (queue(10), BUDGET, 0, 0.0, Start(1)),
        (queue(10, 10), BUDGET, 0, 0.0, Start(2)),
        # burst: fill the budget, or the patience of the first ends
        (queue(10, 10, 10), BUDGET, 0, 0.002, Start(0, 0.010)),
        (queue(10, 10, 10), BUDGET, 0, 0.010, Start(3)),
        (queue(40, 40, 40), BUDGET, 0, 0.002, Start(3)),
        (queue(50, 50, 50), BUDGET, 0, 0.002, Start(2)),
        # the last to start may compute a part only
        (queue(60, 300, 60), BUDGET, 0, 0.002, Start(2)),
        # something is computed anyway: join it
        (queue(10, 10, 10), 50, 1, 0.002, Start(3)),
        (queue(10, 10, 10), 15, 1, 0.002, Start(2)),
        # nothing is left of the step
        (queue(10, 10, 10), 0, 1, 99.0, Start(0)),
        (queue(10), -20, 1, 99.0, Start(0)),
    ],
)
def test_short_queue_goes_at_once_and_a_burst_fills_the_budget(
    waiting: list[Waiting], budget: int, n_started: int, now: float, start: Start
) -> None:
    found = who_starts(waiting, budget_tokens=budget, n_started=n_started, now=now, patience=FIXED)
    assert found == start


def test_patience_is_that_of_the_longest_waiting_whatever_its_priority() -> None:
    late_but_first = [Waiting(0.009, 10), Waiting(0.001, 10), Waiting(0.002, 10)]
    found = who_starts(late_but_first, budget_tokens=100, n_started=0, now=0.010, patience=FIXED)
    assert found.n_rows == 0
    assert found.look_again_s == pytest.approx(0.011)


@pytest.mark.parametrize(
    ("n_waiting", "now", "start"),
    [
        (1, 0.000, Start(0, 0.004)),
        (2, 0.001, Start(0, 0.005)),  # the last one came at 1 ms
        (2, 0.005, Start(2)),  # nothing has come for 4 ms
        (3, 0.002, Start(3)),  # more than it pays to wait for
    ],
)
def test_few_rows_wait_while_others_come_close_behind(
    n_waiting: int, now: float, start: Start
) -> None:
    learnt = Patience(0.010, most_rows=2, quiet_s=0.004)
    waiting = queue(*[10] * n_waiting)
    found = who_starts(waiting, budget_tokens=BUDGET, n_started=0, now=now, patience=learnt)
    assert found.n_rows == start.n_rows
    assert found.look_again_s == pytest.approx(start.look_again_s)


@pytest.mark.parametrize(
    ("remaining", "budget", "shares"),
    [
        ([], 10, []),
        ([5, 5], 10, [5, 5]),
        ([5, 50, 5], 20, [5, 15, 0]),
        ([50], 20, [20]),
        ([5], 0, [0]),
    ],
)
def test_budget_is_spent_in_turn(remaining: list[int], budget: int, shares: list[int]) -> None:
    assert share_out(remaining, budget) == shares
