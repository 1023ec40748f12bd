"""Pools shrink by drain and ticket, one worker at a time, and only when nothing speaks against."""

from __future__ import annotations

from typing import Any

import pytest

from tests.deploy.controller.worlds import (
    BOTH,
    NOW,
    D,
    P,
    limits,
    names,
    need,
    pool,
    seen,
    started,
    worker,
)
from twolane.deploy.controller.actions import Cancel, Delete, Drain, Flip
from twolane.deploy.controller.explain import sentence
from twolane.deploy.controller.law import decide, judge
from twolane.deploy.controller.limits import Limits, PoolLimits
from twolane.deploy.controller.observation import Role, State


def drained(prefill: int = 1, decode: int = 2, workers: int = 4, **given: Any) -> list[str]:
    sight = seen(pool(P, 1) + pool(D, workers), prefill, decode, **given)
    return names(decide(NOW, sight, limits()), Drain)


def test_one_worker_drains_however_many_are_too_many() -> None:
    assert len(drained(decode=1, workers=5)) == 1


def test_a_pool_shrinks_only_below_the_largest_need_of_the_last_minutes() -> None:
    workers = pool(P, 1) + pool(D, 4)
    assert decide(NOW, seen(workers, 1, need(2, kept=4)), limits()) == []
    assert len(names(decide(NOW, seen(workers, 1, need(2, kept=3)), limits()), Drain)) == 1


def test_the_next_one_drains_40_s_later() -> None:
    assert drained(last_down_s=NOW - 39.9) == []
    assert len(drained(last_down_s=NOW - 40.0)) == 1


def test_no_pool_shrinks_below_its_minimum() -> None:
    workers = pool(P, 2) + pool(D, 2)
    assert decide(NOW, seen(workers, need(0), need(0)), limits(minimum=2)) == []


def test_workers_that_start_do_not_let_ready_ones_go() -> None:
    workers = [*pool(P, 1), *pool(D, 2), worker("new", D, state=State.STARTING, since_s=NOW - 1)]
    assert decide(NOW, seen(workers, 1, 2), limits()) == []


def test_the_worker_on_the_emptiest_node_goes_first() -> None:
    workers = [
        *pool(P, 1),
        worker("a", D, node="full"),
        worker("b", D, node="full"),
        worker("c", D, node="nearly-empty", rows=50),
    ]
    assert names(decide(NOW, seen(workers, 1, 2), limits()), Drain) == ["c"]


def test_on_equal_nodes_the_one_with_the_fewest_rows_goes_then_the_youngest() -> None:
    workers = [
        *pool(P, 1),
        worker("busy", D, node="n", rows=5, started_s=900.0),
        worker("old", D, node="n", rows=1, started_s=10.0),
        worker("young", D, node="n", rows=1, started_s=500.0),
    ]
    assert names(decide(NOW, seen(workers, 1, 2), limits()), Drain) == ["young"]


@pytest.mark.parametrize(
    "veto",
    [
        {"attainment": 0.98},
        {"failed_starts": 1, "failed_s": NOW - 299.0},
        {"by_hand_s": NOW - 299.0},
        {"records_events": False},
        {"began_s": NOW - 239.0},
    ],
)
def test_nothing_shrinks_while_something_speaks_against_it(veto: dict[str, Any]) -> None:
    assert drained(**veto) == []
    sight = seen(pool(P, 1) + pool(D, 4), 1, 2, **veto)
    assert len(judge(NOW, sight, limits()).vetoes) == 1


@pytest.mark.parametrize(
    "past",
    [
        {"attainment": 0.99},
        {"attainment": None},
        {"failed_starts": 0, "failed_s": NOW - 301.0},
        {"by_hand_s": NOW - 301.0},
        {"began_s": NOW - 241.0},
    ],
)
def test_what_is_over_speaks_against_nothing(past: dict[str, Any]) -> None:
    assert len(drained(**past)) == 1


