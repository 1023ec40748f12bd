"""Takes a cluster from one revision of its model to another, one pair of workers at a time.

    2 prefill, 2 decode workers, o of the former revision, N of the new one, . on its way

    prefill  o o     o .     o N     . N     N N
    decode   o o     o .     o N     . N     N N
             begin   wave    hold    wave    over

A wave is one worker of each pool that has several left, or the last ones of all. It begins when the
workers of the wave before serve, and only if a pair of one revision serves without it, at every
router. Pages move within a revision only: the router pairs equal fingerprints. A worker drains, is
stopped on its ticket, and its seat has the next one (`Removal.renew`).

All of it follows from what is desired, which is saved, and from what is seen. So a controller that
takes over goes on, and an undo is the same way back: only the goal is another.
"""

from __future__ import annotations

import textwrap
from collections.abc import Collection
from dataclasses import replace
from enum import StrEnum

from twolane.deploy.controller.desired import Desired, Removal, Rollout, Seat
from twolane.deploy.controller.reconcile import Phase, Seen, View, next_desired, roles_of
from twolane.deploy.controller.seats import Inventory, Pool, number_of
from twolane.deploy.spec.settings import DECODE, PREFILL

_SHOWN = 160  # characters of an error


class State(StrEnum):
    """CANARY waits for an operator, as does PAUSED."""

    RUNNING = "running"
    CANARY = "canary"
    PAUSED = "paused"
    UNDOING = "undoing"
    DONE = "done"
    UNDONE = "undone"


def state_of(its: Rollout) -> State:
    if its.is_over:
        return State.UNDONE if its.undo else State.DONE
    if its.undo:
        return State.UNDOING
    if its.paused:
        return State.PAUSED
    return State.CANARY if its.holds else State.RUNNING


def rolled(desired: Desired, inventory: Inventory, view: View) -> Desired:
    """One step on, if one can be taken now."""
    its = desired.rolling
    if its is None:
        return desired
    desired = _kept_where_cordoned(desired, view)
    if its.undo:
        desired = _called_off(desired, its, view)
    old = _left(desired, its)
    if not old and not desired.removals and not _unready(desired, inventory, view, its):
        over = replace(its, is_over=True, holds=False)
        return replace(desired, rollout=over, model_dir=its.goal)
    if its.paused or why_not(desired, inventory, view):
        return desired
    if (
        its.canary
        and not its.undo
        and not its.holds
        and _serves(desired, inventory, view, its.goal)
    ):
        return replace(desired, rollout=replace(its, holds=True))
    if its.holds:
        return desired
    for seat in next_wave(desired, view):
        # a pool that had two meanwhile has its new one already
        desired = desired.removed(Removal(name=seat.name, renew=seat.pool not in its.extra))
    return desired


def next_wave(desired: Desired, view: View) -> list[Seat]:
    """The workers that are to go next: of each pool the one with the least to do. Those on cordoned
    hosts stay: none would start there again."""
    its = desired.rolling
    assert its is not None
    by_pool: dict[str, list[Seat]] = {}
    for seat in _left(desired, its):
        by_pool.setdefault(seat.pool, []).append(seat)
    several = [seats for seats in by_pool.values() if len(seats) > 1]
    of_pools = [
        [seat for seat in seats if seat.host not in desired.cordoned]
        for seats in several or by_pool.values()
    ]
    return [min(seats, key=lambda seat: _cost(seat, view)) for seats in of_pools if seats]


def why_not(desired: Desired, inventory: Inventory, view: View) -> str:
    """Why the next wave does not begin now, in words; empty: it may."""
    its = desired.rolling
    assert its is not None
    if desired.removals:
        waits = [_waits(desired, view, removal.name) for removal in desired.removals]
        return ", ".join(waits)
    if unready := _unready(desired, inventory, view, its):
        return ", ".join(_waits(desired, view, seat.name) for seat in unready)
    if why := held_up(desired, inventory, view):
        return why
    pool = _short(desired, its, inventory)
    return "" if pool is None else f"a second worker of {pool.name} is about to start"


def held_up(desired: Desired, inventory: Inventory, view: View) -> str:
    """Why it cannot go on although no worker is on the way, in words; empty: it can."""
    its = desired.rolling
    assert its is not None
    if (pool := _short(desired, its, inventory)) is not None:
        closed = {*desired.cordoned, *view.closed}
        if inventory.free_seat(pool, desired.seats, closed) is not None:
            return ""
        return f"there is no free seat for a second worker of {pool.name}"
    wave = {seat.name for seat in next_wave(desired, view)}
    stay = sorted(seat.name for seat in _left(desired, its) if seat.host in desired.cordoned)
    if stay and not wave:
        return f"{' and '.join(stay)} cannot start again: {', '.join(desired.cordoned)} is cordoned"
    is_last = _any_serves(desired, inventory, view) and not _any_serves(
        desired, inventory, view, wave
    )
    if is_last:  # guard: a pair is left
        return f"no complete prefill/decode pair would be left without {' and '.join(sorted(wave))}"
    return ""


def way_out(desired: Desired) -> str:
    """The commands that let a rollout go on, or back, which `held_up` stops; empty: there is none
    but a free seat."""
    its = desired.rolling
    assert its is not None
    commands = [f"`twolane uncordon {host}`" for host in desired.cordoned]
    if not its.undo:
        commands.append("`twolane rollout undo`")
    return " or ".join(commands)


def let_end(desired: Desired, inventory: Inventory) -> Desired:
    """Where a rollout could not end any more, let pools of one worker have a second one meanwhile,
    if that helps once no host is cordoned."""
    its = desired.rolling
    if its is None or not blocked(replace(desired, cordoned=()), inventory):
        return desired
    alone = {pool.name for pool in inventory.pools if len(desired.staying(pool.name)) == 1}
    extra = (*its.extra, *sorted(alone - {*its.extra}))
    new = replace(desired, rollout=replace(its, extra=extra))
    return desired if blocked(replace(new, cordoned=()), inventory) else new


