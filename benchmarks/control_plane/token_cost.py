"""What a streamed token costs the router: tokens per second of its process's CPU time.

    python -m benchmarks.control_plane.token_cost [--before CHECKOUT]

    scripted workers ──one message a step──> router ──> clients in one process
    25 steps a second, a token a row each (`--step-s`)   n streams: 25 n tokens a second

by each way that clients take, and by what each token brings along:

    plain       text
    logprobs    also its log-probability and the likeliest other token's
    usage       also the counts so far (HTTP alone; by gRPC the last message has the ledger)

CPU time is that of all threads of the router, system time included, over a window in which every
stream runs, so it is the cost of tokens without that of requests. Clients read at once; slow ones
are bounded as always, and what that costs is included. `tokens_an_event` is above 1 where the
router's loop is full, so that tokens go out with the next ones of their answers: at most 2.
`first_token_ms` is of answers that are asked for one after the other beside these streams,
connecting included.

Machines differ from minute to minute, so with `--before` each point is measured in turn with the
router of that checkout and with this one's, and each pair gives a ratio.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from benchmarks.control_plane.router_process import RouterProcess, start_router
from benchmarks.control_plane.token_client import FLAVOURS, WAYS, ClientConfig
from benchmarks.machine import describe_commit
from benchmarks.results import save

STREAMS = (32, 256, 1000)
STEP_S = 0.04
WINDOW_S = 6.0
SETTLE_S = 1.0
ASKED = 25  # answers whose first token is timed
AIMS = {"http 32": 20_000, "http 256": 40_000, "http 1000": 40_000, "multiplexed 256": 40_000}


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenCost:
    """One window."""

    tokens_per_cpu_s: float
    cpu_us_a_token: float
    tokens_per_s: float
    tokens_an_event: float
    cpu_share: float  # of one core
    first_tokens: int  # of `ASKED` that came in time
    first_token_p50_ms: float | None
    first_token_max_ms: float | None


class ClientsError(RuntimeError):
    """The client process ended, or an answer did not come in time."""


class Crew:
    """The client process of one point."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def say(self, command: str) -> float:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{command}\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise ClientsError
        return float(answer)


