"""Applies operators' acts to the desired state, and lists what each changes.

An act is accepted as a whole, or refused as a whole with the reason. Nothing is done here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from twolane.deploy.controller.desired import Change, Desired, Mode, Removal, Seat
from twolane.deploy.controller.reconcile import (
    Phase,
    View,
    next_desired,
    resized,
    roles_of,
    target,
)
from twolane.deploy.controller.rollout import let_end
from twolane.deploy.controller.seats import Inventory, Pool
from twolane.deploy.errors import RefusedError
from twolane.deploy.spec.settings import DECODE, PREFILL

_ON_TICKET = "drains, is stopped on its ticket"


@dataclass(frozen=True, slots=True, kw_only=True)
class Decided:
    """The desired state once the act is accepted, and the changes that follow from it. `epoch`: the
    one that is to be fenced."""

    desired: Desired
    changes: tuple[Change, ...]
    epoch: int = 0


def scale(
    desired: Desired,
    inventory: Inventory,
    view: View,
    sizes: Mapping[str, int | None],
    for_s: float = 0.0,
) -> Decided:
    """Pin all these pools at these sizes (None: remove the pin), or none. Raises `RefusedError`."""
    check_not_rolling(desired)
    new = desired
    for name, n in sizes.items():
        if inventory.pool(name) is None:
            known = ", ".join(pool.name for pool in inventory.pools)
            raise RefusedError(f"there is no pool {name}; there are {known}")
        new = new.pinned(name, n, for_s)
    least = {pool.name: _least_of(new, pool) for pool in inventory.pools}
    if roles := _roles_nobody_has(inventory, least):
        raise RefusedError(_nobody_left(roles[0], inventory, sizes))
    whole = _with_every_role(new, inventory)
    end, missing = outcome(whole, inventory, view)
    if missing:
        raise RefusedError(_no_room(missing, end, inventory, view))
    as_asked, _ = outcome(new, inventory, view)
    if _has_every_role(as_asked, inventory):
        end = as_asked
    else:
        new = whole
        for unpinned in [its for its in inventory.pools if new.pin(its.name) is None]:
            new = resized(new, inventory, unpinned, view)
    changes = [
        Change(subject=f"pool {pool.name}", before=_size(desired, pool), after=_size(new, pool))
        for name in sizes
        if (pool := inventory.pool(name)) is not None
    ]
    return Decided(desired=new, changes=_with_outcome(changes, desired, end, inventory, view))


def _least_of(desired: Desired, pool: Pool) -> int:
    """How many workers the pool can count on. Where the cluster sizes itself, the law starts one
    for a pool that is not pinned."""
    n = target(desired, pool)
    return max(1, n) if desired.sizes and desired.pin(pool.name) is None else n


def _with_every_role(desired: Desired, inventory: Inventory) -> Desired:
    """Where the cluster sizes itself: with a worker of each pool that is not pinned, if any pool is
    to have workers. Alone they serve no request."""
    if not any(target(desired, pool) for pool in inventory.pools):
        return desired
    sizes = tuple(
        size if desired.pin(size.pool) else replace(size, n=max(1, size.n))
        for size in desired.sizes
    )
    return replace(desired, sizes=sizes)


def _has_every_role(desired: Desired, inventory: Inventory) -> bool:
    """Whether its workers have them; true at zero, where the law starts the first worker."""
    staying = [seat for pool in inventory.pools for seat in desired.staying(pool.name)]
    roles = {role for seat in staying for role in roles_of(inventory, seat)}
    return not staying or roles >= {PREFILL, DECODE}


def _nobody_left(role: str, inventory: Inventory, asked: Mapping[str, int | None]) -> str:
    """The refusal of sizes with which no worker has that role, and what helps: a pool that is not
    `asked` for is pinned at zero, as after a kill."""
    pinned = [its.name for its in inventory.pools if role in its.roles and its.name not in asked]
    if not pinned:
        return f"nobody is left to {role} then: `twolane down` ends a cluster"
    sizes = " ".join(f"{pool}={'auto' if n is None else n}" for pool, n in asked.items())
    command = f"`twolane scale {sizes} {pinned[0]}=auto`"
    return f"nobody is left to {role} then, as {pinned[0]} is pinned at 0: {command}"


def _no_such_worker(desired: Desired, name: str) -> str:
    known = ", ".join(seat.name for seat in desired.seats)
    there = f"there are {known}" if known else "the cluster has no workers now"
    return f"there is no worker {name}; {there}"


def kill(desired: Desired, inventory: Inventory, view: View, name: str) -> Decided:
    """Kill a worker and do not restart it: pin its pool at one less; at its size, if a rollout
    gave it one more. Raises `RefusedError`."""
    seat = desired.seat(name)
    pool = None if seat is None else inventory.pool(seat.pool)
    if seat is None or pool is None:
        raise RefusedError(_no_such_worker(desired, name))
    new = desired.removed(Removal(name=name, kill=True))
    if seat in (staying := desired.staying(pool.name)):
        n = target(desired, pool)
        new = new.pinned(pool.name, max(0, n if desired.rolling and len(staying) > n else n - 1))
        new = let_end(new, inventory)
    rows = view.of(name).rows
    after = "is killed, not started again"
    if rows:
        after += f"; its {_requests(rows)} resume elsewhere"
    changes = [
        Change(subject=name, before=_now(desired, seat, view), after=after),
        Change(subject=f"pool {pool.name}", before=_size(desired, pool), after=_size(new, pool)),
    ]
    changes += [
        Change(subject=f"pool {its}", before="", after="has two workers until the rollout's end")
        for its in _meanwhile_two(desired, new)
    ]
    return Decided(desired=new, changes=(*changes, *_roles_at_stake(desired, new, inventory)))


def _meanwhile_two(before: Desired, new: Desired) -> list[str]:
    """Pools that may have a second worker from now on, until the rollout ends."""
    was, its = before.rolling, new.rolling
    return [] if was is None or its is None else sorted({*its.extra} - {*was.extra})


def flip(desired: Desired, inventory: Inventory, view: View, name: str) -> Decided:
    """Have a worker take the other pool's role. Its pool is one smaller then, and the other one
    larger: both are pinned so, unless the law sizes them. Raises `RefusedError`."""
    check_not_rolling(desired)
    seat = desired.seat(name)
    if seat is None or (pool := inventory.pool(seat.pool)) is None:
        raise RefusedError(_no_such_worker(desired, name))
    if desired.removal(name) is not None:
        raise RefusedError(f"{name} is to go")
    others = [its for its in inventory.pools if len(its.roles) == 1 and its.roles != pool.roles]
    if len(pool.roles) > 1 or len(others) != 1:
        raise RefusedError(f"{name} is of pool {pool.name}, which has no single pool to flip to")
    (other,) = others
    seen = view.of(name)
    if not seen.is_heard:
        raise RefusedError(f"{name} is not ready")
    if not {*other.roles} <= seen.able:
        raise RefusedError(
            f"{name} cannot {other.roles[0]}: workers that flip are made ready for both roles at "
            "their start (--flips)"
        )
    if pool.n_gpus != other.n_gpus:
        raise RefusedError(f"workers of {pool.name} and {other.name} have other numbers of GPUs")
    if len(desired.staying(pool.name)) < 2:
        raise RefusedError(f"{name} is the last worker of {pool.name}")
    new = desired.flipped(name, other.name)
    if new.sizes:
        new = new.sized()
    for its in (pool, other):
        if not new.sizes or new.pin(its.name) is not None:
            new = new.pinned(its.name, len(new.staying(its.name)))
    change = Change(
        subject=name,
        before=f"{pool.roles[0]}s",
        after=f"{other.roles[0]}s at once; its {_requests(seen.rows)} run out",
    )
    sizes = [
        Change(subject=f"pool {its.name}", before=_size(desired, its), after=_size(new, its))
        for its in (pool, other)
    ]
    return Decided(desired=new, changes=(change, *sizes))


def set_mode(desired: Desired, mode: str, *, sizes_itself: bool) -> Decided:
    """Have the law decide and act, or less. Raises `RefusedError`."""
    if not sizes_itself:
        raise RefusedError("this cluster does not size its pools: start it with --autoscale")
    if mode not in {*Mode}:
        raise RefusedError(f"the scaler has the modes {', '.join(Mode)}, not {mode!r}")
    before = desired.mode or Mode.ON
    if before == mode:
        return Decided(desired=desired, changes=())
    change = Change(subject="scaler", before=before, after=mode)
    return Decided(desired=replace(desired, mode=mode), changes=(change,))


def cordon(desired: Desired, inventory: Inventory, host: str, *, undo: bool = False) -> Decided:
    """Cordon or uncordon a host: whether new workers may start on it. Raises `RefusedError`."""
    _check_host(inventory, host)
    others = tuple(name for name in desired.cordoned if name != host)
    new = replace(desired, cordoned=others if undo else (*others, host))
    return Decided(desired=new, changes=_host_change(desired, new, host))


def drain_host(
    desired: Desired, inventory: Inventory, view: View, host: str, *, hand_over: bool = False
) -> Decided:
    """Cordon a host, drain all its workers and stop them. Raises `RefusedError`."""
    check_not_rolling(desired)
    new = cordon(desired, inventory, host).desired
    changes = [*_host_change(desired, new, host)]
    for seat in desired.seats:
        if seat.host == host:
            new = new.removed(Removal(name=seat.name, hand_over=hand_over))
    end, missing = outcome(new, inventory, view)
    changes = [*_with_outcome(changes, desired, end, inventory, view)]
    changes += [
        Change(subject=name, before=f"runs on {host}", after="stays: it is no worker", stays=True)
        for name, its_host in inventory.routers
        if its_host == host
    ]
    changes += [
        Change(subject=f"pool {name}", before="", after=f"is {n} short until there is room again")
        for name, n in missing.items()
    ]
    return Decided(desired=new, changes=(*changes, *_roles_at_stake(desired, new, inventory)))


def check_not_rolling(desired: Desired) -> None:
    """Raise `RefusedError` while a rollout is under way: the law of its steps wants sizes that
    stay."""
    if desired.rolling is not None:  # guard: rollout
        wait = "wait for its end, or"
        if desired.rolling.holds or desired.rolling.paused:
            wait = "it waits for you: `twolane rollout resume` or"
        raise RefusedError(f"a rollout is under way: {wait} `twolane rollout undo`")


def outcome(desired: Desired, inventory: Inventory, view: View) -> tuple[Desired, dict[str, int]]:
    """What becomes of it once all workers that are to go and can go are gone, and how many workers
    each pool lacks then because there is no room. A worker on a silent host keeps its seat and its
    removal."""
    while True:
        new = next_desired(desired, inventory, view)
        leaving = {removal.name for removal in new.removals}
        workers = {name: seen for name, seen in view.workers.items() if name not in leaving}
        is_settled = new == desired and len(workers) == len(view.workers)
        desired, view = new, replace(view, workers=workers)
        if is_settled:
            break
    lacks = {p.name: target(desired, p) - len(desired.staying(p.name)) for p in inventory.pools}
    return desired, {name: n for name, n in lacks.items() if n > 0}


def _with_outcome(
    changes: list[Change], before: Desired, end: Desired, inventory: Inventory, view: View
) -> tuple[Change, ...]:
    """The changes, with every worker that is removed, kept or added."""
    for seat in before.seats:
        if seat in end.seats and end.removal(seat.name) is not None:
            now = _now(before, seat, view)
            after = f"stays until {seat.host} answers or is fenced"
            changes.append(Change(subject=seat.name, before=now, after=after))
        elif seat not in end.seats and before.removal(seat.name) is None:
            rows = view.of(seat.name).rows
            its = f"; it has {_requests(rows)}" if rows else ""
            now = _now(before, seat, view)
            changes.append(Change(subject=seat.name, before=now, after=_ON_TICKET + its))
        elif seat in end.seats and before.removal(seat.name) is not None:
            now = _now(before, seat, view)
            changes.append(Change(subject=seat.name, before=now, after="is kept"))
    changes += [
        Change(subject=seat.name, before="", after=f"starts{_at(seat)}")
        for seat in end.seats
        if seat not in before.seats
    ]
    budget = inventory.budget(before.seats), inventory.budget(end.seats)
    if budget[0] != budget[1]:
        changes.append(Change(subject="in the end", before=budget[0], after=budget[1]))
    return tuple(changes)


def _roles_at_stake(before: Desired, new: Desired, inventory: Inventory) -> list[Change]:
    """Roles that no worker has until a new one has started. Their requests wait."""
    counts = [{p.name: len(d.staying(p.name)) for p in inventory.pools} for d in (before, new)]
    had, has = (_roles_nobody_has(inventory, n_of) for n_of in counts)
    return [
        Change(subject=role, before="", after="nobody is left: requests wait, then fail")
        for role in has
        if role not in had
    ]


def _roles_nobody_has(inventory: Inventory, n_of: Mapping[str, int]) -> list[str]:
    """Roles of the pools that no worker has if each pool has `n_of` workers."""
    there = {role for pool in inventory.pools for role in pool.roles if n_of[pool.name]}
    return [role for role in (PREFILL, DECODE) if role not in there]


def _check_host(inventory: Inventory, host: str) -> None:
    if inventory.hosts == [""]:
        raise RefusedError("this cluster has no hosts: it is on one machine")
    if host not in inventory.hosts:
        raise RefusedError(f"there is no host {host}; there are {', '.join(inventory.hosts)}")


def _host_change(before: Desired, after: Desired, host: str) -> tuple[Change, ...]:
    was, now = (host in desired.cordoned for desired in (before, after))
    words = {True: "cordoned", False: "open"}
    change = Change(subject=f"host {host}", before=words[was], after=words[now])
    return () if was == now else (change,)


def _no_room(missing: Mapping[str, int], end: Desired, inventory: Inventory, view: View) -> str:
    """The message for a desired state that does not fit. Seats that are free and cannot be taken
    are not left unsaid."""
    needs = [
        f"{n} of {name}" + (f" with {pool.n_gpus} GPUs each" if pool.n_gpus > 1 else "")
        for name, n in missing.items()
        if (pool := inventory.pool(name)) is not None
    ]
    why = [f"{host} is cordoned" for host in sorted(end.cordoned)]
    why += [f"{host} does not answer" for host in sorted(view.closed)]
    if inventory.most_gpus:
        why.append(f"the budget is {inventory.most_gpus}")
    if not why and not any(pool.n_gpus for pool in inventory.pools):
        why.append("`twolane up --seats`, or a topology's hosts, set how many there are")
    taken = f"{inventory.budget(end.seats)} are taken then"
    return f"no room for {', '.join(needs)}: {'; '.join([taken, *why])}"


def _size(desired: Desired, pool: Pool) -> str:
    pin = desired.pin(pool.name)
    if pin is None:
        return f"{target(desired, pool)}"
    return f"{pin.n}, pinned" + (f" for {pin.left_s:g} s" if pin.left_s else "")


def _now(desired: Desired, seat: Seat, view: View) -> str:
    if desired.removal(seat.name) is not None:
        return f"drains{_at(seat)}"
    runs = view.of(seat.name).phase is Phase.RUNNING
    return f"{'runs' if runs else 'starts'}{_at(seat)}"


def _at(seat: Seat) -> str:
    return f" on {seat.host}" if seat.host else ""


def _requests(n: int) -> str:
    return "1 request" if n == 1 else f"{n} requests"