def blocked(desired: Desired, inventory: Inventory) -> str:
    """Why the rollout could not end, if nothing fails; empty: it could."""
    its = desired.rolling
    assert its is not None
    desired = replace(desired, rollout=replace(its, canary=0.0, holds=False, paused=False))
    while desired.rolling is not None:
        before = desired
        desired = next_desired(desired, inventory, _as_if_up(desired, inventory))
        desired = rolled(desired, inventory, view := _as_if_up(desired, inventory))
        why = why_not(desired, inventory, view) if desired.rolling is not None else ""
        there = {name: its for name, its in view.workers.items() if desired.removal(name) is None}
        desired = next_desired(desired, inventory, View(workers=there))
        if desired == before:
            return why
    return ""


def serves(desired: Desired, inventory: Inventory, view: View, seat: Seat) -> bool:
    """Whether every router gives it work."""
    seen = view.of(seat.name)
    is_there = seen.is_heard and seen.everywhere and not seen.draining
    is_wanted = desired.removal(seat.name) is None
    return (
        is_there
        and is_wanted
        and roles_of(inventory, seat) <= (seen.roles or roles_of(inventory, seat))
    )


def _kept_where_cordoned(desired: Desired, view: View) -> Desired:
    """A cordon lets workers run on: who drains there to start again, and could stay, stays."""
    for removal in desired.removals:
        seat = desired.seat(removal.name)
        is_there = seat is not None and seat.host in desired.cordoned
        if is_there and removal.renew and _can_stay(removal, view):
            desired = desired.kept(removal.name)
    return desired


def _can_stay(removal: Removal, view: View) -> bool:
    seen = view.of(removal.name)
    return seen.phase is Phase.RUNNING and not seen.is_taken and not removal.kill


def _called_off(desired: Desired, its: Rollout, view: View) -> Desired:
    """Who is on the way to the new revision, and not there, goes back at once: it may never come
    up. Who drains for it, and could stay, stays."""
    for removal in desired.removals:
        seat = desired.seat(removal.name)
        is_old = seat is not None and seat.model_dir == its.goal
        if is_old and removal.renew and _can_stay(removal, view):
            desired = desired.kept(removal.name)
    for seat in _left(desired, its):
        is_up = view.of(seat.name).phase in (Phase.RUNNING, Phase.LEFT)
        if not is_up and seat.host not in view.silent:
            desired = desired.removed(Removal(name=seat.name, renew=seat.pool not in its.extra))
    return desired


def _left(desired: Desired, its: Rollout) -> list[Seat]:
    """The workers that have the other revision, and are not on their way."""
    return [
        seat
        for seat in desired.seats
        if seat.model_dir != its.goal and desired.removal(seat.name) is None
    ]


def _unready(desired: Desired, inventory: Inventory, view: View, its: Rollout) -> list[Seat]:
    return [
        seat
        for seat in desired.seats
        if seat.model_dir == its.goal and not serves(desired, inventory, view, seat)
    ]


def _short(desired: Desired, its: Rollout, inventory: Inventory) -> Pool | None:
    """The pool that is to have a second worker, and has one of the other revision alone."""
    for pool in inventory.pools:
        of_pool = [seat for seat in desired.seats if seat.pool == pool.name]
        has_new = any(seat.model_dir == its.goal for seat in of_pool)
        if pool.name in its.extra and of_pool and not has_new:
            return pool
    return None


def _any_serves(
    desired: Desired, inventory: Inventory, view: View, without: Collection[str] = ()
) -> bool:
    revisions = {seat.model_dir for seat in desired.seats}
    return any(_serves(desired, inventory, view, each, without) for each in revisions)


def _serves(
    desired: Desired,
    inventory: Inventory,
    view: View,
    model_dir: str,
    without: Collection[str] = (),
) -> bool:
    """Whether workers of that revision have both roles."""
    roles: set[str] = set()
    for seat in desired.seats:
        is_of_it = seat.model_dir == model_dir and seat.name not in without
        if is_of_it and serves(desired, inventory, view, seat):
            roles |= roles_of(inventory, seat)
    return roles >= {PREFILL, DECODE}


def _cost(seat: Seat, view: View) -> tuple[bool, int, int]:
    """Who does not serve goes first, then who has the fewest requests, then the youngest."""
    seen = view.of(seat.name)
    return seen.is_heard, seen.rows, -number_of(seat)


def _waits(desired: Desired, view: View, name: str) -> str:
    """What that worker is waited for."""
    now, seen = doing(desired, view, name), view.of(name)
    if now == "drains":
        return f"{name} drains, {seen.rows} request{'s' * (seen.rows != 1)} left"
    if seen.failed:
        why, _, _ = seen.failed.strip().partition("\n")
        return f"{name} {now} again ({textwrap.shorten(why, _SHOWN, placeholder=' …')})"
    return f"{name} {now}"


def doing(desired: Desired, view: View, name: str) -> str:
    """In a word, for people."""
    seen = view.of(name)
    if seen.phase is not Phase.RUNNING:
        return "starts"
    if desired.removal(name) is not None or seen.draining:
        return "drains"
    return "serves" if seen.is_heard and seen.everywhere else "is not heard by every router"


def _as_if_up(desired: Desired, inventory: Inventory) -> View:
    """All workers run, and those that are to go could at once."""
    return View(
        workers={
            seat.name: Seen(phase=Phase.RUNNING, is_heard=True, roles=roles_of(inventory, seat))
            for seat in desired.seats
        }
    )
