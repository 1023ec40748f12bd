"""Pools grow by the quickest means: undrain, then flip, then start."""

from __future__ import annotations

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
from twolane.deploy.controller.actions import Drain, Flip, Start, Undrain
from twolane.deploy.controller.law import decide
from twolane.deploy.controller.observation import Role, State


def test_nothing_happens_when_pools_have_what_they_need() -> None:
    assert decide(NOW, seen(pool(P, 2) + pool(D, 3), 2, 3), limits()) == []


def test_all_missing_workers_start_at_once() -> None:
    actions = decide(NOW, seen(pool(P, 1) + pool(D, 1), 4, 3), limits())
    assert started(actions) == {P: 3, D: 2}


def test_a_draining_worker_serves_again_before_anything_starts() -> None:
    workers = [*pool(P, 2), *pool(D, 1), worker("d", D, state=State.DRAINING, since_s=NOW - 5)]
    actions = decide(NOW, seen(workers, 2, 3), limits())
    assert names(actions, Undrain) == ["d"]
    assert started(actions) == {P: 0, D: 1}


def test_the_worker_that_drains_for_the_shortest_time_serves_again_first() -> None:
    workers = [*pool(P, 1), *pool(D, 1)]
    workers += [
        worker(f"d{age}", D, state=State.DRAINING, since_s=NOW - age) for age in (30, 5, 60)
    ]
    assert names(decide(NOW, seen(workers, 1, 2), limits()), Undrain) == ["d5"]


def test_a_drained_worker_whose_ticket_is_not_taken_serves_again() -> None:
    drained = worker("d", D, state=State.DRAINING, since_s=NOW - 5, has_ticket=True)
    actions = decide(NOW, seen([*pool(P, 1), drained], 1, 1), limits())
    assert [type(action) for action in actions] == [Undrain]


def test_a_worker_that_the_other_pool_can_spare_flips_before_one_starts() -> None:
    actions = decide(NOW, seen(pool(P, 2) + pool(D, 4), 3, 3), limits())
    assert len(names(actions, Flip)) == 1
    assert names(actions, Start) == []


def test_the_worker_with_the_fewest_rows_flips() -> None:
    workers = [*pool(P, 1), *(worker(f"d{rows}", D, rows=rows) for rows in (9, 2, 5))]
    assert names(decide(NOW, seen(workers, 2, 2), limits()), Flip) == ["d2"]


def test_no_worker_flips_that_its_pool_needed_lately_while_the_other_only_foresees_a_need() -> None:
    decode = need(3, kept=4, load=3.0)
    prefill = need(3, soon=2, load=1.5)
    actions = decide(NOW, seen(pool(P, 2) + pool(D, 4), prefill, decode), limits())
    assert names(actions, Flip) == []
    assert started(actions) == {P: 1, D: 0}


def test_an_urgent_need_takes_a_worker_that_its_pool_can_do_without_until_one_flips_back() -> None:
    decode = need(3, soon=2, kept=4, load=1.2)
    prefill = need(5, soon=5, load=5.0)
    actions = decide(NOW, seen(pool(P, 2) + pool(D, 4), prefill, decode), limits(6))
    assert len(names(actions, Flip)) >= 1


def test_two_pools_that_are_equally_short_do_not_exchange_workers() -> None:
    short = need(6, soon=5, load=5.0)
    for have_p, have_d in ((4, 4), (5, 3), (3, 5)):
        workers = pool(P, have_p) + pool(D, have_d)
        actions = decide(NOW, seen(workers, short, short), limits(8))
        flipped = names(actions, Flip)
        after = have_p + (1 if have_d > have_p else -1) * len(flipped)
        assert after == 4, "as even as it can be, and then at rest"


def test_a_pool_that_took_a_worker_gives_none_until_the_flip_shows_its_effect() -> None:
    """Both are short of a budget of 24, and decode's load has just jumped from 7 to 10: workers
    would go back and forth with it."""
    workers = pool(P, 17) + pool(D, 7)
    prefill, decode = need(40, soon=17, load=17.0), need(16, soon=10, load=10.0)
    taken = {"flipped_s": {P: NOW - 59.0}}
    at_once = decide(NOW, seen(workers, prefill, decode), limits(24))
    assert len(names(at_once, Flip)) == 2
    assert decide(NOW, seen(workers, prefill, decode, **taken), limits(24, settle_s=60.0)) == []
    assert (
        decide(NOW, seen(workers, prefill, decode, **taken), limits(24, settle_s=59.0)) == at_once
    )
    nobody = seen(pool(P, 17), prefill, decode, **taken)
    assert names(decide(NOW, nobody, limits(17, settle_s=60.0)), Flip), "decode has lost its last"
    other = seen(workers, prefill, decode, flipped_s={D: NOW - 2.0})
    assert decide(NOW, other, limits(24)) == at_once, "it may take more in the meantime"


def test_no_worker_flips_where_pools_do_not_allow_it() -> None:
    actions = decide(NOW, seen(pool(P, 2) + pool(D, 4), 3, 3), limits(flips=False))
    assert names(actions, Flip) == []
    assert started(actions) == {P: 1, D: 0}


