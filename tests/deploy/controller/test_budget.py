"""One budget of GPUs for both pools, never exceeded."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.deploy.controller.worlds import (
    NOW,
    D,
    P,
    World,
    limits,
    need,
    pool,
    seen,
    started,
    worker,
)
from twolane.deploy.controller.actions import Drain, Start
from twolane.deploy.controller.budget import share_budget
from twolane.deploy.controller.law import decide
from twolane.deploy.controller.limits import Limits, PoolLimits
from twolane.deploy.controller.observation import BOTH, Observation, Role, State, Worker


@pytest.mark.parametrize(
    ("prefill", "decode", "budget", "expected"),
    [
        (3, 4, 12, (3, 4)),  # there is enough
        (6, 6, 8, (4, 4)),
        (12, 3, 10, (8, 2)),  # equal shares of what each needs
        (1, 40, 10, (1, 9)),
        (40, 0, 10, (9, 1)),  # the minimum first
    ],
)
def test_too_small_a_budget_fills_both_pools_to_one_level(
    prefill: int, decode: int, budget: int, expected: tuple[int, int]
) -> None:
    got = share_budget({P: need(prefill), D: need(decode)}, limits(budget), {})
    assert (got[P], got[D]) == expected


def test_what_prefill_has_to_spare_takes_nothing_from_decode_where_the_budget_is_short() -> None:
    needs = {P: need(40, load=27.0, busy=19.5), D: need(9, load=7.2)}
    assert share_budget(needs, limits(24), {}) == {P: 17, D: 7}


def test_a_budget_counts_gpus_not_workers() -> None:
    pools = {P: PoolLimits(gpus=2), D: PoolLimits(gpus=1)}
    got = share_budget({P: need(4), D: need(4)}, Limits(budget_gpus=8, pools=pools), {})
    assert got[P] * 2 + got[D] <= 8
    assert (got[P], got[D]) == (2, 4)


def test_a_pinned_pool_takes_its_share_first() -> None:
    got = share_budget({P: need(6), D: need(6)}, limits(8), {P: 6})
    assert (got[P], got[D]) == (6, 2)


@pytest.mark.parametrize("state", [*State])
def test_workers_in_every_state_count(state: State) -> None:
    others = [worker(f"x{i}", D, state=state, since_s=NOW - 1, is_held=True) for i in range(3)]
    actions = decide(NOW, seen([*pool(P, 1), *others], 9, 9), limits(6))
    assert sum(started(actions).values()) == 2


STATES = st.sampled_from(
    [(state, ticket) for state in State for ticket in (False, True)
     if state is State.DRAINING or not ticket]
)  # fmt: skip
ROLES = st.sampled_from([frozenset({P}), frozenset({D}), BOTH])
NEEDS = st.builds(
    lambda workers, more, fewer: need(
        workers, kept=workers + more, soon=max(0, workers - fewer), load=workers * 0.9
    ),
    st.integers(0, 30), st.integers(0, 5), st.integers(0, 5),
)  # fmt: skip


@st.composite
def sights(draw: st.DrawFn) -> Observation:
    workers = []
    for i in range(draw(st.integers(0, 16))):
        state, has_ticket = draw(STATES)
        workers.append(
            Worker(
                worker_id=f"w{i}", roles=draw(ROLES), state=state, has_ticket=has_ticket,
                since_s=NOW - draw(st.floats(0, 1000)), rows=draw(st.integers(0, 9)),
                gpus=draw(st.integers(1, 2)), node=draw(st.sampled_from("abc")),
                is_held=draw(st.booleans()),
            )
        )  # fmt: skip
    return Observation(
        workers=tuple(workers),
        needs={role: draw(NEEDS) for role in Role},
        attainment=draw(st.sampled_from([None, 0.5, 1.0])),
        waiting=draw(st.integers(0, 2)),
        idle_s=draw(st.sampled_from([0.0, 1_000.0])),
        failed_starts=draw(st.integers(0, 5)),
        failed_s=draw(st.sampled_from([None, NOW - 10, NOW - 10_000])),
        pins=draw(st.dictionaries(st.sampled_from([P, D]), st.integers(0, 9))),
    )


@settings(max_examples=300, deadline=None)
@given(
    sight=sights(), budget=st.integers(2, 20), minimum=st.integers(0, 1),
    sizes=st.sampled_from([(1, 1), (1, 2), (2, 2)]), flips=st.booleans(),
)  # fmt: skip
def test_no_decision_on_anything_exceeds_the_budget_or_acts_twice_on_a_worker(
    sight: Observation, budget: int, minimum: int, sizes: tuple[int, int], flips: bool
) -> None:
    pools = {
        role: PoolLimits(minimum=minimum, gpus=gpus, flips=flips)
        for role, gpus in zip(Role, sizes, strict=True)
    }
    if sum(pool.minimum * pool.gpus for pool in pools.values()) > budget:
        return
    bounds = Limits(budget_gpus=budget, pools=pools)
    actions = decide(NOW, sight, bounds)
    new = sum(action.gpus for action in actions if isinstance(action, Start))
    assert not new or sight.held_gpus + new <= budget
    touched = Counter(a.worker_id for a in actions if not isinstance(a, Start))
    assert all(n == 1 for n in touched.values())
    held = {worker.worker_id for worker in sight.workers if worker.is_held}
    assert not held & set(touched)
    assert sum(isinstance(action, Drain) for action in actions) <= 1


# 10,000 steps each
_SEEDS = [0, 1, *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(2, 10))]


@pytest.mark.parametrize("seed", _SEEDS)
def test_the_budget_is_never_exceeded_in_100_000_steps(seed: int) -> None:
    """10,000 steps a seed. Starts fail or never get ready, workers die or are lost, flips and
    drains take their time, needs jump: at every instant all workers' GPUs are within the budget."""
    world = World(seed, limits(4 + seed, minimum=seed % 2))
    kinds: Counter[type] = Counter()
    for _ in range(10_000):
        kinds.update(type(action) for action in world.step())
        assert world.held_gpus <= world.limits.budget_gpus
    assert len(kinds) >= 5, "the schedule was poor"
