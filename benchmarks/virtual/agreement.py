"""Whether the fluid model says what the real router, workers and controller do.

`python -m benchmarks.virtual.agreement` plays the same requests through a virtual cluster that
sizes itself, and through the fluid model of `twolane.deploy.simulator`, sized as that cluster was.
Steps take 32 times as long as an H200's, the SLO is 32 times as long, and of the requests a 32nd is
played: so there are as many workers as there would be, and minutes suffice. Writes `agreement.json`
and `.png`, and exits with 1 where the two differ by more than 0.5 points of misses or 5 % of
GPU-hours.

Where more comes than all workers can serve, the slightest thing decides which prompts are deferred,
long ones or more short ones. So the model is played eight times, each request a little sooner or
later, by as much as a step of the cluster's varies; what is compared is the mean, and the
deviation says how far one play is from another.

The model sized by the law itself is played eight times, too, with requests that come up to two
seconds later, as decisions are two seconds apart: with so few requests the law sees noise, and a
flip more or less, which costs the rows of one worker, is a point of misses. Its GPU-hours are the
ones that are compared, by their mean, as a model with the cluster's sizes has the cluster's.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import click
import numpy as np

from benchmarks.results import save
from twolane.deploy.controller.limits import Limits
from twolane.deploy.controller.priors import hardware
from twolane.deploy.simulator.cluster import Slo
from twolane.deploy.simulator.requests import Requests
from twolane.deploy.simulator.scenarios import scenario
from twolane.deploy.virtual_cluster.compare import (
    Case,
    Result,
    as_virtual,
    in_fluid,
    in_virtual,
    slower,
)
from twolane.deploy.virtual_cluster.timed import NOISE

FACTOR = 32.0
SLO = Slo(ttft_s=0.5 * FACTOR, gap_s=0.020 * FACTOR)
START_S = 75.0
MOST_POINTS, MOST_SHARE = 0.5, 0.05
SPAN_S = 1_200.0
# A scenario, what is added to its seed, and workers at the start.
CASES: Mapping[str, tuple[str, int, int, int]] = {
    "ratio swings": ("quick", 0, 6, 6),
    "a burst of a day": ("diurnal", 0, 7, 5),
    "a burst of another day": ("diurnal", 1, 7, 5),
}
_PLAYS = 8
_BEFORE_S = 600.0  # of the busiest minutes
_SHIFTS_S = np.arange(0.0, 2.0, 0.25)


def part_of(name: str, seed: int, prefill: int, decode: int) -> Case:
    """A 32nd of the requests of 20 minutes, in whose middle is the scenario's busiest one."""
    made = scenario(name, seed)
    requests = made.requests
    minutes = np.bincount(
        (requests.arrivals_s // 60).astype(np.int64), weights=requests.prompt_tokens
    )
    begin_s = max(0.0, 60.0 * float(minutes.argmax()) - _BEFORE_S)
    begin_s = min(begin_s, made.span_s - SPAN_S)
    first, last = np.searchsorted(requests.arrivals_s, [begin_s, begin_s + SPAN_S])
    rng = np.random.default_rng(seed)
    kept = np.flatnonzero(rng.random(last - first) < 1 / FACTOR) + first
    slow = replace(slower(hardware("h200"), FACTOR), start_s=START_S)
    return Case(
        requests=Requests(
            requests.arrivals_s[kept] - begin_s,
            requests.prompt_tokens[kept],
            requests.output_tokens[kept],
        ),
        span_s=SPAN_S,
        hardware=as_virtual(slow, SLO),
        slo=SLO,
        limits=Limits(budget_gpus=made.budget),
        prefill=prefill,
        decode=decode,
        start_s=START_S,
    )


@click.command()
@click.option("--seed", type=int, default=31, show_default=True)
@click.option("--only", multiple=True, metavar="CASE", help="Without saving.")
def main(*, seed: int, only: tuple[str, ...]) -> None:
    """Play every case in both."""
    figures: dict[str, Any] = {}
    sizes: dict[str, dict[str, Sequence[tuple[float, int, int]]]] = {}
    for name, (which, more, prefill, decode) in CASES.items():
        if only and name not in only:
            continue
        case = part_of(which, seed + more, prefill, decode)
        begun = time.perf_counter()
        virtual = in_virtual(case)
        found = {"fluid": in_fluid(case, like=virtual), "virtual": virtual}
        plays = [in_fluid(_shaken(case, nth), like=virtual) for nth in range(_PLAYS)]
        own = [in_fluid(_later(case, float(shift_s))) for shift_s in _SHIFTS_S]
        figures[name] = {
            "requests": len(case.requests),
            **{model: _figures(result) for model, result in found.items()},
            "fluid_shaken": _spread(plays),
            "fluid_by_its_own_law": _spread(own),
            **differences(virtual, plays, own),
            "took_s": round(time.perf_counter() - begun, 1),
        }
        sizes[name] = {model: result.sizes for model, result in found.items()}
        click.echo(f"{name}: {figures[name]}")
        if not only:  # what there is, if it is ended
            document = {"seed": seed, "times_as_slow": FACTOR, "cases": figures}
            save("agreement", document, plot=_draw(sizes))
    raise SystemExit(0 if all(its["agrees"] for its in figures.values()) else 1)


def differences(
    virtual: Result, alike: Sequence[Result], own: Sequence[Result]
) -> dict[str, float | bool]:
    """Misses against the mean of the model's plays with the same sizes, `alike`; GPU-hours against
    that of its plays by its own law, `own`."""
    missed = float(np.mean([its.missed for its in alike]))
    hours = float(np.mean([its.worker_hours for its in own]))
    points = 100 * abs(virtual.missed - missed)
    share = abs(virtual.worker_hours / hours - 1)
    return {
        "missed_differs_by_points": round(points, 3),
        "gpu_hours_differ_by_percent": round(100 * share, 2),
        "agrees": points <= MOST_POINTS and share <= MOST_SHARE,
    }


def _later(case: Case, shift_s: float) -> Case:
    its = case.requests
    later = Requests(its.arrivals_s + shift_s, its.prompt_tokens, its.output_tokens)
    return replace(case, requests=later)


def _shaken(case: Case, nth: int) -> Case:
    its, dice = case.requests, np.random.default_rng(nth)
    tokens = case.hardware.step_tokens
    by_s = NOISE * case.hardware.prefill.step_s(tokens, tokens**2)
    at_s = np.maximum(0.0, its.arrivals_s + dice.normal(0.0, by_s, len(its)))
    order = np.argsort(at_s, kind="stable")
    shaken = Requests(at_s[order], its.prompt_tokens[order], its.output_tokens[order])
    return replace(case, requests=shaken)


def _spread(results: Sequence[Result]) -> dict[str, Any]:
    missed = [100 * result.missed for result in results]
    return {
        "plays": len(results),
        "missed_percent": {
            "mean": round(float(np.mean(missed)), 3),
            "deviation": round(float(np.std(missed, ddof=1)), 3),
            "least": round(min(missed), 3),
            "most": round(max(missed), 3),
        },
        "gpu_hours": round(float(np.mean([result.worker_hours for result in results])), 4),
        "flips": [result.actions.get("flip", 0) for result in results],
    }


def _figures(result: Result) -> dict[str, Any]:
    return {
        "missed_percent": round(100 * result.missed, 3),
        "missed_with_hand_over_percent": round(100 * result.missed_with_hand_over, 3),
        "late_first_percent": round(100 * result.late_first, 3),
        "late_gaps_percent": round(100 * result.late_gaps, 3),
        "gpu_hours": round(result.worker_hours, 4),
        "most_gpus": result.most_workers,
        "actions": dict(result.actions),
    }


def _draw(sizes: Mapping[str, Mapping[str, Sequence[tuple[float, int, int]]]]) -> Any:
    """Workers of each pool over time, in both."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4 * len(sizes)), layout="constrained")
    figure.suptitle("Workers of a cluster that sizes itself: fluid model and virtual cluster")
    panels = figure.subplots(len(sizes), 1, squeeze=False)[:, 0]
    for panel, (name, by_model) in zip(panels, sizes.items(), strict=True):
        for (model, its), line in zip(by_model.items(), ("--", "-"), strict=True):
            minutes = [at_s / 60 for at_s, _, _ in its]
            for nth, pool, colour in ((1, "prefill", "tab:blue"), (2, "decode", "tab:orange")):
                counts = [one[nth] for one in its]
                panel.step(
                    minutes, counts, line, where="post", label=f"{pool}, {model}", color=colour
                )
        panel.set(title=name, xlabel="minutes", ylabel="workers", ylim=(0, None))
        panel.grid(alpha=0.3)
        panel.legend(fontsize="small", loc="best")
    return figure


if __name__ == "__main__":
    main(prog_name="python -m benchmarks.virtual.agreement")
