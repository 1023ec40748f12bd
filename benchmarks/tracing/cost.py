"""What traces cost a router: its CPU time with every request traced, by that without, in pairs.

Both routers of a pair answer the same requests of scripted workers; which of them comes first
changes from pair to pair. The collector is a process of its own that only counts. CPU time is
counted until the last spans are sent, as long without traces.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import sys
from collections.abc import Iterator
from concurrent import futures
from contextlib import contextmanager
from subprocess import PIPE, Popen
from typing import Any

import click
import grpc

from benchmarks.control_plane.router_overhead import flat_plan, warm_up_plan
from benchmarks.control_plane.router_process import RouterProcess, start_router
from benchmarks.load.client_processes import ClientProcessesConfig, run_plan
from benchmarks.load.target import ask
from benchmarks.results import save
from benchmarks.traffic.plan import Plan

ENDPOINT, DELAY_MS = "OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_BSP_SCHEDULE_DELAY"
SENT_AFTER_S = 1.0  # what is left waits half of it
_EXPORT = "opentelemetry.proto.collector.trace.v1.TraceService"
AIM = 0.03


def collect() -> None:
    """Accept what routers export, until standard input ends; then print how many bytes it was."""
    n_bytes = 0

    def export(request: bytes, context: grpc.ServicerContext) -> bytes:
        nonlocal n_bytes
        n_bytes += len(request)
        return b""

    server = grpc.server(futures.ThreadPoolExecutor(2))
    method: Any = grpc.unary_unary_rpc_method_handler(export)
    handler = grpc.method_handlers_generic_handler(_EXPORT, {"Export": method})
    server.add_generic_rpc_handlers((handler,))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    print(port, flush=True)
    sys.stdin.read()
    server.stop(0)
    print(n_bytes, flush=True)


@contextmanager
def collecting(found: list[int]) -> Iterator[None]:
    """Routers that start in the block export their traces. Appends the number of bytes."""
    command = [sys.executable, "-c", f"from {__spec__.name} import collect; collect()"]
    with Popen(command, stdin=PIPE, stdout=PIPE, text=True) as collector:
        assert collector.stdin is not None
        assert collector.stdout is not None
        os.environ[ENDPOINT] = f"http://127.0.0.1:{int(collector.stdout.readline())}"
        os.environ[DELAY_MS] = f"{SENT_AFTER_S / 2 * 1e3:.0f}"
        try:
            yield
        finally:
            del os.environ[ENDPOINT], os.environ[DELAY_MS]
            collector.stdin.close()
            found.append(int(collector.stdout.read() or 0))


def cpu_s(plan: Plan, at_once: int, exported: list[int] | None) -> float:
    """CPU time of one router for the plan; it exports traces if `exported` is given."""
    if exported is not None:
        with collecting(exported):
            return cpu_s(plan, at_once, None)
    with start_router(0.0) as router:
        return asyncio.run(_spent_s(router, plan, at_once))


async def _spent_s(router: RouterProcess, plan: Plan, at_once: int) -> float:
    target, crew = await ask("router", [router.endpoint]), ClientProcessesConfig(n_clients=1)
    await run_plan(warm_up_plan(), [0], [target], crew, lambda *_: None)
    before_s = router.cpu_s
    await run_plan(plan, [at_once], [target], crew, lambda *_: None)
    await asyncio.sleep(SENT_AFTER_S)
    return router.cpu_s - before_s


@click.command(help="Measure what traces cost a router.")
@click.option("--pairs", default=6, show_default=True)
@click.option("--requests", default=256, show_default=True)
@click.option("--tokens", default=400, show_default=True, help="Of each answer.")
def main(pairs: int, requests: int, tokens: int) -> None:
    plan = flat_plan(requests, tokens)
    ratios, exported = [], list[int]()
    for pair in range(pairs):
        order = (None, exported) if pair % 2 else (exported, None)
        spent_s = {into is not None: cpu_s(plan, requests, into) for into in order}
        ratios.append(spent_s[True] / spent_s[False])
        click.echo(
            f"off {spent_s[False]:.3f} s, on {spent_s[True]:.3f} s: {ratios[-1] - 1:+.1%}, "
            f"{exported[-1]:,} bytes"
        )
    click.echo(f"median {statistics.median(ratios) - 1:+.1%}; aim: at most {AIM:+.0%}")
    settings = {"pairs": pairs, "requests": requests, "tokens": tokens, "sampled": 1.0}
    found = {"ratios": ratios, "median": statistics.median(ratios), "bytes": exported}
    click.echo(f"saved {save('tracing_cost', {'aim': AIM, 'settings': settings, **found})}")


if __name__ == "__main__":
    main()
