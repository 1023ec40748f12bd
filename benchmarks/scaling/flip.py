"""A worker that takes the other role and back, by turns, under load: 2P1D, 1P2D, 2P1D, …

\b
    python -m benchmarks.scaling.flip --prompt-tokens 200 --answer-tokens 60    # the bundled model
    python -m benchmarks.scaling.flip --model DIR --set device=cuda --set share_gpus \\
        --set load_format=random --set pages=1500 --name flip_one_h200

\b
    command ──▶ announced          routers have the worker in its new role alone
            ──▶ first token        a client has the first one that the worker made in that role
            ──▶ old role's end     a client has the last one that it still owed in the other role

The first token waits for a request, too: `came_s` says when that one came, from the command on.
Gaps are between an answer's tokens at its client, hand-overs included. `to decode` and `to prefill`
are those from a command to both the first token and the old role's end, 2P1D and 1P2D those of the
rest of the time. Exits with 1 if a request failed, or a worker made nothing in a role.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

import click
import numpy as np

from benchmarks.cluster.start_options import start_options
from benchmarks.result_options import result_options
from benchmarks.results import save
from benchmarks.scaling.flip_run import OTHER, FlipConfig, FlipRun, Request, run_flips
from twolane.testing import start_local

WORKER = "prefill-1"
_SIZES = {"decode": "1P2D", "prefill": "2P1D"}  # by the role that it has


@click.command(help=__doc__, context_settings={"show_default": True})
@click.option("--model", help="A directory or an id of the Hub, else the bundled model.")
@click.option("--set", "settings", multiple=True, help="NAME=VALUE or NAME, of `twolane up`.")
@click.option("--flips", "n_flips", default=6, help="Every second one is back to prefill.")
@click.option("--apart-s", default=8.0, help="From one command to the next one.")
@click.option("--rate", "requests_per_s", default=4.0)
@click.option("--prompt-tokens", default=1024)
@click.option("--answer-tokens", default=128)
@click.option("--start-timeout-s", default=120.0)
@result_options("flip")
def main(
    model: str | None,
    settings: tuple[str, ...],
    start_timeout_s: float,
    name: str,
    folder: Path,
    commit: str | None,
    **options: Any,
) -> None:
    config = FlipConfig(**options)
    more = start_options(settings)
    click.echo("starting two prefill workers and one decode worker")
    with start_local(
        prefill=2, decode=1, flips=True, model=model, start_timeout_s=start_timeout_s, **more
    ) as cluster:
        click.echo("ready")
        run = asyncio.run(run_flips(cluster, WORKER, config, click.echo))
    figures = describe(run)
    for key, value in figures.items():
        for line in value if key == "flips" else [value]:
            click.echo(f"{key}: {line}")
    document = {"model": model or "bundled", "settings": settings, **asdict(config), **figures}
    click.echo(f"saved {save(name, document, folder=folder, commit=commit)}")
    if problems := problems_of(figures):
        raise click.ClickException("; ".join(problems))


def problems_of(figures: dict[str, Any]) -> list[str]:
    """Why the run is no proof; none: it is."""
    problems = [f"{len(figures['errors'])} requests failed"] if figures["errors"] else []
    if any(flip["first_token_s"] is None for flip in figures["flips"]):
        problems.append("a worker made no token in its new role")
    return problems


def describe(run: FlipRun) -> dict[str, Any]:
    """The figures of a run."""
    flips = [_follow(run, nth) for nth in range(len(run.flips))]
    return {
        "requests": len(run.requests),
        "errors": [its.error for its in run.requests if its.error],
        "computed_again": sum(not _is_whole(its) for its in run.requests if not its.error),
        **{f"to_{role}": _summary([its for its in flips if its["role"] == role]) for role in OTHER},
        "felt": _felt(run, flips),
        "flips": flips,
    }  # fmt: skip


def _is_whole(request: Request) -> bool:
    """Whether one attempt answered it: the workers that the ledger names have made all of it."""
    return request.ledger is not None and (request.ledger.attempts, request.ledger.takeovers) == (
        1,
        0,
    )


def _follow(run: FlipRun, nth: int) -> dict[str, Any]:
    """What became of a flip: of the requests that came after the one before it."""
    flip = run.flips[nth]
    since_s = run.flips[nth - 1].announced_s if nth else 0.0
    until_s = run.flips[nth + 1].commanded_s if nth + 1 < len(run.flips) else run.ended_s
    theirs = [its for its in run.requests if _is_whole(its) and since_s <= its.sent_s < until_s]
    new = [
        (served_s, its.sent_s)
        for its in theirs
        if (served_s := _made(its, run.worker, flip.role, last=False)) is not None
        and flip.commanded_s < served_s < until_s
    ]
    old = [
        ended_s
        for its in theirs
        if (ended_s := _made(its, run.worker, OTHER[flip.role], last=True)) is not None
        and ended_s > flip.commanded_s
    ]
    served_s, sent_s = min(new, default=(None, None))
    return {
        "role": flip.role,
        "commanded_s": round(flip.commanded_s, 3),
        "answered_s": round(flip.answered_s - flip.commanded_s, 4),
        "announced_s": round(flip.announced_s - flip.commanded_s, 4),
        "first_token_s": served_s and round(served_s - flip.commanded_s, 4),
        "came_s": sent_s and round(sent_s - flip.commanded_s, 4),
        "old_role_ends_s": round(max(old, default=flip.commanded_s) - flip.commanded_s, 4),
        "old_role_requests": len(old),
        "new_role_requests": len(new),
    }


def _made(request: Request, worker: str, role: str, *, last: bool) -> float | None:
    """When its client had the first or last token that the worker made of it in that role."""
    assert request.ledger is not None
    if role == "prefill":
        return request.times_s[0] if request.ledger.prefill_worker == worker else None
    if request.ledger.decode_worker != worker or len(request.times_s) < 2:
        return None
    return request.times_s[-1 if last else 1]


def _summary(flips: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Medians and the longest of some flips, in ms."""
    summary: dict[str, Any] = {"flips": len(flips)}
    for name in ("answered", "announced", "first_token", "old_role_ends"):
        times_ms = [1e3 * its[f"{name}_s"] for its in flips if its[f"{name}_s"] is not None]
        if times_ms:
            summary[f"{name}_ms"] = {
                "median": round(median(times_ms), 1), "longest": round(max(times_ms), 1)
            }  # fmt: skip
    return summary


