"""What is to be done next so that the cluster becomes what is desired: pure, and asked again and
again.

    too few   1 keep one that drains  2 start one on a free seat   else wait for a seat
    too many  drain one, stop it on its ticket: then its seat is free
    renewed   drain it, stop it on its ticket, start the next one on its seat: see `rollout`

`next_desired` moves what is desired; that is saved. `next_acts` follow from what was saved and what
is seen, so a controller that takes over comes to the same ones. Nothing here waits or remembers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum, auto

from twolane.deploy.controller.desired import Desired, Removal, Seat
from twolane.deploy.controller.seats import Inventory, Pool, number_of


class Phase(Enum):
    """The phase of a worker's process. ABSENT: proven dead, or never started. LEFT: it runs, and an
    earlier controller has started it."""

    ABSENT = auto()
    LEFT = auto()
    STARTING = auto()
    RUNNING = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What is known of one worker. `failed`, of one that starts: why it did not the last time, or
    has died. Of its drain as it reports it itself: `ticket` is the number of that drain, 0 before
    there is a ticket."""

    phase: Phase = Phase.ABSENT
    epoch: int = 0
    failed: str = ""
    rows: int = 0
    is_heard: bool = False  # by a router: what follows is news
    draining: bool = False
    hands_over: bool = False
    ticket: int = 0
    is_taken: bool = False
    roles: frozenset[str] = frozenset()  # that it offers
    able: frozenset[str] = frozenset()  # that it could offer
    everywhere: bool = True  # every router that answers gives it work
    fingerprint: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """Of the whole cluster. `closed` are hosts where nothing can be started now; on those of them
    that are `silent`, whatever was there may still run."""

    workers: Mapping[str, Seen] = field(default_factory=dict)
    closed: frozenset[str] = frozenset()
    silent: frozenset[str] = frozenset()

    def of(self, name: str) -> Seen:
        return self.workers.get(name, _UNSEEN)


_UNSEEN = Seen()


class Verb(Enum):
    START = "start"
    CALL_OFF = "call off"  # a start
    DRAIN = "drain"
    UNDRAIN = "undrain"
    TAKE_TICKET = "take the ticket of"
    STOP = "stop"
    KILL = "kill"


@dataclass(frozen=True, slots=True, kw_only=True)
class Act:
    """One thing to do with one worker. All may be done twice."""

    verb: Verb
    name: str
    epoch: int = 0
    ticket: int = 0
    hand_over: bool = False


def target(desired: Desired, pool: Pool) -> int:
    """How many workers the pool is to have."""
    pin, size = desired.pin(pool.name), desired.size(pool.name)
    if pin is None and size is not None:
        return size.n
    return pool.n_configured if pin is None else pin.n


def _meanwhile(desired: Desired, pool: Pool) -> int:
    """How many it is to have now: one more while a rollout replaces its only worker."""
    its = desired.rolling
    has_old = its is not None and any(
        seat.model_dir != its.goal and desired.removal(seat.name) is None
        for seat in desired.staying(pool.name)
    )
    is_extra = its is not None and pool.name in its.extra and has_old
    return target(desired, pool) + is_extra


def roles_of(inventory: Inventory, seat: Seat) -> frozenset[str]:
    """Those that the worker of that seat is to offer."""
    pool = inventory.pool(seat.pool)
    return frozenset(seat.roles or (pool.roles if pool is not None else ()))


def role_wishes(desired: Desired, inventory: Inventory, view: View) -> dict[int, frozenset[str]]:
    """Workers that are to offer other roles than they do, by epoch. One that drains is left."""
    found = {}
    for seat in desired.seats:
        seen, wanted = view.of(seat.name), roles_of(inventory, seat)
        is_asked = seen.is_heard and desired.removal(seat.name) is None
        if is_asked and seen.roles != wanted and wanted <= seen.able:
            found[seen.epoch] = wanted
    return found


