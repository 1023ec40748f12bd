"""Decisions in sentences."""

from __future__ import annotations

from typing import Any

from tests.deploy.controller.worlds import NOW, D, P, limits, need, pool, seen, worker
from twolane.deploy.controller.explain import explain
from twolane.deploy.controller.law import judge
from twolane.deploy.controller.limits import Limits
from twolane.deploy.controller.observation import Observation, State

FACTS = {
    "forecast_per_s": 52_000.0, "horizon_s": 75.0, "headroom": 1.3, "capacity_per_s": 9_300.0,
}  # fmt: skip


def said(sight: Observation, bounds: Limits | None = None) -> list[str]:
    bounds = bounds or limits()
    return explain(judge(NOW, sight, bounds), sight, bounds)


def test_a_start_tells_the_forecast_that_it_comes_from() -> None:
    assert said(seen(pool(P, 4) + pool(D, 1), need(8, **FACTS), 1), limits(6)) == [
        "start a prefill worker: prefill has 4 of 5; 8 needed: 52.0k prompt tokens/s forecast in "
        "75 s, times 1.30 for bursts, at 9.3k a worker",
        "prefill: 4 workers, 5 wanted; 8 needed: 52.0k prompt tokens/s forecast in 75 s, times "
        "1.30 for bursts, at 9.3k a worker",
        "prefill should have 8, but the budget of 6 GPUs leaves 5",
        "decode: 1 worker, 1 wanted; 1 needed: 0 answer tokens/s forecast in 0 s, times 1.00 for "
        "bursts, at 0 a worker",
    ]


def test_a_flip_tells_who_can_spare_a_worker() -> None:
    line = said(seen(pool(P, 1) + pool(D, 3), 2, 2))[0]
    assert line.startswith("flip decode-0 to prefill: decode has a worker to spare; prefill has 1")


def test_a_backlog_rows_and_unplaced_prompts_are_named() -> None:
    late = need(3, bound_by="backlog", backlog_tokens=120_000, oldest_wait_s=1.25)
    full = need(4, bound_by="rows", rows=700, unplaced=12)
    lines = said(seen(pool(P, 3) + pool(D, 4), late, full))
    assert "3 needed: 120.0k tokens wait, the oldest for 1.2 s, beside" in lines[0]
    assert lines[1].endswith("4 needed for 700 rows and 12 prompts that wait for a place")


def test_a_drain_and_a_delete_tell_why_they_are_safe() -> None:
    assert said(seen(pool(P, 1) + pool(D, 3), 1, 2))[0] == (
        "drain decode-0: decode has 3, and needed at most 2 lately"
    )
    done = worker("d", D, state=State.DRAINING, since_s=NOW - 9, has_ticket=True)
    assert said(seen([*pool(P, 1), *pool(D, 1), done], 1, 1))[0] == (
        "stop d: it is drained, and has its ticket"
    )


def test_a_drain_that_makes_room_for_the_other_pool_says_so() -> None:
    decode = need(2, kept=6, load=1.5)
    sight = seen(pool(P, 2) + pool(D, 6), need(6, load=5.0), decode, attainment=0.7)
    assert said(sight, limits(8, flips=False))[0] == (
        "drain decode-0: decode has 6 and can do with 2, and prefill lacks GPUs"
    )


def test_an_undrain_and_a_cancel_tell_their_reasons() -> None:
    back = worker("d", D, state=State.DRAINING, since_s=NOW - 9)
    assert said(seen([*pool(P, 1), *pool(D, 1), back], 1, 2))[0].startswith(
        "let d serve again: decode has 1 of 2"
    )
    slow = worker("slow", D, state=State.STARTING, since_s=NOW - 400)
    sight = seen([*pool(P, 1), *pool(D, 1), slow], 1, 1, start_s=75.0)
    assert said(sight)[0] == (
        "give up the start of slow: not ready after 400 s, where 75 s are usual"
    )


def test_what_keeps_the_law_from_acting_is_told() -> None:
    sight = seen(
        pool(P, 1) + pool(D, 4), 1, 2, attainment=0.91, by_hand_s=NOW - 60,
        failed_starts=4, failed_s=NOW - 10, records_events=False,
    )  # fmt: skip
    assert said(sight)[2:] == [
        "4 starts failed in a row: the next one in 50 s",
        "nothing shrinks: 91.0% of the last 5 minutes' requests held the SLO, below 98.5%",
        "nothing shrinks: a start failed 10 s ago",
        "nothing shrinks: an operator changed a size 60 s ago",
        "nothing shrinks: events cannot be recorded",
    ]


def test_a_full_budget_and_a_pin_are_told() -> None:
    workers = [*pool(P, 1), worker("lost", P, state=State.LOST), *pool(D, 1)]
    sight = seen(workers, 9, 1)
    assert "all 3 GPUs are held, also by workers that start, drain or flip" in said(
        sight, limits(3)
    )
    told = explain(judge(NOW, sight, limits(3)), sight, limits(3), "seats")
    assert "prefill should have 9, but the budget of 3 seats leaves 2" in told
    assert "all 3 seats are held, also by workers that start, drain or flip" in told
    pinned = said(seen(pool(P, 2) + pool(D, 1), 1, 1, pins={P: 2}))
    assert pinned[0].startswith("prefill: 2 workers, 2 wanted, pinned by an operator; 1 needed")


def test_pools_that_go_to_zero_are_said_to_be_idle_and_not_short_of_budget() -> None:
    workers = pool(P, 1) + pool(D, 2)
    given: dict[str, Any] = {"idle_s": 1_000.0, "by_hand_s": NOW - 60}
    told = said(seen(workers, 1, 2, **given), limits(minimum=0))
    assert "no request for 1000 s: pools go to zero, once nothing speaks against it" in told
    assert not any("budget" in line for line in told)
    told = said(seen(workers, 1, 2, pins={D: 2}, **given), limits(minimum=0))
    line = "no request for 1000 s: pools go to one worker each, as one is pinned, once nothing"
    assert any(each.startswith(line) for each in told)
    for at_zero in (seen([], 0, 0, **given), seen(workers, 1, 2)):
        assert not any("no request" in line for line in said(at_zero, limits(minimum=0)))


def test_the_first_worker_is_said_to_have_both_roles() -> None:
    sight = seen([], need(0), need(0), waiting=2)
    assert said(sight, limits(minimum=0))[0].startswith("start a decode worker with both roles")
