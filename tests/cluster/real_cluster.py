"""What the tests of real clusters share: looking into workers, and waiting until all is idle."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import grpc

from tests.own_time import OwnTime, own_time
from twolane.deploy.bundled import model_path
from twolane.deploy.spec.secret import read_secret
from twolane.rpc.secret import shown
from twolane.status import ClusterStatus
from twolane.testing.local import LocalCluster
from twolane.v1 import worker_pb2, worker_pb2_grpc


def fake_model(folder: Path, **facts: Any) -> Path:
    """A copy of the bundled model in `folder` for the fake engine, with `facts` about its steps."""
    model = folder / "model"
    shutil.copytree(model_path(), model)
    known = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**known, **facts}))
    return model


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
    """Wait until so many workers, and all that are alive, are idle and whole. A worker that was
    killed may be alive to its router for a moment. `within_s` is of their own time
    (`tests.own_time`).

    Raises AssertionError saying what is left.
    """
    with own_time() as took:
        return await _settled(cluster, n_workers, within_s, took)


async def _settled(
    cluster: LocalCluster, n_workers: int, within_s: float, took: OwnTime
) -> ClusterStatus:
    while True:
        status = await asyncio.to_thread(cluster.status)
        workers = [w.endpoint for w in status.workers if w.state == "alive"]
        looks = await asyncio.gather(*map(inspect, workers), return_exceptions=True)
        left = left_over([look for look in looks if not isinstance(look, BaseException)])
        left += [f"no look: {look}" for look in looks if _is_unanswered(look)]
        if len(workers) < n_workers:
            left.append(f"{len(workers)} workers of {n_workers} are alive: {status.workers}")
        left += [f"the router still has {r.request_id} {r.state}" for r in status.requests]
        if not left:
            return status
        assert took.s() < within_s, left
        await asyncio.sleep(0.05)


def _is_unanswered(look: worker_pb2.InspectResponse | BaseException) -> bool:
    """Any other error is raised."""
    if not isinstance(look, BaseException):
        return False
    if isinstance(look, grpc.aio.AioRpcError) and look.code() is grpc.StatusCode.UNAVAILABLE:
        return True
    raise look


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
