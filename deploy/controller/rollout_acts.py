"""Starts, holds and undoes a rollout as operators ask for it, and tells how far it is. Nothing is
done here: the steps follow in `twolane.deploy.controller.rollout`."""

from __future__ import annotations

from dataclasses import replace

from twolane.deploy.controller.acts import Decided, check_not_rolling
from twolane.deploy.controller.desired import Change, Desired, Rollout
from twolane.deploy.controller.reconcile import View
from twolane.deploy.controller.rollout import (
    State,
    blocked,
    doing,
    held_up,
    let_end,
    state_of,
    way_out,
    why_not,
)
from twolane.deploy.controller.seats import Inventory
from twolane.deploy.errors import RefusedError
from twolane.deploy.spec.revision import Fit
from twolane.v1 import acts_pb2, cluster_pb2

_STEP = acts_pb2.StepRolloutRequest
_RENEWED = "drain, stop, restart with the {which} revision"
_CALLED_OFF = "start cancelled; restarts with the {which} revision"
_REPLACED = "stops once its replacement serves"


def start(
    desired: Desired,
    inventory: Inventory,
    view: View,
    asked: acts_pb2.StartRolloutRequest,
    fit: Fit | None,
) -> Decided:
    """`fit`: whether the directory may be a revision of this model, as the hosts have said; None:
    not all were asked, and it is refused, unless nothing changes. Raises `RefusedError`."""
    decided = without_fit(desired, inventory, view, asked)
    if not decided.changes:
        return decided
    if fit is None:  # guard: hosts not asked
        why = "the cluster has just changed, and not all of its hosts were asked: try again"
        raise RefusedError(why)
    if fit.why_not:
        raise RefusedError(fit.why_not)
    assert decided.desired.rollout is not None
    its = replace(decided.desired.rollout, fingerprint=fit.fingerprint)
    decided = replace(decided, desired=replace(decided.desired, rollout=its))
    if fit.unchecked:
        more = Change(subject="not checked", before="", after=fit.unchecked)
        return replace(decided, changes=(*decided.changes, more))
    return decided


def without_fit(
    desired: Desired, inventory: Inventory, view: View, asked: acts_pb2.StartRolloutRequest
) -> Decided:
    """What `start` would do if the directory may be a revision: it asks no host. Raises
    `RefusedError`."""
    after = "" if asked.model_dir == inventory.model_dir else asked.model_dir
    if not asked.model_dir:
        raise RefusedError("name the directory of the new revision")
    if desired.rolling is not None and desired.rolling.goal == after:
        return Decided(desired=desired, changes=())
    check_not_rolling(desired)
    if after == desired.model_dir and all(its.model_dir == after for its in desired.seats):
        return Decided(desired=desired, changes=())
    if not 0 <= asked.canary_share < 1:
        raise RefusedError(f"a canary has a share between 0 and 1, not {asked.canary_share:g}")
    if desired.removals or desired.undrain:
        waits = [f"{removal.name} is gone" for removal in desired.removals]
        waits += [f"{name} takes work again" for name in desired.undrain]
        raise RefusedError(f"workers are still being changed: wait until {', '.join(waits)}")
    alone = [pool.name for pool in inventory.pools if len(desired.staying(pool.name)) == 1]
    extra = tuple(alone[: max(0, asked.extra_workers)])
    its = Rollout(before=desired.model_dir, after=after, canary=asked.canary_share, extra=extra)
    new = replace(desired, rollout=its)
    if why := blocked(new, inventory):
        missing = len(alone) - len(extra)
        hint = f": allow {len(alone)} extra workers (--extra-workers)" if missing else ""
        raise RefusedError(f"{why}{hint}")
    return Decided(desired=new, changes=_changes(new, inventory, view, its))


def step(
    desired: Desired, inventory: Inventory, view: View, asked: acts_pb2.StepRolloutRequest
) -> Decided:
    """Raises `RefusedError`."""
    its = desired.rolling
    if its is None:
        raise RefusedError("no rollout is under way")
    match asked.step:
        case _STEP.STEP_PAUSE if its.undo:
            raise RefusedError("it is being undone, which is not paused")
        case _STEP.STEP_PAUSE:
            new = replace(its, paused=True)
        case _STEP.STEP_RESUME if its.paused:
            new = replace(its, paused=False)
        case _STEP.STEP_RESUME if its.undo:
            new = its
        case _STEP.STEP_RESUME:
            new = replace(its, canary=0.0, holds=False)
        case _STEP.STEP_UNDO:
            new = replace(its, undo=True, paused=False, holds=False)
        case _:
            raise RefusedError("a rollout is paused, resumed or undone")
    if new == its:
        return Decided(desired=desired, changes=())
    after = let_end(replace(desired, rollout=new), inventory)
    if new.undo and not its.undo:
        return Decided(desired=after, changes=_changes(after, inventory, view, new))
    words = [str(state_of(each)) for each in (its, new)]
    change = Change(subject="rollout", before=words[0], after=words[1])
    return Decided(desired=after, changes=(change,))


def step_in_words(step: acts_pb2.StepRolloutRequest.Step) -> str:
    return _STEP.Step.Name(step).removeprefix("STEP_").lower()


def rollout_status(
    desired: Desired, inventory: Inventory, view: View
) -> cluster_pb2.RolloutStatus | None:
    """Of the latest; None: there was none."""
    its = desired.rollout
    if its is None:
        return None
    told = cluster_pb2.RolloutStatus(
        state=state_of(its).value,
        from_dir=its.before or inventory.model_dir,
        to_dir=its.after or inventory.model_dir,
        workers=[
            cluster_pb2.RolloutWorker(
                name=seat.name,
                is_new=seat.model_dir == its.after,
                now=doing(desired, view, seat.name),
                requests=view.of(seat.name).rows,
            )
            for seat in desired.seats
        ],
    )
    if its.is_over:
        return told
    told.waits_for = why_not(desired, inventory, view)
    if state_of(its) in (State.CANARY, State.PAUSED) and not told.waits_for:
        told.waits_for = "an operator: resume or undo"
    elif told.waits_for and told.waits_for == held_up(desired, inventory, view):
        told.waits_for += f": {way_out(desired) or 'it needs a free seat'}"
    settled = {
        view.of(seat.name).fingerprint
        for seat in desired.seats
        if seat.model_dir == its.before and view.of(seat.name).is_heard
    }
    if its.canary:
        told.canary_share = its.canary
        told.settled.extend(sorted(settled - {""}))
    return told


def goal_of(desired: Desired, inventory: Inventory) -> str:
    """The directory of the revision that workers start with from now on."""
    its = desired.rolling
    return (desired.model_dir if its is None else its.goal) or inventory.model_dir


def _changes(
    desired: Desired, inventory: Inventory, view: View, its: Rollout
) -> tuple[Change, ...]:
    """The goal, and what each worker will do that has another revision."""
    former = (its.after if its.undo else its.before) or inventory.model_dir
    goal = f"{goal_of(desired, inventory)}{_share(its)}"
    changes = [Change(subject="rollout", before=former, after=goal)]
    for seat in desired.seats:
        if seat.model_dir != its.goal:
            now = doing(desired, view, seat.name)
            after = _RENEWED if seat.pool not in its.extra else _REPLACED
            if its.undo and now == "starts":
                after = _CALLED_OFF
            after = after.format(which="former" if its.undo else "new")
            changes.append(Change(subject=seat.name, before=now, after=after))
    return tuple(changes)


def _share(its: Rollout) -> str:
    held = its.canary and not (its.undo or its.is_over)
    return f", a canary with {its.canary:.0%} of new requests at most" if held else ""
