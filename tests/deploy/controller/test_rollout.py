"""The pure half of a rollout: which workers go when."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.deploy.controller.inventories import inventory, seated
from tests.deploy.controller.rollouts import NEW, OLD, STEP, Rolling, cluster, revisions, up
from twolane.deploy.controller.acts import cordon, drain_host, flip, kill, scale
from twolane.deploy.controller.desired import Desired
from twolane.deploy.controller.rollout_acts import rollout_status
from twolane.deploy.errors import RefusedError
from twolane.deploy.spec.spec_json import from_json, to_json


def until_over(facts: Rolling, seed: int = 0, rounds: int = 600) -> list[str]:
    """The pictures on the way. At every instant some pair serves."""
    chance, seen = random.Random(seed), [revisions(facts.saved)]
    for _ in range(rounds):
        if facts.saved.rolling is None:
            return seen
        facts.look(chance)
        facts.happen(chance)
        assert facts.serves()
        if revisions(facts.saved) != seen[-1]:
            seen.append(revisions(facts.saved))
    raise AssertionError(seen)


def test_pairs_go_one_after_the_other_on_their_seats() -> None:
    facts = cluster()
    seats = {(seat.name, seat.host) for seat in facts.saved.seats}
    facts.begin()
    pictures = until_over(facts)
    assert [each for each in pictures if each.count(".") in (0, 2)] == [
        "prefill oo decode oo",
        "prefill o. decode o.",
        "prefill oN decode oN",
        "prefill .N decode .N",
        "prefill NN decode NN",
    ]
    assert {(seat.name, seat.host) for seat in facts.saved.seats} == seats
    assert facts.saved.model_dir == NEW
    assert {*facts.revisions.values()} == {NEW}


def test_larger_pools_give_up_their_last_pair_together() -> None:
    facts = cluster(prefill=4, decode=2)
    facts.begin()
    pictures = until_over(facts)
    assert "prefill oNNN decode oN" in pictures
    assert revisions(facts.saved) == "prefill NNNN decode NN"


def test_pools_of_one_worker_have_two_meanwhile_where_that_is_allowed() -> None:
    facts = cluster(1, 1, seats=4)
    with pytest.raises(RefusedError, match=r"no complete .* pair .* allow 2 extra workers"):
        facts.begin()
    with pytest.raises(RefusedError, match="no complete prefill/decode pair"):
        facts.begin(extra=1)
    facts.begin(extra=2)
    pictures = until_over(facts)
    assert "prefill oN decode oN" in pictures
    assert revisions(facts.saved) == "prefill N decode N"
    full = cluster(1, 1)
    with pytest.raises(RefusedError, match="there is no free seat for a second worker of prefill"):
        full.begin(extra=2)


def test_canary_holds_until_it_is_resumed_or_undone() -> None:
    for which, end in ((STEP.STEP_RESUME, NEW), (STEP.STEP_UNDO, OLD)):
        facts = cluster()
        facts.begin(canary=0.05)
        with pytest.raises(AssertionError, match="prefill oN decode oN"):
            until_over(facts)
        told = rollout_status(facts.saved, facts.rooms, facts.view())
        assert told is not None
        assert (told.state, told.waits_for) == ("canary", "an operator: resume or undo")
        assert told.canary_share == pytest.approx(0.05)
        with pytest.raises(RefusedError, match="it waits for you: `twolane rollout resume` or"):
            scale(facts.saved, facts.rooms, facts.view(), {"decode": 1})
        facts.step(which)
        until_over(facts)
        assert {*facts.revisions.values()} == {end}


def test_undo_calls_off_what_never_comes_up() -> None:
    facts = cluster()
    facts.is_bad = True
    facts.begin()
    with pytest.raises(AssertionError, match="prefill oN decode oN"):
        until_over(facts)
    told = rollout_status(facts.saved, facts.rooms, facts.view())
    assert told is not None
    assert told.waits_for == "prefill-1 starts, decode-1 starts"
    facts.step(STEP.STEP_UNDO)
    until_over(facts)
    assert {*facts.revisions.values()} == {OLD}
    assert facts.saved.rollout is not None
    assert facts.saved.rollout.undo


def test_paused_rollout_lets_a_wave_end_and_begins_no_other() -> None:
    facts = cluster()
    facts.begin()
    facts.look(random.Random(0))
    facts.step(STEP.STEP_PAUSE)
    with pytest.raises(AssertionError, match="prefill oN decode oN"):
        until_over(facts)
    assert revisions(facts.saved) == "prefill oN decode oN"
    facts.step(STEP.STEP_RESUME)
    until_over(facts)


@pytest.mark.parametrize(
    ("prefill", "decode", "extra"), [(2, 2, 0), (3, 2, 0), (1, 1, 2), (1, 3, 1)]
)
def test_random_schedules_leave_a_pair_at_every_instant_and_end(
    prefill: int, decode: int, extra: int
) -> None:
    for seed in range(30):
        chance = random.Random(seed)
        facts = cluster(prefill, decode, seats=prefill + decode + extra)
        facts.begin(extra, canary=chance.choice([0.0, 0.1]))
        undone = chance.random() < 0.5
        for n in range(chance.randrange(60)):
            facts.look(chance, survives=0.8)
            facts.happen(chance)
            assert facts.serves(), seed
            if facts.saved.rolling is not None and n % 7 == 3:
                facts.step(chance.choice([STEP.STEP_PAUSE, STEP.STEP_RESUME]))
        if facts.saved.rolling is not None:
            facts.step(STEP.STEP_UNDO if undone else STEP.STEP_RESUME)
        if facts.saved.rolling is not None and not undone:
            facts.step(STEP.STEP_RESUME)  # it was paused, and a canary
        over = facts.saved.rollout
        assert over is not None
        if facts.saved.rolling is not None:
            until_over(facts, seed)
        assert facts.saved.rollout is not None
        assert {*facts.revisions.values()} == {facts.saved.rollout.goal}, seed
        assert len(facts.saved.staying("prefill")) == prefill
        assert len(facts.saved.staying("decode")) == decode


def test_workers_that_die_do_not_keep_it_from_its_end() -> None:
    for seed in range(30):
        chance = random.Random(seed)
        facts = cluster()
        facts.begin()
        for _ in range(60):
            facts.look(chance, survives=0.8)
            facts.happen(chance, deaths=0.03)
        undone = facts.saved.rolling is not None and seed % 2 == 0
        if undone:
            facts.step(STEP.STEP_UNDO)
        for _ in range(300):
            facts.look(chance)
            facts.happen(chance)
        assert facts.saved.rolling is None, seed
        assert {*facts.revisions.values()} == {OLD if undone else NEW}, seed


def test_killed_worker_stays_away_and_the_rollout_goes_on() -> None:
    facts = cluster(3, 3)
    facts.begin()
    chance = random.Random(1)
    facts.look(chance)
    going = facts.saved.removals[0].name
    facts.saved = kill(facts.saved, facts.rooms, facts.view(), going).desired
    until_over(facts)
    pool = going.rpartition("-")[0]
    assert len(facts.saved.staying(pool)) == 2


def two_hosts() -> Rolling:
    seats = seated("prefill-0@a", "decode-0@a", "prefill-1@b", "decode-1@b")
    return up(Rolling(inventory(prefill=2, decode=2, a=2, b=2), seats))


def went_wave(facts: Rolling) -> list[str]:
    """Who drains, once its first wave has begun."""
    facts.begin()
    facts.look(random.Random(0))
    return [removal.name for removal in facts.saved.removals]


@pytest.mark.parametrize("undo", [False, True])
@pytest.mark.parametrize("name", ["prefill-0", "prefill-1", "decode-0", "decode-1"])
@pytest.mark.parametrize("after", [1, 4, 12, 20])
def test_kill_that_leaves_a_pool_one_worker_does_not_wedge_it(
    name: str, after: int, undo: bool
) -> None:
    facts = cluster()
    facts.begin()
    chance = random.Random(after)
    for _ in range(after):
        facts.look(chance)
        facts.happen(chance)
    if facts.saved.rolling is None:
        return
    facts.saved = kill(facts.saved, facts.rooms, facts.view(), name).desired
    if undo:
        facts.step(STEP.STEP_UNDO)
    for _ in range(300):
        facts.look(chance)
        facts.happen(chance)
    assert facts.saved.rolling is None, rollout_status(facts.saved, facts.rooms, facts.view())
    assert {*facts.revisions.values()} == {OLD if undo else NEW}
    assert len(facts.saved.staying(name.rpartition("-")[0])) == 1


def test_cordoned_host_keeps_its_workers_and_the_rollout_ends_when_it_is_open_again() -> None:
    facts = two_hosts()
    seats = {(seat.name, seat.host) for seat in facts.saved.seats}
    drain = went_wave(facts)
    host = next(where for name, where in seats if name == drain[0])
    facts.saved = cordon(facts.saved, facts.rooms, host).desired
    chance = random.Random(0)
    for _ in range(200):
        facts.look(chance)
        facts.happen(chance)
        assert facts.serves()
    assert {(seat.name, seat.host) for seat in facts.saved.seats} == seats
    assert not facts.saved.removals
    told = rollout_status(facts.saved, facts.rooms, facts.view())
    assert told is not None
    there = " and ".join(sorted(name for name, where in seats if where == host))
    assert told.waits_for == (
        f"{there} cannot start again: {host} is cordoned: `twolane uncordon {host}` or "
        "`twolane rollout undo`"
    )
    facts.saved = cordon(facts.saved, facts.rooms, host, undo=True).desired
    until_over(facts)
    assert {*facts.revisions.values()} == {NEW}
    assert {(seat.name, seat.host) for seat in facts.saved.seats} == seats


def test_worker_that_was_stopped_on_a_host_cordoned_just_then_is_named_with_the_way_out() -> None:
    facts = two_hosts()
    drain = went_wave(facts)
    chance = random.Random(0)
    for name in drain:
        facts.workers[name] = replace(facts.workers[name], draining=True, is_taken=True)
    host = next(seat.host for seat in facts.saved.seats if seat.name == drain[0])
    facts.saved = cordon(facts.saved, facts.rooms, host).desired
    for _ in range(100):
        facts.look(chance)
        facts.happen(chance)
        assert facts.serves()
    told = rollout_status(facts.saved, facts.rooms, facts.view())
    assert told is not None
    assert f"`twolane uncordon {host}` or `twolane rollout undo`" in told.waits_for
    facts.saved = cordon(facts.saved, facts.rooms, host, undo=True).desired
    until_over(facts)
    assert {*facts.revisions.values()} == {NEW}


def test_rollout_of_workers_on_a_cordoned_host_is_refused() -> None:
    facts = two_hosts()
    facts.saved = cordon(facts.saved, facts.rooms, "a").desired
    with pytest.raises(RefusedError, match="decode-0 and prefill-0 cannot start again"):
        facts.begin()


def test_kill_while_hosts_are_cordoned_does_not_wedge_it_once_they_are_open() -> None:
    facts = two_hosts()
    going = went_wave(facts)[0]
    facts.saved = cordon(facts.saved, facts.rooms, "a").desired
    facts.saved = kill(facts.saved, facts.rooms, facts.view(), going).desired
    chance = random.Random(0)
    for _ in range(50):
        facts.look(chance)
        facts.happen(chance)
    facts.saved = cordon(facts.saved, facts.rooms, "a", undo=True).desired
    until_over(facts)
    assert {*facts.revisions.values()} == {NEW}


def test_kill_of_the_second_worker_that_a_pool_has_meanwhile_leaves_its_size() -> None:
    facts = cluster(1, 1, seats=4)
    facts.begin(extra=2)
    facts.look(random.Random(0))
    facts.saved = kill(facts.saved, facts.rooms, facts.view(), "prefill-1").desired
    until_over(facts)
    assert revisions(facts.saved) == "prefill N decode N"


def test_sizes_stay_while_it_is_under_way() -> None:
    facts = cluster()
    facts.begin()
    view, rooms = facts.view(), facts.rooms
    acts: list[Callable[[], object]] = [
        lambda: scale(facts.saved, rooms, view, {"decode": 1}),
        lambda: flip(facts.saved, rooms, view, "decode-1"),
        lambda: drain_host(facts.saved, rooms, view, "a"),
    ]
    for act in acts:
        with pytest.raises(RefusedError, match="a rollout is under way: wait for its end, or"):
            act()
    assert facts.begin().changes == (), "the same one again"
    facts.step(STEP.STEP_PAUSE)
    with pytest.raises(RefusedError, match="it waits for you: `twolane rollout resume` or"):
        scale(facts.saved, rooms, view, {"decode": 1})
    facts.step(STEP.STEP_RESUME)
    until_over(facts)
    scale(facts.saved, rooms, facts.view(), {"decode": 1})
    assert facts.begin().changes == (), "no change"


def test_worker_of_a_later_start_has_the_revision_of_the_others() -> None:
    facts = cluster(seats=6)
    facts.begin()
    until_over(facts)
    facts.saved = scale(facts.saved, facts.rooms, facts.view(), {"decode": 3}).desired
    facts.look(random.Random(0))
    assert facts.revisions["decode-2"] == NEW


def test_wave_waits_for_every_router() -> None:
    """A worker that one router does not use yet serves nobody there."""
    facts = cluster()
    facts.begin()
    chance = random.Random(0)
    while revisions(facts.saved) != "prefill oN decode oN":
        facts.look(chance)
        facts.happen(chance)
    for name in ("prefill-1", "decode-1"):
        seen = facts.workers[name]
        facts.workers[name] = type(seen)(
            phase=seen.phase, epoch=seen.epoch, is_heard=True, everywhere=False
        )
    for _ in range(50):
        facts.look(chance)
    assert revisions(facts.saved) == "prefill oN decode oN"
    told = rollout_status(facts.saved, facts.rooms, facts.view())
    assert told is not None
    assert told.waits_for.startswith("prefill-1 is not heard by every router")


def test_next_controller_finds_it_as_it_was_saved() -> None:
    facts = cluster()
    facts.begin(canary=0.05)
    facts.look(random.Random(0))
    assert facts.saved.removals
    assert from_json(Desired, to_json(facts.saved)) == facts.saved
