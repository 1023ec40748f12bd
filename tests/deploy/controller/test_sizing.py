"""What the law's actions make of what is desired."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.deploy.controller.inventories import inventory, names, running, seated
from tests.deploy.controller.worlds import need
from twolane.deploy.controller.actions import Action, Cancel, Drain, Flip, Start, Undrain, Why
from twolane.deploy.controller.desired import Desired, Rollout
from twolane.deploy.controller.observation import BOTH, Role, State
from twolane.deploy.controller.reconcile import Phase, Seen, View, next_desired, role_wishes
from twolane.deploy.controller.sizing import applied, begun, pools_by_role, state_of

P, D = Role.PREFILL, Role.DECODE
WHY = Why(role=P, need=need(1), have=1, target=1)
ABLE = frozenset({"prefill", "decode"})


def able(desired: Desired) -> View:
    """Everybody runs, in its pool's role, and may take the other one."""
    workers = {
        name: replace(seen, able=ABLE, roles=frozenset({name.rpartition("-")[0]}))
        for name, seen in running(desired).workers.items()
    }
    return View(workers=workers)


def after(desired: Desired, action: Action, most: int = 0) -> Desired | None:
    return applied(desired, replace(inventory(), most_gpus=most), able(desired), action)


@pytest.fixture
def desired() -> Desired:
    return begun(seated("prefill-0@", "decode-0@", "decode-1@"), inventory())


def sizes(desired: Desired | None) -> dict[str, int]:
    assert desired is not None
    return {size.pool: size.n for size in desired.sizes}


def test_law_begins_with_the_sizes_that_are_there(desired: Desired) -> None:
    assert sizes(desired) == {"prefill": 1, "decode": 2}


def test_start_takes_a_seat_and_no_more_than_the_budget_has(desired: Desired) -> None:
    start = Start(frozenset({P}), 1, WHY)
    grown = after(desired, start)
    assert grown is not None
    assert names(grown)[-1] == "prefill-1@"
    assert sizes(grown) == {"prefill": 2, "decode": 2}
    assert after(desired, start, most=3) is None


def test_first_worker_has_both_roles_and_splits_into_decode() -> None:
    empty = begun(Desired(), inventory())
    first = applied(empty, inventory(), View(), Start(BOTH, 1, WHY))
    assert first is not None
    (seat,) = first.seats
    assert (seat.pool, seat.roles) == ("decode", ("prefill", "decode"))
    split = after(first, Flip(seat.name, frozenset({D}), WHY))
    assert split is not None
    assert split.seats[0].roles == ()


@pytest.mark.parametrize("roles", [frozenset({P}), frozenset({D}), BOTH])
def test_worker_that_is_started_has_the_revision_that_its_pool_has(roles: frozenset[Role]) -> None:
    its = Rollout(before="", after="/models/new", is_over=True)
    empty = replace(begun(Desired(), inventory()), rollout=its, model_dir="/models/new")
    started = applied(empty, inventory(), View(), Start(roles, 1, WHY))
    assert started is not None
    assert [seat.model_dir for seat in started.seats] == ["/models/new"]
    rolling = replace(its, is_over=False, extra=("decode",))
    meanwhile = replace(empty, rollout=rolling, model_dir="")
    started = applied(meanwhile, inventory(), View(), Start(roles, 1, WHY))
    assert started is not None
    revision = "" if roles == {P} else "/models/new"
    assert [seat.model_dir for seat in started.seats] == [revision]


def test_flip_moves_the_seat_and_keeps_name_and_process(desired: Desired) -> None:
    flipped = after(desired, Flip("decode-1", frozenset({P}), WHY))
    assert sizes(flipped) == {"prefill": 2, "decode": 1}
    assert flipped is not None
    assert names(flipped) == names(desired)
    assert next_desired(flipped, inventory(), able(desired)) == flipped, "nobody starts or goes"
    wishes = role_wishes(flipped, inventory(), able(desired))
    assert wishes == {3: frozenset({"prefill"})}


def test_worker_that_is_not_able_is_not_flipped(desired: Desired) -> None:
    view = running(desired)
    assert applied(desired, inventory(), view, Flip("decode-1", frozenset({P}), WHY)) is None


def test_drain_and_undrain_change_the_size_with_the_worker(desired: Desired) -> None:
    drained = after(desired, Drain("decode-1", WHY))
    assert drained is not None
    assert sizes(drained) == {"prefill": 1, "decode": 1}
    assert drained.removal("decode-1") is not None
    back = after(drained, Undrain("decode-1", WHY))
    assert back is not None
    assert sizes(back) == {"prefill": 1, "decode": 2}
    assert back.removal("decode-1") is None


def test_taken_ticket_is_not_undone(desired: Desired) -> None:
    drained = after(desired, Drain("decode-1", WHY))
    assert drained is not None
    view = View(workers={"decode-1": Seen(phase=Phase.RUNNING, is_taken=True)})
    assert applied(drained, inventory(), view, Undrain("decode-1", WHY)) is None


def test_cancelled_start_gives_its_seat_back(desired: Desired) -> None:
    cancelled = after(desired, Cancel("decode-1", WHY))
    assert cancelled is not None
    gone = next_desired(cancelled, inventory(), View(workers={}))
    assert names(gone) == ["prefill-0@", "decode-0@"]


@pytest.mark.parametrize(
    ("seen", "was", "state"),
    [
        (Seen(), None, State.STARTING),
        (Seen(phase=Phase.STARTING), State.STARTING, State.STARTING),
        (Seen(phase=Phase.RUNNING), State.STARTING, State.STARTING),
        (Seen(phase=Phase.RUNNING), State.READY, State.READY),
        (
            Seen(phase=Phase.RUNNING, is_heard=True, roles=frozenset({"decode"})),
            State.STARTING,
            State.READY,
        ),
        (
            Seen(phase=Phase.RUNNING, is_heard=True, roles=frozenset({"prefill"})),
            State.READY,
            State.FLIPPING,
        ),
    ],
)
def test_state_of_a_worker_follows_from_what_is_seen(
    desired: Desired, seen: Seen, was: State | None, state: State
) -> None:
    view = View(workers={"decode-1": seen})
    assert state_of(desired, inventory(), view, "decode-1", was) is state
    silent = View(workers={"decode-1": seen}, silent=frozenset({""}))
    assert state_of(desired, inventory(), silent, "decode-1", was) is State.LOST


def test_pools_that_do_both_are_not_sized() -> None:
    its = inventory()
    both = replace(its, pools=(replace(its.pools[0], roles=("prefill", "decode")), its.pools[1]))
    with pytest.raises(ValueError, match="one pool of prefill and one of decode"):
        pools_by_role(both)
