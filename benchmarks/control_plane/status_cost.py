"""What it costs to look at a cluster of 200 workers and 2,000 requests, in CPU time.

    python -m benchmarks.control_plane.status_cost

    status     the router makes it, sends it, the command reads and draws it: `twolane status`
    top        the same without requests: `twolane top`, at each of its repaints
    requests   the first page of `twolane requests list`
    json       `twolane status --json`
    console    what one open page of the console asks for each second

All in one process, with a router and scripted workers; the wire between is protobuf's encoding and
decoding, without sockets.
"""

from __future__ import annotations

import asyncio
import io
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import click
import msgspec
from google.protobuf import json_format
from rich.console import Console

from benchmarks.machine import describe_commit
from benchmarks.results import save
from twolane.cli.ops.output import as_json
from twolane.cli.ops.top import render as render_top
from twolane.cli.status import render
from twolane.router.router import Router
from twolane.router.testing.client import ask, message, play
from twolane.router.testing.cluster import ScriptedCluster
from twolane.status import ClusterStatus
from twolane.v1 import admin_pb2, cluster_pb2

AIM_MS = 300.0  # for a status
_SETTLE_S = 0.05
_STATUS = cluster_pb2.GetClusterStatusResponse


def _looks(router: Router) -> dict[str, Callable[[], object]]:
    def read(*, with_requests: bool) -> cluster_pb2.GetClusterStatusResponse:
        sent = router.status(with_requests=with_requests).SerializeToString()
        return _STATUS.FromString(sent)

    def draw(what: Any) -> None:
        Console(file=io.StringIO(), width=200).print(what)

    def page(**options: Any) -> admin_pb2.ListRequestsResponse:
        found = router.operations.requests.page(admin_pb2.ListRequestsRequest(**options))
        return admin_pb2.ListRequestsResponse.FromString(found.SerializeToString())

    def console() -> bytes:
        parts = [read(with_requests=False), page(page_size=40, with_ledgers=True)]
        return msgspec.json.encode([json_format.MessageToDict(part) for part in parts])

    return {
        "status": lambda: draw(render(ClusterStatus.from_proto(read(with_requests=True)))),
        "top": lambda: draw(render_top(read(with_requests=False))),
        "requests": page,
        "json": lambda: json.dumps(as_json(read(with_requests=True)), indent=2),
        "console": console,
    }


def _cost_ms(look: Callable[[], object]) -> float:
    began = time.process_time()
    look()
    return (time.process_time() - began) * 1000


def measure(n_workers: int, n_requests: int, n_times: int) -> dict[str, dict[str, float]]:
    """The least and the median CPU milliseconds of each look."""
    figures: dict[str, dict[str, float]] = {}

    async def script(router: Router, cluster: ScriptedCluster) -> None:
        asking = [
            asyncio.create_task(ask(router, message([1, 2, 3], max_tokens=500)))
            for _ in range(n_requests)
        ]
        await asyncio.sleep(_SETTLE_S)
        for name, look in _looks(router).items():
            costs = [_cost_ms(look) for _ in range(n_times)]
            middle = statistics.median(costs)
            figures[name] = {"least_ms": round(min(costs), 1), "median_ms": round(middle, 1)}
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)

    play(script, [f"{'pd'[n % 2]}{n}" for n in range(n_workers)])
    return figures


@click.command()
@click.option("--workers", default=200, show_default=True)
@click.option("--requests", default=2_000, show_default=True)
@click.option("--times", default=9, show_default=True)
def main(workers: int, requests: int, times: int) -> None:
    looks = measure(workers, requests, times)
    figures = {"workers": workers, "requests": requests, "aim_ms": AIM_MS, "cpu": looks}
    save("status_cost", figures)
    for name, its in looks.items():
        click.echo(f"{name:10} {its['least_ms']:8.1f} ms  median {its['median_ms']:8.1f} ms")
    click.echo(f"saved status_cost at {describe_commit()['commit'][:10]}")


if __name__ == "__main__":
    main()