def test_the_last_worker_of_a_pool_never_flips() -> None:
    actions = decide(NOW, seen(pool(P, 2) + pool(D, 1), 6, need(0)), limits(3))
    assert names(actions, Flip) == []


@pytest.mark.parametrize("state", [State.STARTING, State.FLIPPING])
def test_workers_on_their_way_count(state: State) -> None:
    workers = [*pool(P, 1), *pool(D, 1), worker("new", D, state=state, since_s=NOW - 1)]
    assert decide(NOW, seen(workers, 1, 2), limits()) == []


@pytest.mark.parametrize("state", [State.LOST, State.DRAINING])
def test_workers_that_serve_no_more_do_not_count_but_hold_their_gpus(state: State) -> None:
    gone = worker("gone", D, state=state, since_s=NOW - 1, is_held=True)
    workers = [*pool(P, 1), *pool(D, 1), gone]
    assert started(decide(NOW, seen(workers, 1, 2), limits(4))) == {P: 0, D: 1}
    assert decide(NOW, seen(workers, 1, 2), limits(3)) == []


def test_a_pinned_pool_is_left_at_its_pin() -> None:
    workers = pool(P, 2) + pool(D, 4)
    actions = decide(NOW, seen(workers, 5, 1, pins={P: 2, D: 4}), limits())
    assert actions == []
    assert started(decide(NOW, seen(workers, 1, 1, pins={P: 3}), limits())) == {P: 1, D: 0}


def test_a_worker_that_an_operator_holds_is_left_alone() -> None:
    held = worker("mine", D, state=State.DRAINING, since_s=NOW - 5, has_ticket=True, is_held=True)
    actions = decide(NOW, seen([*pool(P, 1), *pool(D, 1), held], 1, 2), limits())
    assert [type(action) for action in actions] == [Start]


def test_a_pool_stays_within_its_maximum() -> None:
    from twolane.deploy.controller.limits import PoolLimits

    pools = {role: PoolLimits(maximum=2) for role in Role}
    actions = decide(NOW, seen(pool(P, 1) + pool(D, 1), 9, 9), limits(pools=pools))
    assert started(actions) == {P: 1, D: 1}


def test_nothing_drains_in_a_decision_that_adds() -> None:
    workers = pool(P, 1) + pool(D, 4)
    actions = decide(NOW, seen(workers, 2, 1), limits(flips=False))
    assert names(actions, Drain) == []


# To zero and back


def test_from_zero_comes_one_worker_with_both_roles() -> None:
    actions = decide(NOW, seen([], need(0), need(0), waiting=3), limits(minimum=0))
    assert names(actions, Start) == [BOTH]


def test_a_first_worker_on_its_way_is_not_started_twice() -> None:
    first = worker("first", BOTH, state=State.STARTING, since_s=NOW - 1)
    quiet = need(0, load=0.0)
    assert decide(NOW, seen([first], quiet, quiet, waiting=3), limits(minimum=0)) == []


def test_a_worker_with_both_roles_serves_alone_while_one_is_enough() -> None:
    first = worker("first", BOTH)
    little = need(1, load=0.4)
    assert decide(NOW, seen([first], little, little), limits(minimum=0)) == []


def test_it_is_split_when_a_second_one_is_warranted() -> None:
    first = worker("first", BOTH, rows=30)
    more = need(1, load=0.7)
    actions = decide(NOW, seen([first], more, more), limits(minimum=0))
    assert names(actions, Start) == [frozenset({P})]
    second = worker("second", P)
    actions = decide(NOW, seen([first, second], more, more), limits(minimum=0))
    assert [(a.worker_id, a.roles) for a in actions if isinstance(a, Flip)] == [
        ("first", frozenset({D}))
    ]
    assert len(actions) == 1


def test_it_is_not_split_before_the_second_worker_serves() -> None:
    first = worker("first", BOTH, rows=30)
    second = worker("second", P, state=State.STARTING, since_s=NOW - 1)
    more = need(1, load=0.7)
    assert decide(NOW, seen([first, second], more, more), limits(minimum=0)) == []


def test_pools_go_to_zero_after_a_long_time_without_requests() -> None:
    workers = pool(P, 1) + pool(D, 1)
    idle = seen(workers, 1, 1, idle_s=899.0)
    assert decide(NOW, idle, limits(minimum=0)) == []
    idle = seen(workers, 1, 1, idle_s=900.0)
    assert len(names(decide(NOW, idle, limits(minimum=0)), Drain)) == 1
    assert decide(NOW, idle, limits(minimum=1)) == []


def test_an_idle_cluster_does_not_wait_between_two_drains() -> None:
    workers = pool(P, 1) + pool(D, 1)
    idle = seen(workers, 1, 1, idle_s=900.0, last_down_s=NOW - 1)
    assert len(names(decide(NOW, idle, limits(minimum=0)), Drain)) == 1


def test_a_request_that_waits_keeps_pools_from_zero() -> None:
    idle = seen(pool(P, 1) + pool(D, 1), 1, 1, idle_s=2_000.0, waiting=1)
    assert decide(NOW, idle, limits(minimum=0)) == []


def test_one_pool_alone_is_never_left() -> None:
    actions = decide(NOW, seen(pool(P, 1), 1, need(0)), limits(minimum=0))
    assert started(actions) == {P: 0, D: 1}