def test_a_controller_that_has_just_begun_lets_idle_workers_go_and_obeys_limits() -> None:
    """What was needed lately, which it does not know, is no reason to keep those."""
    idle = {"began_s": NOW - 10.0, "idle_s": 1_000.0}
    assert len(names(decide(NOW, seen(pool(P, 1), 1, 0, **idle), limits(minimum=0)), Drain)) == 1
    cut = limits(budget=3)
    sight = seen(pool(P, 1) + pool(D, 4), 1, 2, began_s=NOW - 10.0)
    assert len(names(decide(NOW, sight, cut), Drain)) == 1


@pytest.mark.parametrize("kept", [1, 4])
def test_a_controller_that_has_just_begun_helps_a_short_pool_by_flips_and_not_by_drains(
    kept: int,
) -> None:
    """However late requests are. Once needs are known, another pool gives way where none flip."""

    def done(known_s: float, *, flips: bool, attainment: float | None = None) -> tuple[int, int]:
        sight = seen(
            pool(P, 2) + pool(D, 4), 3, need(1, kept=kept),
            began_s=NOW - known_s, attainment=attainment,
        )  # fmt: skip
        actions = decide(NOW, sight, limits(6, flips=flips))
        return len(names(actions, Flip)), len(names(actions, Drain))

    for attainment in (None, 0.7):
        for known_s in (2.0, 239.0):
            assert done(known_s, flips=True, attainment=attainment) == (1, 0)
            assert done(known_s, flips=False, attainment=attainment) == (0, 0)
        assert done(240.0, flips=False, attainment=attainment) == (0, 1)


def test_a_drained_worker_is_deleted_on_its_ticket_only() -> None:
    draining = worker("d", D, state=State.DRAINING, since_s=NOW - 500)
    assert decide(NOW, seen([*pool(P, 1), *pool(D, 2), draining], 1, 2), limits()) == []
    done = worker("d", D, state=State.DRAINING, since_s=NOW - 500, has_ticket=True)
    actions = decide(NOW, seen([*pool(P, 1), *pool(D, 2), done], 1, 2), limits())
    assert names(actions, Delete) == ["d"]


def test_a_budget_that_was_cut_lets_workers_go_that_were_needed_lately() -> None:
    workers = pool(P, 4) + pool(D, 4)
    actions = decide(NOW, seen(workers, 4, 4), limits(6))
    assert len(names(actions, Drain)) == 1


@pytest.mark.parametrize(
    "cut", [limits(6), limits(pools={role: PoolLimits(maximum=3) for role in Role})]
)
def test_limits_that_were_cut_are_obeyed_though_requests_are_late(cut: Limits) -> None:
    late = seen(pool(P, 4) + pool(D, 4), 6, 6, attainment=0.7)
    assert decide(NOW, late, limits(8)) == []
    (drain,) = decide(NOW, late, cut)
    assert "has 4, and its limits allow 3" in sentence(drain)


@pytest.mark.parametrize("pins", [{}, {D: 1}, {D: 2}])
def test_last_worker_of_a_role_stays_while_the_other_pool_keeps_workers(
    pins: dict[Role, int],
) -> None:
    """Whatever limits allow: alone the others serve nothing, and no start would fit the budget."""
    workers = pool(P, 1) + pool(D, pins.get(D, 1))
    for idle_s in (0.0, 1_000.0) if pins else (0.0,):
        sight = seen(workers, 1, 1, pins=pins, idle_s=idle_s)
        for budget in (1, 2, 12):
            actions = decide(NOW, sight, limits(budget, minimum=0))
            assert names(actions, Drain) == []


def test_last_worker_of_a_role_stays_though_a_pinned_pool_lacks_gpus() -> None:
    sight = seen(pool(P, 1) + pool(D, 2), need(0), need(0), pins={D: 3}, idle_s=1_000.0)
    assert decide(NOW, sight, limits(3, minimum=0, flips=False)) == []


def test_pool_of_minimum_zero_beside_a_worker_with_both_roles_may_lose_its_last_worker() -> None:
    whole = worker("whole", BOTH)
    sight = seen([*pool(P, 1), whole], need(0, load=0.1), need(0, load=0.1))
    assert names(decide(NOW, sight, limits(minimum=0)), Drain) == ["prefill-0"]


