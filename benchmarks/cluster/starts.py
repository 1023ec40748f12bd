"""Repeated cluster starts: first with an empty kernel cache each, then some with a full one.

    command ----> ready ----> first token      ready_s, first_token_s; or the failure

    python -m benchmarks.cluster.starts --contenders benchmarks/contenders/two_h200.toml \
        --only split --set model=DIR --cold 20 --warm 2

The operating system's file cache is not cleared between starts. Fails if a start does.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import click

from benchmarks.load.caller import Answer, make_caller, now_s
from benchmarks.load.contender import Contender, choose, contender_options
from benchmarks.load.contender_process import ContenderDiedError, start
from benchmarks.load.target import TargetError
from benchmarks.load.target import ask as find_target
from benchmarks.result_options import result_options
from benchmarks.results import save

PROMPT = [*range(3, 67)]
N_TOKENS = 16
TIMEOUT_S = 60.0
Ask = Callable[[str], str]  # endpoint -> why there was no answer, or an empty string


def ask(endpoint: str) -> str:
    """One request, in the endpoint's protocol."""

    async def call() -> str:
        try:
            target = await find_target("started", [endpoint], timeout_s=TIMEOUT_S)
            async with make_caller(endpoint, target.model) as caller:
                answer = Answer(now_s())
                await caller.call(caller.build(PROMPT, N_TOKENS, 1), answer, TIMEOUT_S)
                answer.end(N_TOKENS)
        except (TargetError, TimeoutError) as error:
            return str(error) or "NOT_CONNECTED"
        return answer.failure

    return asyncio.run(call())


def measure_start(contender: Contender, cache: Path, logs: Path, ask: Ask) -> dict[str, Any]:
    """One start with that folder as kernel cache. `failure` is empty if it answered."""
    os.environ["TRITON_CACHE_DIR"] = str(cache)
    found: dict[str, Any] = {"ready_s": None, "answered_s": None, "failure": ""}
    began_s = time.monotonic()
    try:
        with start(contender, logs) as started:
            found["ready_s"] = round(time.monotonic() - began_s, 2)
            found["failure"] = ask(started.contender.endpoints[0])
            found["answered_s"] = round(time.monotonic() - began_s, 2)
    except ContenderDiedError as error:
        found["failure"] = str(error)
    return found


def measure_starts(
    contender: Contender, *, cold: int, warm: int, logs: Path, until_s: float, ask: Ask = ask
) -> dict[str, Any]:
    """At most so many starts, none of which begins after `until_s` of `time.monotonic`. Warm starts
    use the cache of the last cold one."""
    assert cold, "the first start is cold"
    kinds = ["cold"] * cold + ["warm"] * warm
    starts: dict[str, list[dict[str, Any]]] = {"cold": [], "warm": []}
    last = Path()
    with tempfile.TemporaryDirectory() as caches:
        for nth, kind in enumerate(kinds):
            if time.monotonic() > until_s:
                break
            if kind == "cold":
                last = Path(caches) / f"cache_{nth}"
            found = measure_start(contender, last, logs, ask)
            starts[kind].append(found)
            print(kind, nth, found, flush=True)
    return {
        **{f"{kind}_starts": len(found) for kind, found in starts.items()},
        **{
            f"{kind}_failed": sum(bool(s["failure"]) for s in found)
            for kind, found in starts.items()
        },
        **{f"{kind}_ready_s": _median(found) for kind, found in starts.items()},
        **starts,
    }


def _median(starts: list[dict[str, Any]]) -> float | None:
    times = [start["ready_s"] for start in starts if start["ready_s"] is not None]
    return round(median(times), 2) if times else None


@click.command(help=__doc__)
@contender_options
@click.option("--cold", default=20, show_default=True)
@click.option("--warm", default=2, show_default=True)
@click.option("--time-limit-s", default=3600.0, help="No start begins after it.")
@result_options("starts")
@click.option("--log-dir", type=Path, default=Path("build/starts"))
def main(
    files: tuple[Path, ...],
    only: tuple[str, ...],
    targets: tuple[str, ...],
    settings: tuple[str, ...],
    cold: int,
    warm: int,
    time_limit_s: float,
    name: str,
    folder: Path,
    log_dir: Path,
    commit: str | None,
) -> None:
    log_dir.mkdir(parents=True, exist_ok=True)
    until_s = time.monotonic() + time_limit_s
    figures = {
        one.name: measure_starts(one, cold=cold, warm=warm, logs=log_dir, until_s=until_s)
        for one in choose(files, only, targets, settings)
    }
    print("saved", save(name, figures, folder=folder, commit=commit))
    failed = sum(f["cold_failed"] + f["warm_failed"] for f in figures.values())
    sys.exit(f"{failed} starts failed" if failed else 0)


if __name__ == "__main__":
    main()
