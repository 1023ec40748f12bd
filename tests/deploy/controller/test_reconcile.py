"""The pure half of the supervisor against a cluster that is nothing but facts."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace

import pytest

from tests.deploy.controller.inventories import inventory, names, running, seated
from twolane.deploy.controller.acts import cordon, drain_host, kill, scale
from twolane.deploy.controller.desired import Desired, Removal
from twolane.deploy.controller.reconcile import (
    Act,
    Phase,
    Seen,
    Verb,
    View,
    next_acts,
    next_desired,
    target,
)
from twolane.deploy.controller.seats import Inventory
from twolane.deploy.errors import RefusedError

R = Phase.RUNNING


@pytest.mark.parametrize(
    ("removal", "seen", "act"),
    [
        (None, Seen(), Act(verb=Verb.START, name="decode-0")),
        (None, Seen(phase=Phase.STARTING), None),
        (None, Seen(phase=R, epoch=7, is_heard=True, draining=True), None),  # an operator's own
        (
            Removal(name="decode-0"),
            Seen(phase=Phase.STARTING),
            Act(verb=Verb.CALL_OFF, name="decode-0"),
        ),
        (Removal(name="decode-0"), Seen(phase=R, epoch=7), None),  # no router hears it
        (
            Removal(name="decode-0"),
            Seen(phase=R, epoch=7, is_heard=True),
            Act(verb=Verb.DRAIN, name="decode-0", epoch=7),
        ),
        (Removal(name="decode-0"), Seen(phase=R, epoch=7, is_heard=True, draining=True), None),
        (
            Removal(name="decode-0", hand_over=True),
            Seen(phase=R, epoch=7, is_heard=True, draining=True),
            Act(verb=Verb.DRAIN, name="decode-0", epoch=7, hand_over=True),
        ),
        (
            Removal(name="decode-0"),
            Seen(phase=R, epoch=7, is_heard=True, draining=True, ticket=3),
            Act(verb=Verb.TAKE_TICKET, name="decode-0", epoch=7, ticket=3),
        ),
        (
            Removal(name="decode-0"),
            Seen(phase=R, epoch=7, is_heard=True, draining=True, ticket=3, is_taken=True),
            Act(verb=Verb.STOP, name="decode-0", epoch=7),
        ),
        (
            Removal(name="decode-0", kill=True),
            Seen(phase=R, epoch=7, is_heard=True),
            Act(verb=Verb.KILL, name="decode-0", epoch=7),
        ),
    ],
)
def test_each_step_follows_from_what_is_seen(
    removal: Removal | None, seen: Seen, act: Act | None
) -> None:
    desired = seated("decode-0@a")
    if removal is not None:
        desired = desired.removed(removal)
    acts = next_acts(desired, View(workers={"decode-0": seen}))
    assert acts == ([] if act is None else [act])


def test_on_a_silent_host_only_a_kill_is_tried_and_no_seat_is_freed() -> None:
    away = frozenset({"a"})
    seen = Seen(phase=R, epoch=7, is_heard=True)
    view = View(workers={"decode-0": seen}, closed=away, silent=away)
    drains = seated("decode-0@a").removed(Removal(name="decode-0"))
    assert next_acts(drains, view) == []
    assert next_acts(seated("decode-0@a").removed(Removal(name="decode-0", kill=True)), view)
    assert next_acts(seated("decode-0@a"), View(closed=away, silent=away)) == []
    rooms = inventory(prefill=0, decode=0, a=1)
    assert next_desired(drains, rooms, View(closed=away, silent=away)) == drains
    assert next_desired(drains, rooms, View(closed=away)).seats == ()  # it was switched off


def test_the_cheapest_worker_goes() -> None:
    rooms = inventory(prefill=1, decode=2, a=3, b=3)
    now = seated("prefill-0@a", "decode-0@a", "decode-1@a", "decode-2@b")
    assert _who_goes(now, rooms, running(now)) == ["decode-2"]  # the emptiest host
    now = seated("prefill-0@b", "decode-0@a", "decode-1@a", "decode-2@b")
    assert _who_goes(now, rooms, running(now, {"decode-2": 5, "decode-1": 2})) == ["decode-0"]
    assert _who_goes(now, rooms, running(now)) == ["decode-2"]  # the youngest
    assert _who_goes(replace(now, cordoned=("a",)), rooms, running(now)) == ["decode-1"]


def _who_goes(desired: Desired, rooms: Inventory, view: View) -> list[str]:
    return [removal.name for removal in next_desired(desired, rooms, view).removals]


def test_who_drains_is_kept_when_the_pool_grows_again() -> None:
    rooms = inventory(decode=2, a=2, b=2)
    now = seated("prefill-0@a", "decode-0@a", "decode-1@b")
    less = next_desired(now.pinned("decode", 1), rooms, running(now))
    assert [removal.name for removal in less.removals] == ["decode-1"]
    view = running(now)
    drains = replace(view.of("decode-1"), draining=True)
    view = View(workers={**view.workers, "decode-1": drains})
    more = next_desired(less.pinned("decode", None), rooms, view)
    assert (more.removals, more.undrain) == ((), ("decode-1",))
    assert next_acts(more, view) == [Act(verb=Verb.UNDRAIN, name="decode-1", epoch=3)]
    assert next_desired(more, rooms, running(now)).undrain == ()


def test_whose_ticket_is_taken_goes_and_another_one_comes() -> None:
    rooms = inventory(decode=2, a=2, b=2)
    now = seated("prefill-0@a", "decode-0@a", "decode-1@b").removed(Removal(name="decode-1"))
    view = running(now)
    taken = replace(view.of("decode-1"), draining=True, ticket=1, is_taken=True)
    more = next_desired(now, rooms, View(workers={**view.workers, "decode-1": taken}))
    assert [removal.name for removal in more.removals] == ["decode-1"]
    assert names(more)[-1] == "decode-2@b"


def test_who_dies_on_a_cordoned_host_comes_back_elsewhere() -> None:
    rooms = inventory(a=2, b=2)
    now = cordon(seated("prefill-0@a", "decode-0@b"), rooms, "b").desired
    view = View(workers={"prefill-0": running(now).of("prefill-0")})
    assert names(next_desired(now, rooms, view)) == ["prefill-0@a", "decode-0@a"]


@dataclass
class Facts:
    """A cluster, and how the acts change it. `saved` is all that a controller leaves behind."""

    rooms: Inventory
    saved: Desired
    workers: dict[str, Seen] = field(default_factory=dict)
    hosts: dict[str, str] = field(default_factory=dict)  # where each worker runs
    epoch: int = 0

    def view(self, silent: frozenset[str] = frozenset()) -> View:
        return View(workers=dict(self.workers), closed=silent, silent=silent)

    def carry_out(self, act: Act) -> None:
        seen = self.workers.get(act.name)
        if act.verb is Verb.START:
            assert seen is None
            self.epoch += 1
            seat = self.saved.seat(act.name)
            assert seat is not None
            self.hosts[act.name] = seat.host
            self.workers[act.name] = Seen(phase=Phase.STARTING, epoch=self.epoch)
            for room in self.rooms.rooms:  # at every instant, those that drain counted
                assert sum(host == room.host for host in self.hosts.values()) <= room.seats
            return
        assert seen is not None
        if act.verb is Verb.STOP:
            assert seen.is_taken, "it was stopped without a ticket"
        if act.verb in (Verb.STOP, Verb.KILL, Verb.CALL_OFF):
            self.end(act.name)
        elif act.verb is Verb.DRAIN:
            self.workers[act.name] = replace(seen, draining=True, hands_over=act.hand_over)
        elif act.verb is Verb.UNDRAIN:
            assert not seen.is_taken
            self.workers[act.name] = replace(seen, draining=False, hands_over=False, ticket=0)
        elif act.verb is Verb.TAKE_TICKET and seen.ticket == act.ticket:
            self.workers[act.name] = replace(seen, is_taken=True)

    def end(self, name: str) -> None:
        del self.workers[name], self.hosts[name]

    def happen(self, chance: random.Random) -> None:
        """Something of its own."""
        for name, seen in list(self.workers.items()):
            if seen.phase is Phase.STARTING and chance.random() < 0.5:
                self.workers[name] = replace(seen, phase=R, is_heard=True)
            elif seen.draining and not seen.ticket and chance.random() < 0.3:
                self.workers[name] = replace(seen, ticket=seen.epoch)
            elif chance.random() < 0.02:
                self.end(name)


def test_random_acts_and_deaths_of_controllers_end_as_desired_and_never_beyond_the_seats() -> None:
    for seed in range(30):
        chance = random.Random(seed)
        rooms = inventory(prefill=2, decode=2, a=3, b=3)
        facts = Facts(rooms, Desired())
        for _ in range(60):
            _operator(facts, chance)
            silent = frozenset({"b"}) if chance.random() < 0.1 else frozenset()
            _controller(facts, chance, silent=silent, survives=0.8)
            facts.happen(chance)
        for _ in range(80):
            _controller(facts, chance, silent=frozenset(), survives=1.0)
            for name, seen in list(facts.workers.items()):
                running_now = replace(seen, phase=R, is_heard=True)
                ticket = seen.epoch if seen.draining else 0
                facts.workers[name] = replace(running_now, ticket=ticket)
        end = facts.saved
        assert (end.removals, end.undrain) == ((), ()), seed
        assert {*facts.workers} == {seat.name for seat in end.seats}, seed
        assert not any(seen.draining for seen in facts.workers.values()), seed
        open_seats = sum(r.seats for r in rooms.rooms if r.host not in end.cordoned)
        wanted = sum(target(end, pool) for pool in rooms.pools)
        assert len(facts.workers) == wanted or len(facts.workers) >= min(open_seats, wanted), seed


def _operator(facts: Facts, chance: random.Random) -> None:
    desired, view = facts.saved, facts.view()
    try:
        match chance.randrange(12):
            case 0 | 1:
                sizes = {"prefill": chance.randrange(1, 4), "decode": chance.randrange(1, 4)}
                desired = scale(desired, facts.rooms, view, sizes).desired
            case 2:
                desired = scale(desired, facts.rooms, view, {"decode": None}).desired
            case 3 if desired.seats:
                name = chance.choice(desired.seats).name
                desired = kill(desired, facts.rooms, view, name).desired
            case 4:
                desired = drain_host(desired, facts.rooms, view, chance.choice("ab")).desired
            case 5 | 6:
                undo = chance.random() < 0.7
                desired = cordon(desired, facts.rooms, chance.choice("ab"), undo=undo).desired
    except RefusedError:
        return
    facts.saved = desired


def _controller(
    facts: Facts, chance: random.Random, *, silent: frozenset[str], survives: float
) -> None:
    """One round; it may die between saving and any act."""
    view = facts.view(silent)
    facts.saved = next_desired(facts.saved, facts.rooms, view)
    for act in next_acts(facts.saved, view):
        if chance.random() > survives:
            return
        facts.carry_out(act)


def test_whose_ticket_was_taken_just_before_it_was_to_stay_starts_again_on_its_seat() -> None:
    rooms = inventory(a=3)
    now = seated("prefill-0@a", "decode-0@a").removed(Removal(name="decode-0")).kept("decode-0")
    view = running(now)
    taken = replace(view.of("decode-0"), draining=True, ticket=1, is_taken=True)
    view = View(workers={**view.workers, "decode-0": taken})
    goes = next_desired(now, rooms, view)
    assert (goes.removals, goes.undrain) == ((Removal(name="decode-0", renew=True),), ())
    assert [act.verb for act in next_acts(goes, view)] == [Verb.STOP]
    there = View(workers={"prefill-0": view.of("prefill-0")})
    again = next_desired(goes, rooms, there)
    assert (again.removals, names(again)) == ((), names(now))
    assert [act.verb for act in next_acts(again, there)] == [Verb.START]