def _felt(run: FlipRun, flips: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Gaps by when they ended, and first tokens by when their requests came."""
    bounds = [(-math.inf, "2P1D")]
    for its in flips:
        at_s = its["commanded_s"]
        bounds.append((at_s, f"to {its['role']}"))
        lasts_s = max(its["first_token_s"] or 0.0, its["old_role_ends_s"])
        bounds.append((at_s + lasts_s, _SIZES[its["role"]]))
    starts = np.array([at_s for at_s, _ in bounds])

    def by_time(at_s: Sequence[float], what_s: Sequence[float]) -> dict[str, list[float]]:
        found: dict[str, list[float]] = {name: [] for _, name in bounds}
        for nth, one_s in zip(np.searchsorted(starts, at_s, "left") - 1, what_s, strict=True):
            found[bounds[nth][1]].append(1e3 * one_s)
        return found

    whole = [its for its in run.requests if not its.error]
    gaps = by_time(
        [at_s for its in whole for at_s in its.times_s[1:]],
        [gap_s for its in whole for gap_s in np.diff(its.times_s).tolist()],
    )
    first = by_time([its.sent_s for its in whole], [its.times_s[0] - its.sent_s for its in whole])
    return {
        name: {
            "gaps": len(gaps[name]),
            **_percentiles("gap", gaps[name]),
            **_percentiles("ttft", first[name]),
        }
        for name in first
    }


def _percentiles(name: str, times_ms: Sequence[float]) -> dict[str, float]:
    if not times_ms:
        return {}
    return {
        **{f"{name}_p{p}_ms": round(float(np.percentile(times_ms, p)), 2) for p in (50, 99)},
        f"{name}_longest_ms": round(max(times_ms), 2),
    }


if __name__ == "__main__":
    main(prog_name="python -m benchmarks.scaling.flip")