@contextmanager
def started(config: ClientConfig) -> Iterator[Crew]:
    """With all its streams running."""
    command = [sys.executable, "-m", "benchmarks.control_plane.token_client"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(config.to_json() + "\n")
            process.stdin.flush()
            if process.stdout.readline() != "running\n":
                raise ClientsError
            yield Crew(process)
        finally:
            process.kill()


def measure(
    way: str,
    streams: int,
    flavour: str,
    checkout: Path | None = None,
    *,
    window_s: float,
    step_s: float = STEP_S,
) -> TokenCost:
    """With a router of its own, that of `checkout` or this one."""
    with start_router(step_s, checkout=checkout) as router:
        config = ClientConfig(
            way=way,
            endpoint=router.http_endpoint if way == "http" else router.endpoint,
            streams=streams,
            flavour=flavour,
            max_tokens=60_000,
        )
        with started(config) as crew:
            time.sleep(SETTLE_S)
            tokens, events, cpu_s, wall_s = _window(router, crew, window_s)
            firsts = _first_tokens_ms(crew)
    return TokenCost(
        tokens_per_cpu_s=round(tokens / cpu_s),
        cpu_us_a_token=round(cpu_s / tokens * 1e6, 1),
        tokens_per_s=round(tokens / wall_s),
        tokens_an_event=round(tokens / events, 2),
        cpu_share=round(cpu_s / wall_s, 3),
        first_tokens=len(firsts),
        first_token_p50_ms=round(statistics.median(firsts), 2) if firsts else None,
        first_token_max_ms=round(max(firsts), 2) if firsts else None,
    )


def _first_tokens_ms(crew: Crew) -> list[float]:
    """Fewer than `ASKED` if an answer does not come in time: that is in the figures."""
    firsts: list[float] = []
    try:
        for _ in range(ASKED):
            firsts.append(crew.say("ask"))  # noqa: PERF401  what came before an error is kept
    except ClientsError:
        pass
    return firsts


def _window(
    router: RouterProcess, crew: Crew, window_s: float
) -> tuple[float, float, float, float]:
    """Tokens, the events that bring them, CPU seconds and wall seconds."""
    tokens, events = router.n_tokens(), crew.say("events")
    cpu_s, began = router.cpu_s, time.monotonic()
    time.sleep(window_s)
    cpu_s, wall_s = router.cpu_s - cpu_s, time.monotonic() - began
    tokens, events = router.n_tokens() - tokens, crew.say("events") - events
    assert events > 0, "clients read on"
    return tokens, events, cpu_s, wall_s


@click.command(help="Measure what a streamed token costs the router.")
@click.option("--way", "ways", multiple=True, type=click.Choice(WAYS), default=WAYS)
@click.option("--streams", "counts", multiple=True, type=int, default=STREAMS)
@click.option("--flavour", "flavours", multiple=True, type=click.Choice(FLAVOURS), default=FLAVOURS)
@click.option("--more/--no-more", default=True, help="Or log-probabilities and usage at 256 alone.")
@click.option("--rounds", default=3, show_default=True)
@click.option("--window-s", default=WINDOW_S, show_default=True)
@click.option("--step-s", default=STEP_S, show_default=True, help="Of the decode worker.")
@click.option("--before", type=click.Path(path_type=Path, exists=True), help="Another checkout.")
@click.option("--before-commit", default="", help="Which commit that is.")
@click.option("--name", default="token_cost", show_default=True, help="Of the saved result.")
def main(
    ways: Sequence[str],
    counts: Sequence[int],
    flavours: Sequence[str],
    more: bool,
    rounds: int,
    window_s: float,
    step_s: float,
    before: Path | None,
    before_commit: str,
    name: str,
) -> None:
    console = Console()
    figures: dict[str, Any] = {}
    points = [
        (way, n, flavour)
        for way in ways
        for n in counts
        for flavour in flavours
        if (way == "http" or flavour != "usage") and (more or flavour == "plain" or n == 256)
    ]
    for way, n, flavour in points:
        runs: dict[str, list[TokenCost]] = {"before": [], "now": []}
        for _ in range(rounds):
            for label, checkout in (("before", before), ("now", None)):
                if label == "now" or checkout is not None:
                    way_now = way if checkout is None else _way_of(checkout, way)
                    how = {"window_s": window_s, "step_s": step_s}
                    try:
                        cost = measure(way_now, n, flavour, checkout, **how)
                    except ClientsError:
                        console.print(f"{way} {n} {flavour} {label}: void, once more")
                        cost = measure(way_now, n, flavour, checkout, **how)
                    runs[label].append(cost)
                    console.print(f"{way} {n} {flavour} {label}: {cost.tokens_per_cpu_s:,.0f}")
        figures[f"{way} {n} {flavour}"] = _summary(runs)
        document = {
            "aims_tokens_per_cpu_s": AIMS,
            "settings": {"step_s": step_s, "window_s": window_s, "rounds": rounds},
            "commit_before": before_commit or None,
            "points": figures,
        }
        save(name, document)  # a part of it is better than nothing
    console.print(_table(figures))
    console.print(f"saved {name} at {describe_commit()['commit'][:10]}")


def _way_of(checkout: Path, way: str) -> str:
    """Calls of Generate, where it knows no multiplexed stream."""
    knows_it = (checkout / "router/doors/multiplex.py").exists()
    return "grpc" if way == "multiplexed" and not knows_it else way


def _summary(runs: dict[str, list[TokenCost]]) -> dict[str, Any]:
    """The median run of each side, and the median ratio of the pairs."""
    summary: dict[str, Any] = {}
    for label, costs in runs.items():
        if costs:
            middle = sorted(costs, key=lambda cost: cost.tokens_per_cpu_s)[len(costs) // 2]
            each = [cost.tokens_per_cpu_s for cost in costs]
            summary[label] = {**asdict(middle), "tokens_per_cpu_s_each": each}
    if runs["before"]:
        pairs = zip(runs["before"], runs["now"], strict=True)
        ratios = [now.tokens_per_cpu_s / then.tokens_per_cpu_s for then, now in pairs]
        summary["ratio"] = round(statistics.median(ratios), 2)
    return summary


def _table(figures: dict[str, Any]) -> Table:
    table = Table(title="tokens per CPU-second of the router; ms to the first token", box=SIMPLE)
    table.add_column("way, streams, flavour", no_wrap=True)
    headers = ("before", "now", "ratio", "µs a token", "an event", "first p50", "first max")
    for header in headers:
        table.add_column(header, justify="right", no_wrap=True)
    for point, summary in figures.items():
        now, then = summary["now"], summary.get("before")
        table.add_row(
            point,
            "" if then is None else f"{then['tokens_per_cpu_s']:,.0f}",
            f"{now['tokens_per_cpu_s']:,.0f}",
            str(summary.get("ratio", "")),
            f"{now['cpu_us_a_token']:.1f}",
            f"{now['tokens_an_event']:.2f}",
            str(now["first_token_p50_ms"]),
            str(now["first_token_max_ms"]),
        )
    return table


if __name__ == "__main__":
    main()
