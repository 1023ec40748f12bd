"""Open-loop load against running servers, and the latencies of their users.

\b
    python -m benchmarks.load.run --target split=localhost:7200 --target colocated=localhost:7300 \\
        --workload chat --scale 0.25 --rate 2 --rate 4 --slo-ttft-ms 300 --slo-gap-ms 50

An endpoint is HOST:PORT for gRPC, or http://HOST:PORT for an OpenAI-style server; several, with
commas between, share the load. Prints a table per load, saves JSON and a plot in
benchmarks/results/ (`--name`). Times are the client's, counted from the planned arrival; the SLO is
per request; what was refused or failed counts as a miss. Lengths of answers are forced. The first
target is the base of the ratios.
"""

from __future__ import annotations

import asyncio
from typing import Any

import click
from rich.console import Console

from benchmarks.load import plot
from benchmarks.load.client_processes import ClientDiedError, ClientProcessesConfig
from benchmarks.load.compare import show
from benchmarks.load.contender import parse_targets
from benchmarks.load.record import Slo
from benchmarks.load.summary import GOODPUT_SHARE, measure
from benchmarks.load.sweep import Points, SweepConfig, figures, served_rates, sweep
from benchmarks.load.target import TargetError, ask
from benchmarks.result_options import result_options
from benchmarks.results import save
from benchmarks.traffic.plan import ArrivalKind, PlanConfig, PlanError
from benchmarks.traffic.trace import TraceError
from benchmarks.traffic.workload import UnknownWorkloadError, find_workload

_LATE_MS = 10.0  # clients that are later than this measure themselves


@click.command(help=__doc__, context_settings={"show_default": True})
@click.option("--target", "targets", multiple=True, required=True, help="NAME=ENDPOINT; repeat.")
@click.option("--workload", default="chat", help="A name, INxOUT tokens, or a trace file.")
@click.option("--arrivals", type=click.Choice([*map(str, ArrivalKind)]), default="poisson")
@click.option("--rate", "rates", multiple=True, type=float, help="Requests a second; repeat.")
@click.option("--cv", default=3.0, help="Bursty: coefficient of variation of the gaps.")
@click.option("--requests", "n_requests", default=300, help="For each run.")
@click.option("--seeds", "n_seeds", default=3, help="How many runs of each load and target.")
@click.option("--first-seed", default=1)
@click.option("--scale", default=1.0, help="Multiplies all lengths, for small models.")
@click.option("--context", "context_tokens", type=int, help="Cut to this [the models' smallest].")
@click.option("--at-once", is_flag=True, help="Load all targets at the same time, not in turn.")
@click.option("--clients", "n_clients", default=2, help="Client processes for each target.")
@click.option("--timeout-s", default=120.0, help="Deadline of each request.")
@click.option("--slo-ttft-ms", default=300.0)
@click.option("--slo-gap-ms", default=50.0, help="For the p99 of a request's own gaps.")
@result_options("load")
def main(**options: Any) -> None:
    try:
        asyncio.run(_main(options))
    except (ClientDiedError, PlanError, TargetError, TraceError, UnknownWorkloadError) as error:
        raise click.ClickException(str(error)) from error


async def _main(options: dict[str, Any]) -> None:
    console = Console()
    workload = find_workload(options["workload"])
    named = parse_targets(options["targets"])
    targets = [await ask(one.name, one.endpoints, told=one.told) for one in named]
    smallest = min(target.max_context_tokens for target in targets)
    rates = options["rates"] or [None]
    config = SweepConfig(
        rates_per_s=rates,
        seeds=range(options["first_seed"], options["first_seed"] + options["n_seeds"]),
        at_once=options["at_once"],
        plan=PlanConfig(
            arrivals=ArrivalKind(options["arrivals"]),
            rate_per_s=rates[0],
            cv=options["cv"],
            n_requests=options["n_requests"],
            scale=options["scale"],
            context_tokens=min(options["context_tokens"] or smallest, smallest),
        ),
        crew=ClientProcessesConfig(n_clients=options["n_clients"], timeout_s=options["timeout_s"]),
        slo=Slo(options["slo_ttft_ms"] / 1e3, options["slo_gap_ms"] / 1e3),
    )
    points = await sweep(workload, targets, config, console)
    _show(points, config, console)
    told = {key: value for key, value in options.items() if key != "folder"}
    path = save(
        options["name"],
        {"arguments": told, **figures(points, config)},
        plot=plot.draw(points, config.slo),
        folder=options["folder"],
        commit=options["commit"],
    )
    console.print(f"saved {path} and {path.with_suffix('.png').name}")


def _show(points: Points, config: SweepConfig, console: Console) -> None:
    slo = f"TTFT {config.slo.ttft_s * 1e3:g} ms, gap p99 {config.slo.gap_s * 1e3:g} ms"
    for load, by_target in points.items():
        figures_of = {name: measure(point, config.slo) for name, point in by_target.items()}
        console.print(show(f"{load} ({slo})", figures_of))
        for name, of_target in figures_of.items():
            late_ms = of_target["client_late_p99_ms"]
            if late_ms is not None and late_ms > _LATE_MS:
                console.print(f"[bold]{name}: the clients were {late_ms:.0f} ms late (p99)[/bold]")
            if of_target["cached_prompt_tokens"]:
                hint = "start it afresh, or take another --first-seed"
                console.print(f"[bold]{name} had seen some of the prompts before: {hint}[/bold]")
    for name, rate_per_s in served_rates(points, config).items():
        if rate_per_s is not None:
            share = f"at least {GOODPUT_SHARE:.0%}"
            console.print(f"{name}: {share} of requests hold the SLO up to {rate_per_s:g}/s")


if __name__ == "__main__":
    main()
