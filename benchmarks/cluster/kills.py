"""Kill workers of a cluster under load: no request may be lost, and no token may change.

\b
    python -m benchmarks.cluster.kills      # the bundled model, two workers of each role
    python -m benchmarks.cluster.kills --topology 2p2d --model DIR --set launcher=process \\
        --set share_gpus --set kv_bytes=8000000000 --in-flight 16 --together \\
        --prompt-tokens 2000 --prompt-tokens 300 --output-tokens 200

Starts the cluster itself, in exact mode. Kills prefill and decode workers (SIGKILL) in random
order, at random moments while they have requests, each after the previous one is back; then sends
all requests again. Exits with 1 if a request failed, hung or got other tokens, if no request was
served while a worker was down, or if pages or requests are left over.
"""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from benchmarks.cluster.kills_run import KillsConfig, KillsRun, Outcome
from benchmarks.cluster.start_options import start_options
from benchmarks.result_options import result_options
from benchmarks.results import save
from twolane.testing import start_local


@click.command(help=__doc__, context_settings={"show_default": True})
@click.option("--topology", help="A YAML file or a name, else two workers of each role.")
@click.option("--model", help="A directory or an id of the Hub, else the bundled model.")
@click.option("--set", "settings", multiple=True, help="NAME=VALUE or NAME, of `twolane up`.")
@click.option("--kills", "n_kills", default=5, help="Of each role.")
@click.option("--requests", "n_requests", default=40, help="At least so many.")
@click.option("--in-flight", default=8, help="Requests at any time.")
@click.option("--prompt-tokens", multiple=True, type=int, default=(200, 40, 600))
@click.option("--output-tokens", multiple=True, type=int, default=(64,))
@click.option("--together", is_flag=True, help="Workers of both roles side by side: half the time.")
@click.option("--seed", default=1)
@click.option("--timeout-s", default=120.0, help="A request that takes longer hangs.")
@click.option("--start-timeout-s", default=300.0)
@result_options("kills")
def main(
    topology: str | None,
    model: str | None,
    settings: tuple[str, ...],
    start_timeout_s: float,
    name: str,
    folder: Path,
    commit: str | None,
    **options: Any,
) -> None:
    config, console = KillsConfig(**options), Console()
    sizes = {"prefill": 2, "decode": 2} if topology is None else {}
    more = sizes | start_options(settings)
    with start_local(
        topology=topology, model=model, exact=True, start_timeout_s=start_timeout_s, **more
    ) as cluster:
        outcome = asyncio.run(KillsRun(cluster, config, console.print).run())
    problems = outcome.problems(config)
    console.print(table_of(outcome))
    console.print(
        f"{len(outcome.answers)} requests answered in {outcome.load_s:.0f} s, "
        f"{outcome.moved} of them in more than one attempt, {len(outcome.failed)} failed, "
        f"{len(outcome.different)} with other tokens than in calm"
    )
    figures = {**asdict(config), **figures_of(outcome), "settings": settings, "problems": problems}
    figures |= {"topology": topology or "two of each role", "model": model or "bundled"}
    console.print(str(save(name, figures, folder=folder, commit=commit)))
    if problems:
        raise click.ClickException("; ".join(problems))


def table_of(outcome: Outcome) -> Table:
    """One line per kill."""
    table = Table("at", "killed", "its requests", "back after", "tokens meanwhile", "silence")
    for kill in outcome.kills:
        table.add_row(
            f"{kill.at_s:.1f} s", kill.worker, str(kill.requests), f"{kill.down_s:.1f} s",
            str(kill.tokens), f"{kill.silence_s * 1e3:.0f} ms",
        )  # fmt: skip
    return table


def figures_of(outcome: Outcome) -> dict[str, Any]:
    """The saved result."""
    silences_ms = [kill.silence_s * 1e3 for kill in outcome.kills]
    return {
        "answers": len(outcome.answers),
        "answers_moved": outcome.moved,
        "answers_failed": len(outcome.failed),
        "answers_different": len(outcome.different),
        "tokens_compared": sum(len(answer.token_ids) for answer in outcome.answers.values()),
        "new_attempts": outcome.resumes,
        "load_s": round(outcome.load_s, 2),
        "median_silence_ms": round(median(silences_ms), 1) if silences_ms else None,
        "kills_done": [
            {k: round(v, 4) if isinstance(v, float) else v for k, v in asdict(kill).items()}
            for kill in outcome.kills
        ],
    }


if __name__ == "__main__":
    main(prog_name="python -m benchmarks.cluster.kills")
