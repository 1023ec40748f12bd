"""Searches the highest request rate that meets an SLO, for several contenders in one run.

\b
    python -m benchmarks.goodput.measure --contenders benchmarks/contenders/laptop.toml \\
        --workload chat --scale 0.25 --rate 4 --rate 8 --slo 500/50
    python -m benchmarks.goodput.measure --target ours=http://localhost:8000 --target theirs=… …

A rate is served if 90 % of its requests meet the SLO; a request meets it if its time to first token
and the 99th percentile of its own gaps are within the limits (`benchmarks.load.record.Slo`).
Several SLOs share their runs. Prints and saves every run; times are the client's, from the planned
arrival. A run whose client was late is marked void.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from benchmarks.goodput import plot as goodput_plot
from benchmarks.goodput import table
from benchmarks.goodput.measured import Measured
from benchmarks.goodput.reference import Reference, UnknownReferenceError, read_reference
from benchmarks.goodput.run import Measurement, OutOfTimeError
from benchmarks.goodput.search import SearchConfig
from benchmarks.goodput.tournament import Tournament, TournamentConfig, in_turn
from benchmarks.load.client_processes import ClientDiedError, ClientProcessesConfig
from benchmarks.load.contender import Contender, ContenderError, choose, contender_options
from benchmarks.load.contender_process import ContenderDiedError, start
from benchmarks.load.progress import make_console
from benchmarks.load.record import Slo
from benchmarks.load.target import TargetError
from benchmarks.load.window import WindowConfig
from benchmarks.result_options import result_options
from benchmarks.results import save
from benchmarks.traffic.plan import PlanConfig, PlanError
from benchmarks.traffic.trace import TraceError
from benchmarks.traffic.workload import UnknownWorkloadError, find_workload

_ANY_CONTEXT = 2**20  # replaced by the model's own limit


def parse_slo(text: str) -> Slo:
    """TTFT/GAP in milliseconds. Raises `click.BadParameter`."""
    ttft_ms, _, gap_ms = text.partition("/")
    try:
        return Slo(float(ttft_ms) / 1e3, float(gap_ms) / 1e3)
    except ValueError as error:
        raise click.BadParameter("an SLO is TTFT/GAP in ms: 300/15", param_hint="--slo") from error


@click.command(help=__doc__, context_settings={"show_default": True})
@contender_options
@click.option("--slo", "slos", multiple=True, default=["300/15"], help="TTFT/GAP in ms; repeat.")
@click.option("--share", default=0.9, help="Of requests that must hold it.")
@click.option("--workload", default="balanced", help="A name, INxOUT tokens, or a trace file.")
@click.option("--scale", default=1.0, help="Multiplies all lengths, for small models.")
@click.option("--rate", "rates", multiple=True, type=float, default=[4.0], help="To begin with.")
@click.option("--highest", default=256.0, help="The search goes no higher.")
@click.option("--lowest", default=0.25, help="Nor lower.")
@click.option("--tolerance", default=0.05, help="The search ends at brackets this narrow.")
@click.option("--repeats", default=2, help="Runs of a rate whose share is close to the limit.")
@click.option("--rounds", default=1, help="How many times everything is searched anew.")
@click.option("--requests", "n_requests", default=300, help="In the window of each run, or more:")
@click.option("--window-s", default=20.0, help="The shortest window.")
@click.option("--warm-up-s", default=10.0, help="Load before it. Longer than one answer takes.")
@click.option("--cool-down-s", default=10.0, help="Load after it, until its requests have ended.")
@click.option("--clients", "n_clients", default=4, help="Client processes.")
@click.option("--late-ms", default=10.0, help="A client later than that (p99) voids its run.")
@click.option("--timeout-s", default=120.0, help="Deadline of each request.")
@click.option("--time-limit-s", default=86_400.0, help="Start no run that would end later.")
@click.option("--resume", is_flag=True, help="Go on from the saved result of this name.")
@click.option("--reference", help="To print and draw beside it: vllm_two_h200.")
@click.option("--log-dir", type=click.Path(path_type=Path), help="The servers' output.")
@result_options("goodput")
def main(**options: Any) -> None:
    try:
        _main(options)
    except (
        ClientDiedError, ContenderError, PlanError, TraceError, UnknownReferenceError,
        UnknownWorkloadError,
    ) as error:  # fmt: skip
        raise click.ClickException(str(error)) from error


def _main(options: dict[str, Any]) -> None:
    began_s = time.monotonic()
    console = make_console()
    contenders = choose(*(options[name] for name in ("files", "only", "targets", "settings")))
    names = [one.name for one in contenders]
    reference: Reference = {}
    if options["reference"]:
        workload = options["workload"] if options["scale"] == 1 else "a scaled one"
        reference = read_reference(options["reference"], workload)
    config = TournamentConfig(
        slos=[parse_slo(text) for text in options["slos"]],
        search=SearchConfig(
            rates_per_s=options["rates"],
            share=options["share"],
            tolerance=options["tolerance"],
            repeats=options["repeats"],
            highest_per_s=options["highest"],
            lowest_per_s=options["lowest"],
        ),
        late_s=options["late_ms"] / 1e3,
    )
    contest = Tournament(config, _saved_runs(options))
    problems: dict[str, str] = {}

    def keep(plot: Any = None) -> Path:
        figures = _figures(contest, names, problems, options)
        folder, commit = options["folder"], options["commit"]
        return save(options["name"], figures, plot=plot, folder=folder, commit=commit)

    measurement = Measurement(
        workload=find_workload(options["workload"]),
        plan=PlanConfig(rate_per_s=1.0, scale=options["scale"], context_tokens=_ANY_CONTEXT),
        window=WindowConfig(
            warm_up_s=options["warm_up_s"],
            n_requests=options["n_requests"],
            min_s=options["window_s"],
            cool_down_s=options["cool_down_s"],
        ),
        crew=ClientProcessesConfig(n_clients=options["n_clients"], timeout_s=options["timeout_s"]),
        contest=contest,
        console=console,
        ends_s=began_s + options["time_limit_s"],
        on_run=keep,
    )
    with tempfile.TemporaryDirectory() as scratch:
        logs = options["log_dir"] or Path(scratch)
        logs.mkdir(parents=True, exist_ok=True)
        failed = False
        for round_ in range(options["rounds"]):
            for one in in_turn(contenders, round_):
                failed |= not _search_one(measurement, one, round_, logs, problems)
    names = [*dict.fromkeys([*names, *(run.contender for run in contest.runs)])]
    if failed and not contest.runs:
        raise click.ClickException("nothing was measured, and nothing is saved")
    console.print(table.rates_table(contest, names, reference))
    console.print(table.served_table(contest, names, reference))
    for name in names:
        for slo in config.slos:
            console.print(f"{name}, {slo}: {table.why_missed(contest, name, slo)}", soft_wrap=True)
    for name, problem in problems.items():
        console.print(f"[bold]{name}:[/bold] {problem}")
    title = f"{options['workload']} x {options['scale']:g}, Poisson arrivals"
    path = keep(goodput_plot.draw(contest, names, reference, title))
    console.print(f"saved {path} and {path.with_suffix('.png').name}")


def _search_one(
    measurement: Measurement, one: Contender, round_: int, logs: Path, problems: dict[str, str]
) -> bool:
    """A contender's failure is reported, and the next contender follows.

    False if it did not start, or died.
    """
    console = measurement.console
    is_sound = True
    console.print(f"[bold]{one.name}[/bold], round {round_ + 1}")
    try:
        if measurement.upcoming(one.name, round_) is None:  # everything is in the resumed result
            return True
        with start(one, logs) as started:
            asyncio.run(measurement.search(started, round_))
    except (ContenderDiedError, TargetError, OutOfTimeError) as error:
        is_sound = isinstance(error, OutOfTimeError)
        problems[one.name] = str(error)
        console.print(f"[bold]{one.name}:[/bold] {error}")
    limit_per_s = measurement.contest.client_limit_per_s(one.name)
    if limit_per_s is not None:
        problems[one.name] = f"the client is late at {limit_per_s:g}/s: give it more --clients"
    return is_sound


def _saved_runs(options: dict[str, Any]) -> list[Measured]:
    if not options["resume"]:
        return []
    path = options["folder"] / f"{options['name']}.json"
    saved = json.loads(path.read_text(encoding="utf-8"))["figures"]
    for name in ("workload", "scale", "n_requests", "window_s", "warm_up_s", "cool_down_s"):
        if saved["arguments"][name] != options[name]:
            raise click.UsageError(f"{path} was measured with another {name}: it cannot go on")
    return [Measured.from_json(run) for run in saved["runs"]]


def _figures(
    contest: Tournament, names: Sequence[str], problems: dict[str, str], options: dict[str, Any]
) -> dict[str, Any]:
    format_outcome = {
        key: [*map(str, value)] if isinstance(value, tuple) else value
        for key, value in options.items()
        if key not in ("folder", "log_dir")
    }
    names = [*dict.fromkeys([*names, *(run.contender for run in contest.runs)])]
    return {
        "arguments": format_outcome,
        "served": {
            str(slo): {name: table.format_outcome(contest, name, slo) for name in names}
            for slo in contest.config.slos
        },
        "why_missed": {
            str(slo): {name: table.why_missed(contest, name, slo) for name in names}
            for slo in contest.config.slos
        },
        "problems": problems,
        "runs": [run.to_json() for run in contest.runs],
    }


if __name__ == "__main__":
    main()
