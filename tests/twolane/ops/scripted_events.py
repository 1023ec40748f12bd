"""What has happened in the scripted cluster."""

from __future__ import annotations

from twolane.v1 import cluster_pb2

NOW = 1_800_000_000.0  # 2027-01-15 08:00:00 UTC
EVENTS = [
    cluster_pb2.ClusterEvent(
        id="1799999400000-router-0-4",
        at=NOW - 600,
        source="router-0",
        kind="worker.alive",
        subject="decode-1",
        text="worker decode-1 (00000000000000a1) is alive: its session is open",
    ),
    cluster_pb2.ClusterEvent(
        id="1799999996000-router-0-9",
        at=NOW - 4,
        source="router-0",
        kind="worker.gone",
        subject="decode-1",
        text="worker decode-1 (00000000000000a1) is gone: its process is gone",
    ),
    cluster_pb2.ClusterEvent(
        id="1799999998000-router-1-3",
        at=NOW - 2,
        source="router-1",
        kind="act.drain",
        subject="decode-0",
        text="operator/anna: drain decode-0: alive > draining",
        audit=cluster_pb2.Audit(
            who="operator/anna",
            what="drain",
            before="alive",
            after="draining",
            reason="a new disk",
            request_id="77",
        ),
    ),
]
