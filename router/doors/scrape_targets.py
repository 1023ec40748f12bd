"""Prometheus' HTTP service discovery: the metrics pages of the whole cluster, at one address.

scrape_configs:
  - job_name: twolane
    http_sd_configs: [{url: "http://ROUTER_HOST:METRICS_PORT/targets"}]
"""

from __future__ import annotations

import json
from collections.abc import Iterable

from twolane.rpc.listen import bare, join
from twolane.v1 import cluster_pb2, worker_pb2

TARGETS = "/targets"
_EVERYWHERE = frozenset({"0.0.0.0", "::"})
_NAMES = {worker_pb2.ROLE_PREFILL: "prefill", worker_pb2.ROLE_DECODE: "decode"}


def scrape_targets(status: cluster_pb2.GetClusterStatusResponse, asked_at: str) -> bytes:
    """The router and its workers, in http_sd's JSON. `asked_at` is the host (and port) that the
    scraper has used: it replaces the address of processes that listen on every address."""
    router = _group(status.metrics_endpoint, asked_at, {"router": status.router_id})
    workers = (
        _group(
            worker.metrics_endpoint,
            asked_at,
            {
                "worker": worker.worker.worker_id,
                "pool": worker.pool,
                "role": "+".join(_NAMES.get(role, str(role)) for role in worker.roles),
                "model": worker.model,
            },
        )
        for worker in status.workers
        if worker.state != "gone" and worker.metrics_endpoint
    )
    groups: Iterable[object] = (router, *workers)
    return json.dumps(list(groups)).encode()


def _group(endpoint: str, asked_at: str, labels: dict[str, str]) -> dict[str, object]:
    host, _, port = endpoint.rpartition(":")
    if bare(host) in _EVERYWHERE:
        asked_host = asked_at if asked_at.endswith("]") else asked_at.rpartition(":")[0] or asked_at
        endpoint = join(asked_host, int(port))
    return {"targets": [endpoint], "labels": labels}