def next_desired(desired: Desired, inventory: Inventory, view: View) -> Desired:
    """With what is over struck out, and each pool at its size as far as there is room now."""
    ended = {
        seat.name
        for seat in desired.seats
        if view.of(seat.name).phase is Phase.ABSENT and seat.host not in view.silent
    }
    for name in ended:
        seat = desired.seat(name)
        assert seat is not None
        removal = desired.removal(name)
        # who dies on a cordoned host does not come back there: its like starts elsewhere
        if seat.host in desired.cordoned or (removal is not None and not removal.renew):
            desired = desired.gone(name)
        elif removal is not None:
            desired = desired.renewed(name)
    for name in desired.undrain:
        seen = view.of(name)
        if name in ended or (seen.is_heard and not seen.draining):
            desired = desired.undrained(name)
        elif seen.is_taken:  # just before it was to stay
            desired = desired.removed(Removal(name=name, renew=True))
    for pool in inventory.pools:
        desired = resized(desired, inventory, pool, view)
    return desired


def resized(desired: Desired, inventory: Inventory, pool: Pool, view: View) -> Desired:
    n = _meanwhile(desired, pool)
    while len(desired.staying(pool.name)) < n:
        back = _to_keep(desired, pool, view)
        if back is not None:
            desired = desired.kept(back)
            continue
        seat = inventory.free_seat(pool, desired.seats, {*desired.cordoned, *view.closed})
        if seat is None:
            break
        desired = desired.added(replace(seat, model_dir=revision_for(desired, pool)))
    while len(staying := desired.staying(pool.name)) > n:
        seat = min(staying, key=lambda seat: _cost_of_removal(desired, inventory, seat, view))
        desired = desired.removed(Removal(name=seat.name))
    return desired


def revision_for(desired: Desired, pool: Pool) -> str:
    """Of a worker that the pool gets, from an operator or the law."""
    its = desired.rolling
    return its.goal if its is not None and pool.name in its.extra else desired.model_dir


def next_acts(desired: Desired, view: View) -> list[Act]:
    """For every worker that is not yet as it is to be."""
    acts = []
    for seat in desired.seats:
        act = _act_for(desired, seat, view.of(seat.name))
        if act is not None and (act.verb is Verb.KILL or seat.host not in view.closed):
            acts.append(act)
    return acts


def _act_for(desired: Desired, seat: Seat, seen: Seen) -> Act | None:
    name, epoch = seat.name, seen.epoch
    removal = desired.removal(name)
    if seen.phase is Phase.LEFT:
        return Act(verb=Verb.START, name=name)  # which finds it
    if removal is None:
        if seen.phase is Phase.ABSENT:
            return Act(verb=Verb.START, name=name)
        if name in desired.undrain and seen.draining and not seen.is_taken:
            return Act(verb=Verb.UNDRAIN, name=name, epoch=epoch)
        return None
    if seen.phase is Phase.ABSENT:
        return None
    if seen.phase is Phase.STARTING:
        return Act(verb=Verb.CALL_OFF, name=name)
    if removal.kill:
        return Act(verb=Verb.KILL, name=name, epoch=epoch)
    if seen.is_taken:  # guard: ticket before the end
        return Act(verb=Verb.STOP, name=name, epoch=epoch)
    if seen.ticket:
        return Act(verb=Verb.TAKE_TICKET, name=name, epoch=epoch, ticket=seen.ticket)
    if seen.is_heard and (not seen.draining or (removal.hand_over and not seen.hands_over)):
        return Act(verb=Verb.DRAIN, name=name, epoch=epoch, hand_over=removal.hand_over)
    return None


def _to_keep(desired: Desired, pool: Pool, view: View) -> str | None:
    """One that is to go, and could stay: it is there, and its ticket is not taken."""
    for removal in desired.removals:
        seat, seen = desired.seat(removal.name), view.of(removal.name)
        if seat is None or seat.pool != pool.name or seat.host in desired.cordoned:
            continue
        if removal.renew:  # it comes back anyway
            continue
        if not removal.kill and seen.phase is Phase.RUNNING and not seen.is_taken:  # guard: taken
            return removal.name
    return None


def _cost_of_removal(
    desired: Desired, inventory: Inventory, seat: Seat, view: View
) -> tuple[int, ...]:
    """The cheapest goes first: on a cordoned host, not running, drained already, on a host that can
    leave then, on the emptiest host, with the fewest requests, the youngest by its number."""
    seen = view.of(seat.name)
    return (
        seat.host not in desired.cordoned,
        seen.phase is Phase.RUNNING,
        not seen.draining,
        inventory.n_above(seat.host, desired.staying(seat.pool)),
        sum(other.host == seat.host for other in desired.seats),
        seen.rows,
        -number_of(seat),
    )
