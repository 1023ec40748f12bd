"""Kill routers under SDK streams: every answer must be the one that it would have been.

\b
    python -m benchmarks.cluster.router_kills --kills 200

Three routers with a shared store, two workers of each role with the fake engine, and streams that
are greedy, sampled, with log-probabilities, and that a text of one or of several tokens stops. A
third of the kills come while the store is down, a third with that of a worker within 100 ms. A line
each ten kills says how far it is; a kill takes a few seconds.

Ends with 1 if an answer fails or differs, if a worker still holds a page or a row 12 s after the
last answer has ended, or if the 99th percentile of the longest gaps of answers whose row lived is
above `--gap-s`.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
import numpy as np

from benchmarks.cluster.router_kills_run import (
    N_ROUTERS,
    N_TOKENS,
    STEP_S,
    RouterKills,
    Seen,
    kill_cluster,
)
from benchmarks.result_options import result_options
from benchmarks.results import save
from twolane.rpc.secret import new_secret

EACH = 10  # kills, a line


@click.command(help=__doc__, context_settings={"show_default": True})
@click.option("--kills", "n_kills", default=20)
@click.option("--streams", "n_streams", default=40)
@click.option("--gap-s", default=1.0, help="The longest gap, at the 99th percentile.")
@result_options("router_kills")
def main(
    n_kills: int, n_streams: int, gap_s: float, name: str, folder: Path, commit: str | None
) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        secret = Path(scratch) / "secret"
        secret.write_text(new_secret())
        os.environ["TWOLANE_SECRET_FILE"] = str(secret)
        with kill_cluster(Path(scratch)) as (cluster, redis):
            began = time.monotonic()

            def tell(seen: Seen) -> None:
                if seen.kills % EACH == 0:
                    click.echo(progress(seen, n_kills, time.monotonic() - began))

            run = RouterKills(cluster, redis, n_streams, tell)
            click.echo(f"{n_streams} streams first run without a kill, then {n_kills} kills follow")
            try:
                asyncio.run(run.run(n_kills))
            finally:
                figures = figures_of(run.seen)
                click.echo(figures)
    settings = {
        "routers": N_ROUTERS, "streams": n_streams, "tokens": N_TOKENS, "step_s": STEP_S,
    }  # fmt: skip
    took_s = round(time.monotonic() - began)
    path = save(name, {**settings, **figures, "took_s": took_s}, folder=folder, commit=commit)
    click.echo(f"saved {path}")
    complaint = complaint_about(run.seen, gap_s)
    if complaint:
        raise click.ClickException(complaint)


def progress(seen: Seen, n_kills: int, took_s: float) -> str:
    """How far it is, in a line."""
    longest_s = max(seen.gaps_s, default=0.0)
    return (
        f"{seen.kills} of {n_kills} kills in {took_s / 60:.1f} min: {seen.answers} answers, "
        f"{seen.takeovers} takeovers, longest gap of a row that lived {longest_s:.2f} s"
    )


def figures_of(seen: Seen) -> dict[str, Any]:
    """The saved result: counts as they are, gaps by their quantiles."""
    return {
        name: _quantiles(value) if isinstance(value, list) else value
        for name, value in asdict(seen).items()
    }


def complaint_about(seen: Seen, gap_s: float) -> str:
    """Why this run is not good enough; empty if it is."""
    if not seen.gaps_s:
        return "no router was killed while an answer's row lived on"
    if not seen.stopped_after_takeover:
        return "no answer was stopped by a text after its router's death"
    p99_s = float(np.quantile(seen.gaps_s, 0.99))
    return f"the 99th percentile of gaps is {p99_s:.2f} s" if p99_s > gap_s else ""


def _quantiles(values_s: list[float]) -> dict[str, float]:
    if not values_s:
        return {"n": 0}
    named = {f"p{q}": round(float(np.quantile(values_s, q / 100)), 3) for q in (50, 90, 99)}
    return {"n": len(values_s), **named, "max": round(max(values_s), 3)}


if __name__ == "__main__":
    main(prog_name="python -m benchmarks.cluster.router_kills")
