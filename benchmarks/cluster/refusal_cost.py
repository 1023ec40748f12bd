"""What a flood that is refused costs the router, beside a bare server that refuses everything.

    python -m benchmarks.cluster.refusal_cost [--before CHECKOUT]

    h2load ── RATE calls a second, ──> router ──> scripted workers: 64 rows, about 75 answers of
              as of `overload`                     48 tokens a second; all other calls are refused
                          10 probes a second, from a process of its own: when is a refusal there?

    bare     a gRPC server that does nothing but refuse, under the same flood
    before   the router of that checkout
    now      this one's

in turn, round after round, because machines differ from minute to minute. The server gets the
niceness that a launcher gives a router, if that is permitted. CPU time is that of all its threads;
`us_a_call` is that for each call that was refused, answered or failed.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import psutil

from benchmarks.cluster.flood import MIXED, find_h2load, flooded
from benchmarks.cluster.overload import probing, refuser
from benchmarks.control_plane.router_process import RouterProcess, start_router
from benchmarks.results import save
from twolane.deploy.process.cpu_share import ROUTER_NICE

ROWS, STEP_S = 64, 0.02
VOCAB = 8_000  # the prompt's tokens are below
SETTLE_S = 3.0
_ENDED = ("refused", "finished", "failed")


def measure(
    endpoint: str, pid: int, rate_per_s: float, for_s: float, n_ended: Callable[[], float]
) -> dict[str, Any]:
    """One window of a flood of the server at `endpoint`, the process `pid`."""
    _prefer(pid)
    with probing(endpoint) as probes, flooded(endpoint, MIXED, rate_per_s, for_s + 10):
        time.sleep(SETTLE_S)
        n, cpu_s, began = n_ended(), _cpu_s(pid), time.monotonic()
        time.sleep(for_s)
        n, cpu_s, ended = n_ended() - n, _cpu_s(pid) - cpu_s, time.monotonic()
    calls = n or rate_per_s * (ended - began)
    during = [probe for probe in probes if began <= probe.at_s < ended]
    refused = sorted(
        1e3 * probe.took_s
        for probe in during
        if probe.code == "RESOURCE_EXHAUSTED" and not probe.was_queued
    )
    return {
        "us_a_call": round(cpu_s / calls * 1e6),
        "cpu_share": round(cpu_s / (ended - began), 3),
        "refusal_p50_ms": round(statistics.median(refused), 1) if refused else None,
        "refusal_p99_ms": round(refused[int(0.99 * len(refused))], 1) if refused else None,
        "cancelled": sum(probe.code == "CANCELLED" for probe in during),
        "without_details": sum(not probe.has_details for probe in during),
    }


def _cpu_s(pid: int) -> float:
    return RouterProcess("", pid).cpu_s


def _prefer(pid: int) -> None:
    """Set each thread: it has some already."""
    for thread in psutil.Process(pid).threads():
        try:
            psutil.Process(thread.id).nice(ROUTER_NICE)
        except psutil.AccessDenied:
            return


def _bare(rate_per_s: float, for_s: float) -> dict[str, Any]:
    with refuser() as (endpoint, pid):
        return measure(endpoint, pid, rate_per_s, for_s, lambda: 0.0)


def _router(rate_per_s: float, for_s: float, checkout: Path | None) -> dict[str, Any]:
    with _started(checkout) as router:

        def n_ended() -> float:
            return sum(router.count(f"twolane_router_{name}_total") for name in _ENDED)

        return measure(router.endpoint, router.pid, rate_per_s, for_s, n_ended)


@contextmanager
def _started(checkout: Path | None) -> Iterator[RouterProcess]:
    with start_router(STEP_S, checkout=checkout, rows=ROWS, vocab_size=VOCAB) as router:
        time.sleep(1.0)  # its workers announce themselves
        yield router


@click.command(help="Measure what calls that are refused cost the router.")
@click.option("--rate", default=1000.0, show_default=True, help="Calls a second.")
@click.option("--for", "for_s", default=8.0, show_default=True, help="Seconds a window.")
@click.option("--rounds", default=3, show_default=True)
@click.option("--before", type=click.Path(path_type=Path), help="A checkout to compare with.")
@click.option("--save/--no-save", "is_saved", default=True, show_default=True)
def main(rate: float, for_s: float, rounds: int, before: Path | None, is_saved: bool) -> None:
    if find_h2load() is None:
        raise click.ClickException("h2load is missing: install nghttp2 (Debian: nghttp2-client)")
    found: dict[str, list[dict[str, Any]]] = {"bare": [], "before": [], "now": []}
    for _ in range(rounds):
        found["bare"].append(_bare(rate, for_s))
        if before is not None:
            found["before"].append(_router(rate, for_s, before))
        found["now"].append(_router(rate, for_s, None))
        for name, windows in found.items():
            if windows:
                click.echo(f"{name:8} {windows[-1]}")
    figures = {"rate_per_s": rate, "for_s": for_s, **found}
    if is_saved:
        click.echo(f"saved {save('refusal_cost', figures)}")


if __name__ == "__main__":
    main()
