"""A status of 200 workers and 2,000 requests costs at most 300 ms, drawing included."""

from __future__ import annotations

import asyncio
import io
import time

from rich.console import Console

from twolane.cli.status import render
from twolane.router.router import Router
from twolane.router.testing.client import ask, message, play
from twolane.router.testing.cluster import ScriptedCluster
from twolane.status import ClusterStatus
from twolane.v1 import admin_pb2, cluster_pb2

N_WORKERS = 200
N_REQUESTS = 2_000
MOST_CPU_S = 0.3
WORKERS = [f"{'pd'[n % 2]}{n}" for n in range(N_WORKERS)]


def cost(router: Router) -> float:
    """CPU seconds of one status: made, sent, read, drawn; and of a page of requests."""
    began = time.process_time()
    raw = router.status().SerializeToString()
    status = ClusterStatus.from_proto(cluster_pb2.GetClusterStatusResponse.FromString(raw))
    Console(file=io.StringIO(), width=200).print(render(status))
    assert len(status.requests) == N_REQUESTS
    router.operations.requests.page(admin_pb2.ListRequestsRequest())
    return time.process_time() - began


def test_a_status_of_200_workers_and_2000_requests_costs_at_most_300_ms() -> None:
    async def script(router: Router, cluster: ScriptedCluster) -> None:
        asking = [
            asyncio.create_task(ask(router, message([1, 2, 3], max_tokens=500)))
            for _ in range(N_REQUESTS)
        ]
        await asyncio.sleep(0.05)
        # CPU time, and the best of some: other processes share this machine
        assert min(cost(router) for _ in range(5)) <= MOST_CPU_S
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)

    play(script, WORKERS)
