"""Waits until nothing of any request is left in a router and its workers."""

from __future__ import annotations

import asyncio

from tests.own_time import own_time
from twolane.router.doors.server import RouterServer
from twolane.router.testing.cluster import ScriptedCluster


async def until_free(server: RouterServer, cluster: ScriptedCluster, within_s: float = 5.0) -> None:
    """`within_s` is of their own time (`tests.own_time`): far less than a long answer takes. Raises
    AssertionError."""
    with own_time() as took:
        while (left := server.router.status().requests) or any(
            worker.rows for worker in cluster.workers.values()
        ):
            assert took.s() < within_s, left
            await asyncio.sleep(0.01)
