"""The law's decisions in sentences, for `twolane scaler explain`, the console and the event log."""

from __future__ import annotations

from twolane.deploy.controller.actions import (
    Action,
    Cancel,
    Delete,
    Drain,
    Flip,
    Start,
    Undrain,
    Why,
)
from twolane.deploy.controller.law import Verdict, is_idle
from twolane.deploy.controller.limits import Limits
from twolane.deploy.controller.observation import Need, Observation, Role

_UNIT = {Role.PREFILL: "prompt tokens/s", Role.DECODE: "answer tokens/s"}


def explain(verdict: Verdict, seen: Observation, limits: Limits, unit: str = "GPUs") -> list[str]:
    """All there is to say about one decision: the actions, what each pool needs, and what kept the
    law from doing more. `unit`: what the budget is counted in."""
    lines = [sentence(action) for action in verdict.actions]
    idle = is_idle(seen, limits)
    for role in Role:
        have, target = verdict.have[role], verdict.targets[role]
        pinned = ", pinned by an operator" if role in seen.pins else ""
        lines.append(
            f"{role}: {_workers(have)}, {target} wanted{pinned}; {reason(role, seen.needs[role])}"
        )
        wanted = limits.pools[role].within(seen.needs[role].workers)
        if role not in seen.pins and target < wanted and not idle:
            lines.append(
                f"{role} should have {wanted}, but the budget of {limits.budget_gpus} {unit} "
                f"leaves {target}"
            )
    if idle and any(verdict.have.values()):
        to = "one worker each, as one is pinned" if any(seen.pins.values()) else "zero"
        lines.append(
            f"no request for {seen.idle_s:.0f} s: pools go to {to}, once nothing speaks against it"
        )
    held = seen.held_gpus
    waiting = sum(verdict.targets[role] > verdict.have[role] for role in Role)
    if waiting and held >= limits.budget_gpus and not verdict.actions:
        lines.append(
            f"all {limits.budget_gpus} {unit} are held, also by workers that start, drain or flip"
        )
    if verdict.starts_in_s > 0:
        lines.append(
            f"{seen.failed_starts} starts failed in a row: the next one in "
            f"{verdict.starts_in_s:.0f} s"
        )
    lines += [f"nothing shrinks: {veto}" for veto in verdict.vetoes]
    return lines


def sentence(action: Action) -> str:
    """One action with its reason."""
    why = action.why
    because = _because(why)
    match action:
        case Start(roles=roles):
            both = " with both roles" if len(roles) > 1 else ""
            return f"start a {why.role} worker{both}: {because}"
        case Cancel(worker_id=name):
            return f"give up the start of {name}: {why.detail}"
        case Undrain(worker_id=name):
            return f"let {name} serve again: {because}"
        case Flip(worker_id=name):
            return f"flip {name} to {why.role}: {because}"
        case Drain(worker_id=name):
            return f"drain {name}: {why.detail}"
        case Delete(worker_id=name):
            return f"stop {name}: it is drained, and has its ticket"


def reason(role: Role, need: Need) -> str:
    """The sentence that says what a pool's need comes from."""
    match need.bound_by:
        case "rows":
            waiting = f" and {need.unplaced} prompts that wait for a place" if need.unplaced else ""
            return f"{need.workers} needed for {need.rows} rows{waiting}"
        case "pages":
            return f"{need.workers} needed for the pages of {need.rows} rows"
        case "backlog":
            return (
                f"{need.workers} needed: {_count(need.backlog_tokens)} tokens wait, the oldest for "
                f"{need.oldest_wait_s:.1f} s, beside {_rate(role, need)}"
            )
        case _:
            return f"{need.workers} needed: {_rate(role, need)}"


def _rate(role: Role, need: Need) -> str:
    return (
        f"{_count(need.forecast_per_s)} {_UNIT[role]} forecast in {need.horizon_s:.0f} s, "
        f"times {need.headroom:.2f} for bursts, at {_count(need.capacity_per_s)} a worker"
    )


def _because(why: Why) -> str:
    parts = [f"{why.role} has {why.have} of {why.target}", reason(why.role, why.need)]
    if why.detail:
        parts.insert(0, why.detail)
    return "; ".join(parts)


def _workers(n: int) -> str:
    return "1 worker" if n == 1 else f"{n} workers"


def _count(value: float) -> str:
    return f"{value / 1e3:.1f}k" if value >= 1000 else f"{value:.0f}"
