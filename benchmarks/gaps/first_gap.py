"""Why the first gap of an answer is longer than a step: a traced, idle cluster.

    python -m benchmarks.gaps.first_gap --contenders benchmarks/contenders/two_h200_idle.toml \
        --only split --set model=DIR --length 1024x16 --length 4096x16

`benchmarks.cluster.idle` sends one request at a time, and every process leaves stamps
(`benchmarks.gaps.stamps`). Each contender is started anew for each length. Times are milliseconds
since the prompt was computed:

    first token     computed -> shipped -> read -> written -> received
    second token    computed -> posted -> announced -> joined -> submitted -> sampled -> shipped
                             -> read -> written -> received
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.table import Table

from benchmarks.gaps.hops import StampError, of_stage
from benchmarks.gaps.stamps import Rows, read_stamps
from benchmarks.gaps.trace import traced
from benchmarks.load.contender import contender_options
from benchmarks.load.progress import make_console
from benchmarks.result_options import result_options
from benchmarks.results import save

FIRST = ("shipped", "read", "written", "received")
SECOND = (
    "posted", "announced", "joined", "submitted", "sampled", "landed", "shipped", "read", "written",
    "received",
)  # fmt: skip
Times = npt.NDArray[np.float64]  # milliseconds
_OPTIONAL = ("submitted", "written")  # by engines of GPUs; over gRPC
_HOUR_S = 3600.0


def of_rows(processes: Mapping[str, Rows], n_requests: int) -> dict[str, dict[str, Times]]:
    """Of the last `n_requests` rows that joined a batch: when each token passed each stage, in
    milliseconds since the prompt was computed, and `step`: the row's later steps. Stages that left
    no stamp (a row that stays where it is has no `posted`) are missing. One request is under way at
    a time, so which process left a stamp does not matter. Raises `StampError`."""
    everyone = np.concatenate([*processes.values()])
    joined = of_stage(everyone, "joined")[-n_requests:, 3]
    if len(joined) < n_requests:
        raise StampError(f"{len(joined)} rows have joined a batch, of {n_requests}")
    computed = _last_before(everyone, "sampled", joined)
    first = _walk(everyone, computed, FIRST)
    second = {}
    if len(of_stage(everyone, "announced")):
        announced = _last_before(everyone, "announced", joined)
        second = {"posted": _last_before(everyone, "posted", announced), "announced": announced}
    second |= {"joined": joined, **_walk(everyone, joined, SECOND[3:])}
    # What is sampled after an answer's last token may be the next prompt.
    until = np.append(computed[1:], np.iinfo(np.int64).max)
    ends = _last_before(everyone, FIRST[-1], until)
    sampled = of_stage(everyone, "sampled")[:, 3]
    of_row = [
        sampled[(sampled > begin) & (sampled < end)]
        for begin, end in zip(joined, ends, strict=True)
    ]
    if min(map(len, of_row)) < 2:
        raise StampError("an answer has fewer than two steps: ask for three tokens or more")
    steps = [np.median(np.diff(times)) for times in of_row]
    return {
        "first": {stage: (times - computed) / 1e6 for stage, times in first.items()},
        "second": {stage: (times - computed) / 1e6 for stage, times in second.items()},
        "step": {"step": np.array(steps) / 1e6},
    }


def _walk(
    rows: Rows, start: npt.NDArray[np.int64], stages: Sequence[str]
) -> dict[str, npt.NDArray[np.int64]]:
    """For each start, the first stamp of each stage after that of the stage before."""
    found = {}
    for stage in stages:
        times = of_stage(rows, stage)[:, 3]
        if not len(times) and stage in _OPTIONAL:
            continue
        at = np.searchsorted(times, start, side="left")
        if at.max() >= len(times):
            raise StampError(f"a token was never {stage}")
        start = found[stage] = times[at]
    return found


def _last_before(rows: Rows, stage: str, before: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    times = of_stage(rows, stage)[:, 3]
    at = np.searchsorted(times, before, side="right") - 1
    if not len(times) or at.min() < 0:
        raise StampError(f"a row joined that was not {stage} before")
    found: npt.NDArray[np.int64] = times[at]
    return found


def describe(found: Mapping[str, Mapping[str, Times]]) -> dict[str, Any]:
    """Medians and 90th percentiles, of times since the prompt was computed and of hops."""
    figures: dict[str, Any] = {}
    for token in ("first", "second"):
        before = np.zeros(1)
        for stage, times in found[token].items():
            figures[f"{token} {stage}"] = {
                "at_p50_ms": _percentile(times, 50),
                "hop_p50_ms": _percentile(times - before, 50),
                "hop_p90_ms": _percentile(times - before, 90),
            }
            before = times
    gap = found["second"][SECOND[-1]] - found["first"][FIRST[-1]]
    figures["first_gap_p50_ms"] = _percentile(gap, 50)
    figures["step_p50_ms"] = _percentile(found["step"]["step"], 50)
    figures["first_gap_over_step_ms"] = _percentile(gap - found["step"]["step"], 50)
    return figures


def _percentile(values: Times, p: float) -> float:
    return round(float(np.percentile(values, p)), 3)


def show(console: Console, title: str, figures: Mapping[str, Any]) -> None:
    table = Table(title=title, title_justify="left")
    for header in ("token", "until", "since computed, ms", "hop, ms", "p90"):
        table.add_column(header, justify="right" if "ms" in header or header == "p90" else "left")
    for key, of in figures.items():
        if isinstance(of, Mapping):
            token, stage = key.split()
            table.add_row(token, stage, *(f"{value:.3f}" for value in of.values()))
    console.print(table)
    console.print(
        f"first gap {figures['first_gap_p50_ms']:.2f} ms, {figures['first_gap_over_step_ms']:.2f} "
        f"ms longer than a step of {figures['step_p50_ms']:.2f} ms"
    )


def measure(contender: str, length: str, n_requests: int, options: Sequence[str]) -> dict[str, Any]:
    """The figures of one contender at one length. Raises `ClickException` if it fails."""
    with tempfile.TemporaryDirectory() as name, tempfile.TemporaryDirectory() as saved:
        folder = Path(name)
        command = [
            sys.executable, "-m", "benchmarks.cluster.idle", *options, "--only", contender,
            "--length", length, "--requests", str(n_requests), "--folder", saved,
        ]  # fmt: skip
        with traced(folder):
            done = subprocess.run(command, check=False, timeout=_HOUR_S, stdout=subprocess.DEVNULL)
        if done.returncode:
            raise click.ClickException(f"{contender}: the requests failed, as said above")
        rows = {path.stem: read_stamps(path) for path in folder.iterdir()}
    try:
        return describe(of_rows({pid: its for pid, its in rows.items() if len(its)}, n_requests))
    except StampError as error:
        raise click.ClickException(f"{contender}: {error}") from error


@click.command(help=__doc__)
@contender_options
@click.option("--length", "lengths", multiple=True, default=["1024x16"], show_default=True,
              help="INxOUT; repeat.")  # fmt: skip
@click.option("--requests", "n_requests", default=60, show_default=True)
@result_options("first_gap")
def main(
    files: tuple[Path, ...],
    only: tuple[str, ...],
    targets: tuple[str, ...],
    settings: tuple[str, ...],
    lengths: tuple[str, ...],
    n_requests: int,
    name: str,
    folder: Path,
    commit: str | None,
) -> None:
    if targets or not only:
        raise click.UsageError("a running cluster cannot be traced: give --contenders and --only")
    console = make_console()
    options = [word for path in files for word in ("--contenders", str(path))]
    options += [word for text in settings for word in ("--set", text)]
    figures: dict[str, Any] = {"requests": n_requests}
    for contender in only:
        figures[contender] = {}
        for length in lengths:
            figures[contender][length] = found = measure(contender, length, n_requests, options)
            show(console, f"{contender}, {length}, idle", found)
    console.print(f"saved {save(name, figures, folder=folder, commit=commit)}")


if __name__ == "__main__":
    main()
