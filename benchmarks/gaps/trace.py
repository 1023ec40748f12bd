"""Where the tokens of late steps were delayed: a traced cluster under load.

    python -m benchmarks.gaps.trace --contenders benchmarks/contenders/two_h200.toml --only split \
        --set model=DIR --rate 18 --rate 24

Every process of the cluster, and the clients, leave stamps (`benchmarks.gaps.stamps`), which
`benchmarks.gaps.hops` correlates. The stamps cost a few microseconds per token: do not quote these
gaps as the cluster's.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import numpy as np

from benchmarks.gaps.hops import late_steps, of_stage, pauses, step_times
from benchmarks.gaps.stamps import FOLDER, Rows, read_stamps
from benchmarks.load.client_processes import ClientProcessesConfig, run_plan
from benchmarks.load.contender import Contender, choose, contender_options
from benchmarks.load.contender_process import start
from benchmarks.load.summary import describe
from benchmarks.load.target import ask
from benchmarks.result_options import result_options
from benchmarks.results import save
from benchmarks.traffic.plan import PlanConfig, make_plan
from benchmarks.traffic.workload import find_workload

SITE = Path(__file__).parent / "site"
ROOT = Path(__file__).parents[2]
WARM_UP_REQUESTS = 16
_TRACE_END_S = 1.5  # until the last rows are on disk


@contextmanager
def traced(folder: Path) -> Iterator[None]:
    """Python processes that are started within the block leave stamps in the folder. One of them
    does nothing else: if it wakes late, the machine was the cause."""
    before = os.environ.copy()
    path = [str(SITE), str(ROOT), os.environ.get("PYTHONPATH", "")]
    os.environ |= {FOLDER: str(folder), "PYTHONPATH": os.pathsep.join(filter(None, path))}
    idle = subprocess.Popen([sys.executable, "-c", "import threading; threading.Event().wait()"])
    try:
        yield
    finally:
        idle.kill()
        idle.wait()
        os.environ.clear()
        os.environ.update(before)


async def load(
    contender: Contender, workload: str, rate_per_s: float, n_requests: int
) -> dict[str, Any]:
    """What the clients measured."""
    target = await ask(contender.name, contender.endpoints, told=contender.told)
    config = PlanConfig(
        rate_per_s=rate_per_s, n_requests=n_requests, context_tokens=target.max_context_tokens
    )
    crew = ClientProcessesConfig(n_clients=4)
    plan = make_plan(find_workload(workload), config, 1)
    records = await run_plan(plan, [1, n_requests], [target], crew, lambda *_: None)
    await asyncio.sleep(_TRACE_END_S)
    return describe(records[target.name])


def report(processes: Mapping[str, Rows], seen: Mapping[str, Any]) -> dict[str, Any]:
    named = {_name(pid, rows): rows for pid, rows in processes.items() if len(rows)}
    return {
        "clients": dict(seen),
        **late_steps(step_times(processes)),
        "pauses": {name: pauses(rows) for name, rows in sorted(named.items())},
    }


def _name(pid: str, rows: Rows) -> str:
    """Named by its stamps."""
    for stage, role in (("read", "router"), ("landed", "worker"), ("received", "client")):
        if len(of_stage(rows, stage)):
            return f"{role} {pid}"
    return f"other {pid}"


def measure(
    contender: Contender, workload: str, rate_per_s: float, n_requests: int, logs: Path
) -> dict[str, Any]:
    """Starts a cluster for each rate, so that its stamps are of that rate only."""
    with (
        tempfile.TemporaryDirectory() as name,
        traced(Path(name)),
        start(contender, logs) as started,
    ):
        asyncio.run(load(started.contender, workload, rate_per_s, WARM_UP_REQUESTS))
        before = {path: len(read_stamps(path)) for path in Path(name).iterdir()}
        seen = asyncio.run(load(started.contender, workload, rate_per_s, n_requests))
        rows = {
            path.stem: read_stamps(path)[before.get(path, 0) :] for path in Path(name).iterdir()
        }
    if not rows or not np.concatenate([*rows.values()]).size:
        raise click.ClickException("no process has left a stamp")
    return report(rows, seen)


@click.command(help=__doc__)
@contender_options
@click.option("--workload", default="balanced", show_default=True)
@click.option("--rate", "rates", multiple=True, type=float, default=(18.0,), show_default=True)
@click.option("--requests", "n_requests", default=400, show_default=True)
@result_options("gap_trace")
@click.option("--log-dir", type=Path, default=Path("build/gap_trace"))
def main(
    files: tuple[Path, ...],
    only: tuple[str, ...],
    targets: tuple[str, ...],
    settings: tuple[str, ...],
    workload: str,
    rates: tuple[float, ...],
    n_requests: int,
    name: str,
    folder: Path,
    log_dir: Path,
    commit: str | None,
) -> None:
    log_dir.mkdir(parents=True, exist_ok=True)
    figures: dict[str, Any] = {"workload": workload, "requests": n_requests}
    for one in choose(files, only, targets, settings):
        if not one.commands:
            raise click.UsageError("a running cluster cannot be traced: give --contenders")
        for rate in rates:
            found = measure(one, workload, rate, n_requests, log_dir)
            figures[f"{one.name} at {rate:g}/s"] = found
            print(one.name, rate, {k: v for k, v in found.items() if k != "pauses"}, flush=True)
    print("saved", save(name, figures, folder=folder, commit=commit))


if __name__ == "__main__":
    main()
