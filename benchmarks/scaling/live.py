"""A cluster that sizes its pools, live: 1 + 1 workers, a burst, long prompts, nothing, a request.

`python -m benchmarks.scaling.live` takes six minutes on two cores. It says how many requests
failed, how soon a flipped worker serves, and how long the first request after zero waits; the plot
shows the pools over time.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from statistics import median
from typing import Any

import click

from benchmarks.result_options import result_options
from benchmarks.results import save
from benchmarks.scaling.live_run import PHASES, LiveRun, run_live


@click.command(help=__doc__)
@result_options("scaling_live")
def main(name: str, folder: Path, commit: str | None) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        run = run_live(Path(scratch))
    figures = describe(run)
    for key, value in figures.items():
        if key not in ("looks", "deeds"):
            click.echo(f"{key}: {value}")
    for at_s, text in run.deeds:
        click.echo(f"{at_s:7.1f} s  {text}")
    path = save(name, figures, plot=draw(run), folder=folder, commit=commit)
    click.echo(f"saved {path}")


def describe(run: LiveRun) -> dict[str, Any]:
    bounds, begin = {}, 0.0
    for phase in PHASES:
        bounds[phase.name] = begin, begin + phase.lasts_s
        begin += phase.lasts_s
    first = next((its for its in run.requests if its.phase == "first"), None)
    return {
        "requests": len(run.requests),
        "errors": run.errors,
        "ttft_s_by_phase": {
            name: round(median(waits), 3)
            for name in bounds
            if (waits := [
                its.ttft_s for its in run.requests if its.phase == name and its.ttft_s is not None
            ])
        },
        "sizes_by_phase": {
            name: sorted(f"{p}P{d}D" for p, d in run.sizes(*its)) for name, its in bounds.items()
        },
        "most_workers": run.most_held,
        "flips": [
            {
                "worker": flip.worker,
                "decided_s": round(flip.decided_s, 2),
                "serves_after_s": None if flip.serves_s is None else round(flip.serves_s, 3),
            }
            for flip in run.flips
        ],
        "first_after_zero_ttft_s": None
        if first is None or first.ttft_s is None
        else round(first.ttft_s, 2),
        "deeds": [f"{at_s:.1f} s: {text}" for at_s, text in run.deeds],
        "looks": {
            "at_s": run.looks.at_s[::4],
            "prefill": run.looks.prefill[::4],
            "decode": run.looks.decode[::4],
            "held": run.looks.held[::4],
        },
    }  # fmt: skip


def draw(run: LiveRun) -> Any:
    """A matplotlib figure: workers over time, and each request's time to its first token."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 6), layout="constrained")
    sizes, waits = figure.subplots(2, 1, sharex=True)
    looks = run.looks
    sizes.step(looks.at_s, looks.held, label="all, in any state", color="grey", linewidth=0.8)
    sizes.step(looks.at_s, looks.prefill, label="prefill", where="post")
    sizes.step(looks.at_s, looks.decode, label="decode", where="post", linestyle="--")
    sizes.set(title="workers that serve", ylim=(0, None))
    begin = 0.0
    for phase in PHASES:
        for panel in (sizes, waits):
            panel.axvline(begin, color="black", linewidth=0.5, linestyle=":")
        sizes.annotate(phase.name, (begin, 0.1), fontsize="small")
        begin += phase.lasts_s
    for flip in run.flips:
        sizes.axvline(flip.decided_s, color="red", linewidth=0.8)
    answered = [its for its in run.requests if its.ttft_s is not None]
    waits.plot([its.sent_s for its in answered], [its.ttft_s for its in answered], ".")
    failed = [its.sent_s for its in run.requests if its.error]
    waits.plot(failed, [0.0] * len(failed), "rx", label=f"{len(failed)} failed")
    waits.set(title="time to the first token, s", xlabel="seconds", ylim=(0, None))
    for panel in (sizes, waits):
        panel.legend(fontsize="small", loc="best")
        panel.grid(alpha=0.3)
    return figure


if __name__ == "__main__":
    main(prog_name="python -m benchmarks.scaling.live")
