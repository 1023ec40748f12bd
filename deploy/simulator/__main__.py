"""`python -m twolane.deploy.simulator`: the law against its contenders, on traces that were not
used to tune it. Writes figures and plots, and exits with 1 if a bar is missed, or cannot be judged
because its contender was not run."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from twolane.deploy.simulator.experiment import CONTENDERS, SLO, Bar, Run, bars, run
from twolane.deploy.simulator.plots import draw_runs
from twolane.deploy.simulator.scenarios import HELD_OUT, TUNING, Scenario, scenario

_FOLDER = Path("benchmarks/results")


@click.command()
@click.option("--tuning", is_flag=True, help="The traces that constants were chosen on, instead.")
@click.option("--only", multiple=True, metavar="NAME", help="Only these scenarios.")
@click.option("--seed", "seeds", multiple=True, type=int, help="Only these seeds.")
@click.option(
    "--contender", "contenders", multiple=True, type=click.Choice(CONTENDERS),
    help="Only these, and the law.",
)  # fmt: skip
@click.option("--folder", type=click.Path(path_type=Path, file_okay=False), default=_FOLDER)
@click.option("--name", default="autoscaler", show_default=True, help="Of the files.")
def main(
    *, tuning: bool, only: tuple[str, ...], seeds: tuple[int, ...], contenders: tuple[str, ...],
    folder: Path, name: str,
) -> None:  # fmt: skip
    """Simulate every contender on every scenario, a day each in about a minute."""
    chosen = [one for one in CONTENDERS if not contenders or one in contenders or one == "law"]
    cases = [
        (which, seed)
        for which, seed in (TUNING if tuning else HELD_OUT)
        if (not only or which in only) and (not seeds or seed in seeds)
    ]
    folder.mkdir(parents=True, exist_ok=True)
    commit = _commit()  # of the code that runs: the checkout may change meanwhile
    figures: dict[str, Any] = {}
    all_held = True
    for which, seed in cases:
        begun = time.perf_counter()
        case = scenario(which, seed)
        runs: list[Run] = []
        for contender in chosen:
            runs.append(run(contender, case))
            click.echo(f"{which} {seed}: {_line(runs[-1])}")
            found = bars(which, runs, case.budget)
            figures[f"{which}, seed {seed}"] = _case(case, runs, found, time.perf_counter() - begun)
            _write(folder / f"{name}.json", name, commit, figures)  # what there is, if it is ended
            plot = draw_runs(f"{which}, seed {seed}, {case.budget} GPUs", runs, case.budget)
            plot.savefig(folder / f"{name}_{which}_{seed}.png", dpi=80)
        for bar in found:
            all_held = all_held and bar.is_held
            click.echo(f"  {bar}")
    raise SystemExit(0 if all_held else 1)


def _case(
    case: Scenario, runs: Sequence[Run], found: Sequence[Bar], took_s: float
) -> dict[str, Any]:
    return {
        "budget_gpus": case.budget,
        "hours": case.span_s / 3600,
        "contenders": {one.contender: _figures(one) for one in runs},
        "bars": [
            {
                "name": bar.name,
                "value": None if bar.value is None else round(bar.value, 4),
                "at_most": bar.bound,
                "held": bar.is_held,
            }
            for bar in found
        ],
        "took_s": round(took_s, 1),
    }


def _line(one: Run) -> str:
    return (
        f"{one.contender:12} missed {one.tally.missed_share:7.2%} of {one.tally.requests:,}, "
        f"{one.gpu_hours:.0f} GPU-hours, {one.most_actions_an_hour} actions an hour at most"
    )


def _figures(one: Run) -> dict[str, Any]:
    tally = one.tally
    return {
        "requests": tally.requests,
        "missed_percent": round(100 * tally.missed_share, 3),
        "late_first_percent": round(100 * tally.late_first / max(1, tally.requests), 3),
        "late_gaps_percent": round(100 * tally.late_gaps / max(1, tally.requests), 3),
        "refused_percent": round(100 * tally.refused / max(1, tally.requests), 3),
        "gpu_hours": round(one.gpu_hours, 1),
        "most_gpus": tally.most_gpus,
        "lost_by_scaling": tally.lost,
        "actions": tally.actions,
        "actions_in_the_busiest_hour": one.most_actions_an_hour,
    }


def _write(path: Path, name: str, commit: str | None, figures: dict[str, Any]) -> None:
    document = {
        "name": name,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": shlex.join(["python", *sys.orig_argv[1:]]),
        "commit": commit,
        "depends_on": ["deploy/controller", "deploy/simulator"],
        "slo": {"ttft_s": SLO.ttft_s, "gap_s": SLO.gap_s},
        "figures": figures,
    }
    path.write_text(json.dumps(document, indent=1) + "\n")


def _commit() -> str | None:
    """The commit of the checkout that holds this file; None if it is installed."""
    command = ["git", "rev-parse", "HEAD"]
    try:
        done = subprocess.run(
            command, cwd=Path(__file__).parent, capture_output=True, text=True, check=False
        )
    except OSError:
        return None
    return done.stdout.strip() or None


if __name__ == "__main__":
    main(prog_name="python -m twolane.deploy.simulator")
