"""The router's cost: CPU time per token, and time added to the first token.

    client ---> router ---> worker      spent outside the worker = client's TTFT - worker's share
           <---        <---             added = that - the same with a bare gRPC server

There are three ways to load it, each with 1, 32 and 256 concurrent requests:

    paced     scripted workers with steps of 40 ms, Poisson arrivals that keep so many in flight:
              measures the time added to the first token
    flat out  scripted workers as fast as the router reads, so many concurrent answers:
              measures tokens per second of the router's CPU time
    engine    the same with real workers, on the fake engine

and, for the first two, the same load on `benchmarks.control_plane.bare_door`: the cost of gRPC
alone. CPU time is that of all threads of the router process, system time included, over the whole
run: it includes reading and dispatching requests, and the time while clients start. So the answers
of `flat out` are long, for seconds of CPU time per run. If a client cannot keep up, the router puts
several tokens in one message, which is cheaper: see `tokens_per_message`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict

import click
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from benchmarks.control_plane.overhead import Overhead, overhead
from benchmarks.control_plane.router_process import RouterProcess, start_bare_door, start_router
from benchmarks.control_plane.scripted_row import CONTEXT_TOKENS
from benchmarks.load.client_processes import ClientProcessesConfig, run_plan
from benchmarks.load.target import ask
from benchmarks.results import save
from benchmarks.traffic.plan import ArrivalKind, Plan, PlanConfig, make_plan
from benchmarks.traffic.workload import find_workload
from twolane.testing import start_local

Figures = Mapping[str, Mapping[str, Overhead]]  # by way, by number at once

WAYS = ("bare paced", "paced", "bare flat out", "flat out", "engine")
AT_ONCE = (1, 32, 256)
STEP_S = 0.04
PACED_S, PACED_TOKENS = 20.0, 50
FLAT_TOKENS = {1: 30_000, 32: 3_000, 256: 400}
ENGINE_TOKENS = {1: 2_000, 32: 1_000, 256: 200}  # fewer: a fake step reads the whole row
PROMPT_TOKENS = 64
AIM_TOKENS_PER_CPU_S, AIM_ADDED_MS, AIM_AT_ONCE = 8_000, 2.0, 32
_WARM_UP_SEED = 0


def paced_plan(at_once: int) -> Plan:
    """Answers of 2 s, arriving so that `at_once` of them are in flight, for 20 s."""
    rate_per_s = at_once / (PACED_TOKENS * STEP_S)
    config = PlanConfig(rate_per_s=rate_per_s, n_requests=round(rate_per_s * PACED_S))
    return make_plan(find_workload(f"{PROMPT_TOKENS}x{PACED_TOKENS}"), config, seed=at_once)


def flat_plan(at_once: int, answer_tokens: int) -> Plan:
    """`at_once` answers, all arriving within a tenth of a second."""
    config = PlanConfig(
        arrivals=ArrivalKind.CONSTANT,
        rate_per_s=at_once / 0.1,
        n_requests=at_once,
        context_tokens=CONTEXT_TOKENS,
    )
    workload = find_workload(f"{PROMPT_TOKENS}x{answer_tokens}")
    plan = make_plan(workload, config, seed=at_once)
    assert not plan.n_cut, f"answers of {answer_tokens} tokens do not fit"
    return plan


def warm_up_plan() -> Plan:
    """Ten short answers."""
    config = PlanConfig(arrivals=ArrivalKind.CONSTANT, rate_per_s=20.0, n_requests=10)
    return make_plan(find_workload(f"{PROMPT_TOKENS}x10"), config, _WARM_UP_SEED)


async def measure(router: RouterProcess, plan: Plan, at_once: int, n_clients: int) -> Overhead:
    """Run the plan against the router, after a short warm-up."""
    target = await ask("router", [router.endpoint])
    crew = ClientProcessesConfig(n_clients=n_clients)
    await run_plan(warm_up_plan(), [_WARM_UP_SEED], [target], crew, lambda *_: None)
    before_s = router.cpu_s
    records = (await run_plan(plan, [at_once], [target], crew, lambda *_: None))[target.name]
    return overhead(records, router.cpu_s - before_s, at_once)


@contextmanager
def start(way: str) -> Iterator[RouterProcess]:
    """The process to measure, with what the way needs behind it (see the module's docstring)."""
    if way == "engine":
        room = max(AT_ONCE)  # for all answers in one batch
        with start_local(
            engine="fake", decode_rows=room, step_tokens=4 * room, pages=32 * room
        ) as cluster:
            yield RouterProcess(cluster.endpoint, cluster.pid("router-0"))
    else:
        step_s = STEP_S if way.endswith("paced") else 0.0
        with (start_bare_door if way.startswith("bare") else start_router)(step_s) as process:
            yield process


def added_ms(figures: Figures) -> dict[str, float | None]:
    """By concurrency: the median time to first token, paced, beyond that of a bare door."""
    bare, routed = figures.get("bare paced", {}), figures.get("paced", {})
    added: dict[str, float | None] = {}
    for at_once in [count for count in routed if count in bare]:
        base, ours = bare[at_once].outside_p50_ms, routed[at_once].outside_p50_ms
        added[at_once] = None if base is None or ours is None else ours - base
    return added


@click.command(help="Measure what the router costs.")
@click.option("--way", "ways", multiple=True, type=click.Choice(WAYS), default=WAYS)
@click.option("--at-once", "counts", multiple=True, type=int, default=AT_ONCE)
@click.option("--clients", "n_clients", default=2, show_default=True, help="Client processes.")
def main(ways: Sequence[str], counts: Sequence[int], n_clients: int) -> None:
    console = Console()
    figures: dict[str, dict[str, Overhead]] = {}
    for way in ways:
        figures[way] = {}
        with start(way) as router:
            for at_once in counts:
                found = asyncio.run(measure(router, _plan(way, at_once), at_once, n_clients))
                figures[way][str(at_once)] = found
                speed = f"{found.tokens_per_cpu_s:,.0f} tokens a second of processor time"
                console.print(f"{way}, {at_once} at once: {speed}")
    console.print(_table(figures))
    added = added_ms(figures)
    for count, ms in added.items():
        if ms is not None:
            console.print(f"added to the first token at {count} at once: {ms:.2f} ms")
    aims = {"tokens_per_cpu_s": AIM_TOKENS_PER_CPU_S, f"added_ms_at_{AIM_AT_ONCE}": AIM_ADDED_MS}
    settings = {"step_s_when_paced": STEP_S, "prompt_tokens": PROMPT_TOKENS, "clients": n_clients}
    runs = {
        way: {n: _rounded(asdict(found)) for n, found in by.items()} for way, by in figures.items()
    }
    document = {"aims": aims, "settings": settings, "added_ms": _rounded(added), "runs": runs}
    path = save("router_overhead", document)
    console.print(f"saved {path}")


def _plan(way: str, at_once: int) -> Plan:
    if way.endswith("paced"):
        return paced_plan(at_once)
    answer_tokens = ENGINE_TOKENS if way == "engine" else FLAT_TOKENS
    return flat_plan(at_once, answer_tokens[at_once])


def _table(figures: Figures) -> Table:
    title = "tokens; processor time; ms to the first token spent outside the worker"
    table = Table(title=title, box=SIMPLE)
    table.add_column("at once", no_wrap=True)
    headers = ("/CPU-s", "/msg", "/s", "CPU", "p50", "p99", "door", "failed")
    for header in headers:
        table.add_column(header, justify="right", no_wrap=True)
    for way, by_count in figures.items():
        for at_once, found in by_count.items():
            outside_ms = (found.outside_p50_ms, found.outside_p99_ms, found.outside_door_p50_ms)
            table.add_row(
                f"{way} {at_once}",
                f"{found.tokens_per_cpu_s:,.0f}",
                f"{found.tokens_per_message:.2f}",
                f"{found.tokens / found.wall_s:,.0f}",
                f"{found.router_cpu_s / found.wall_s:.0%}",
                *("–" if ms is None else f"{ms:.2f}" for ms in outside_ms),
                str(found.failed),
            )
    return table


def _rounded(figures: Mapping[str, float | None]) -> dict[str, float | None]:
    return {name: None if x is None else round(x, 4) for name, x in figures.items()}


if __name__ == "__main__":
    main()