def test_without_flips_a_pool_gives_way_to_one_that_is_short_though_requests_are_late() -> None:
    workers = pool(P, 2) + pool(D, 6)
    late: dict[str, Any] = {
        "attainment": 0.7,
        "prefill": need(6, load=5.0),
        "decode": need(2, kept=6, load=1.5),
    }
    actions = decide(NOW, seen(workers, **late), limits(8, flips=False))
    assert len(names(actions, Drain)) == 1
    for more in (9, 20):  # there is room to start
        assert names(decide(NOW, seen(workers, **late), limits(more, flips=False)), Drain) == []
    by_hand = seen(workers, **late, by_hand_s=NOW - 1)
    assert decide(NOW, by_hand, limits(8, flips=False)) == []


# Starts that fail


def test_a_start_that_takes_three_times_as_long_as_usual_is_cancelled() -> None:
    slow = worker("slow", D, state=State.STARTING, since_s=NOW - 90.0)
    workers = [*pool(P, 1), *pool(D, 1), slow]
    assert decide(NOW, seen(workers, 1, 2, start_s=30.0), limits()) == []
    actions = decide(NOW, seen(workers, 1, 2, start_s=29.9), limits())
    assert names(actions, Cancel) == ["slow"]


def test_its_gpus_are_free_once_it_is_gone_and_not_before() -> None:
    slow = worker("slow", D, state=State.STARTING, since_s=NOW - 500.0)
    workers = [*pool(P, 1), *pool(D, 1), slow]
    assert started(decide(NOW, seen(workers, 1, 2, start_s=30.0), limits(3))) == {P: 0, D: 0}
    after = seen(workers[:-1], 1, 2, start_s=30.0, failed_starts=1, failed_s=NOW)
    assert started(decide(NOW, after, limits(3))) == {P: 0, D: 1}


def test_starts_are_given_more_time_after_one_was_given_up() -> None:
    slow = worker("slow", D, state=State.STARTING, since_s=NOW - 100.0)
    workers = [*pool(P, 1), *pool(D, 1), slow]
    sight = seen(workers, 1, 2, start_s=30.0, failed_starts=1, failed_s=NOW - 200)
    assert decide(NOW, sight, limits()) == []
    slow = worker("slow", D, state=State.STARTING, since_s=NOW - 901.0)
    sight = seen([*workers[:-1], slow], 1, 2, start_s=30.0, failed_starts=50, failed_s=NOW - 901)
    assert names(decide(NOW, sight, limits()), Cancel) == ["slow"]


@pytest.mark.parametrize(
    ("failures", "pause_s"), [(1, 0), (2, 0), (3, 30), (4, 60), (5, 120), (9, 600), (500, 600)]
)
def test_after_three_failures_in_a_row_starts_wait_longer_each_time(
    failures: int, pause_s: float
) -> None:
    workers = pool(P, 1) + pool(D, 1)
    for ago_s, n in ((pause_s - 1, 0), (pause_s, 1)):
        if ago_s < 0:
            continue
        sight = seen(workers, 1, 2, failed_starts=failures, failed_s=NOW - ago_s)
        assert started(decide(NOW, sight, limits()))[D] == n


def test_flips_go_on_while_starts_wait() -> None:
    sight = seen(pool(P, 1) + pool(D, 3), 2, 2, failed_starts=3, failed_s=NOW - 1)
    assert len(decide(NOW, sight, limits())) == 1


def test_late_answers_of_the_past_keep_no_idle_worker() -> None:
    bounds = limits(minimum=0, idle_s=60.0)
    late: dict[str, Any] = {"attainment": 0.5, "idle_s": 61.0}
    sight = seen(pool(P, 1) + pool(D, 1), need(0, kept=1), need(0, kept=1), **late)
    assert len(names(decide(NOW, sight, bounds), Drain)) == 1
    failed = seen(
        pool(P, 1) + pool(D, 1), need(0, kept=1), need(0, kept=1), **late, failed_s=NOW - 1
    )
    assert names(decide(NOW, failed, bounds), Drain) == []
