"""What the tests of real clusters share: looking into workers, and waiting until all is idle."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path

import grpc

from twolane.deploy.spec.secret import read_secret
from twolane.rpc.secret import shown
from twolane.status import ClusterStatus
from twolane.testing.local import LocalCluster
from twolane.v1 import worker_pb2, worker_pb2_grpc


async def inspect(endpoint: str) -> worker_pb2.InspectResponse:
    """A look inside one worker."""
    secret = read_secret(Path(os.environ["TWOLANE_SECRET_FILE"]))  # see tests/conftest.py
    async with grpc.aio.insecure_channel(endpoint) as channel:
        stub = worker_pb2_grpc.WorkerServiceStub(channel)
        response: worker_pb2.InspectResponse = await stub.Inspect(
            worker_pb2.InspectRequest(), metadata=shown(secret)
        )
        return response


async def settled(cluster: LocalCluster, n_workers: int, within_s: float = 2.0) -> ClusterStatus:
    """Wait until so many workers, and all that are alive, are idle and whole.

    Raises AssertionError saying what is left.
    """
    deadline = asyncio.get_running_loop().time() + within_s
    while True:
        status = await asyncio.to_thread(cluster.status)
        workers = [w.endpoint for w in status.workers if w.state == "alive"]
        left = left_over(await asyncio.gather(*(inspect(endpoint) for endpoint in workers)))
        if len(workers) < n_workers:
            left.append(f"{len(workers)} workers of {n_workers} are alive: {status.workers}")
        left += [f"the router still has {r.request_id} {r.state}" for r in status.requests]
        if not left:
            return status
        assert asyncio.get_running_loop().time() < deadline, left
        await asyncio.sleep(0.05)


def left_over(looks: Sequence[worker_pb2.InspectResponse]) -> list[str]:
    """What those workers still hold of any request, and which audits fail."""
    left = []
    for look in looks:
        name, pages = look.worker.worker_id, look.load.pages
        if look.integrity_error:
            left.append(f"{name}: {look.integrity_error}")
        if pages.used or pages.pinned or pages.quarantined:
            left.append(
                f"{name}: {pages.used} used, {pages.pinned} pinned, {pages.quarantined} quarantined"
            )
        left += [f"{name}: row {row.key.submission_id} {row.state}" for row in look.rows]
    return left
