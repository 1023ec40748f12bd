"""What the law's actions make of what is desired, and how the law sees the workers there.

    Start      a seat more, if there is one
    Flip       its seat is of the other pool
    Drain      it is to go: it drains, and is stopped on its ticket
    Undrain    it is to stay after all
    Cancel     its start is called off
    Delete     nothing: who is to go is stopped on its ticket in any case

The size of each pool is then what its workers count. So a controller that takes over finds the
decision as a whole or not at all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from twolane.deploy.controller.actions import Action, Cancel, Delete, Drain, Flip, Start, Undrain
from twolane.deploy.controller.desired import Desired, Removal, Size
from twolane.deploy.controller.observation import BOTH, Role, State
from twolane.deploy.controller.reconcile import Phase, Seen, View, revision_for, roles_of
from twolane.deploy.controller.seats import Inventory, Pool


def pools_by_role(inventory: Inventory) -> dict[Role, Pool]:
    """The pool of each role. Raises ValueError unless each has exactly one."""
    found: dict[Role, Pool] = {}
    for pool in inventory.pools:
        if len(pool.roles) > 1 or Role(pool.roles[0]) in found:
            raise ValueError("it sizes one pool of prefill and one of decode workers")
        found[Role(pool.roles[0])] = pool
    if len(found) < len(Role):
        raise ValueError("it sizes one pool of prefill and one of decode workers")
    return found


def begun(desired: Desired, inventory: Inventory) -> Desired:
    """The law sizes the pools from now on, from what they are."""
    if desired.sizes:
        return desired.sized()
    return replace(
        desired, sizes=tuple(Size(pool=its.name, n=0) for its in inventory.pools)
    ).sized()


def applied(desired: Desired, inventory: Inventory, view: View, action: Action) -> Desired | None:
    """None: it cannot be done now; there is no room, or the worker is another's business."""
    pools = pools_by_role(inventory)
    match action:
        case Start(roles=roles):
            pool = pools[Role.DECODE if roles == BOTH else min(roles)]
            closed = {*desired.cordoned, *view.closed}
            seat = inventory.free_seat(pool, desired.seats, closed)
            if seat is None:
                return None
            seat = replace(seat, model_dir=revision_for(desired, pool))
            if roles == BOTH:
                seat = replace(seat, roles=tuple(sorted(roles, reverse=True)))
            return desired.added(seat).sized()
        case Flip(worker_id=name, roles=roles):
            able = view.of(name).able
            if not {*roles} <= able:
                return None
            return desired.flipped(name, pools[min(roles)].name).sized()
        case Drain(worker_id=name) | Cancel(worker_id=name):
            return desired.removed(Removal(name=name)).sized()
        case Undrain(worker_id=name):
            if view.of(name).is_taken:
                return None
            return desired.kept(name).sized()
        case Delete():
            return desired


def state_of(
    desired: Desired, inventory: Inventory, view: View, name: str, was: State | None
) -> State:
    """As the law sees that worker. `was`: its state at the last look, in this incarnation: one that
    routers do not hear for a moment is still ready."""
    seat, seen = desired.seat(name), view.of(name)
    assert seat is not None
    if seat.host in view.silent:
        return State.LOST
    if desired.removal(name) is not None:
        return State.DRAINING
    if seen.phase is not Phase.RUNNING:
        return State.STARTING
    if seen.is_heard and seen.roles != roles_of(inventory, seat):
        return State.FLIPPING if was in (State.READY, State.FLIPPING) else State.STARTING
    return State.READY if seen.is_heard else was or State.STARTING


def has_ticket(desired: Desired, seen: Seen, name: str) -> bool:
    return desired.removal(name) is not None and bool(seen.ticket or seen.is_taken)


def pins_by_role(desired: Desired, pools: Mapping[Role, Pool]) -> dict[Role, int]:
    return {role: pin.n for role, pool in pools.items() if (pin := desired.pin(pool.name))}
