"""Every listener of a router, a worker, an agent and a launcher is one that `test_walk` walks."""

from __future__ import annotations

from pathlib import Path

import psutil

from tests.deploy.walk_calls import status_of
from tests.deploy.walked import cluster


def listening() -> set[str]:
    """Where this process listens: host:port, and the paths of sockets."""
    found = psutil.Process().net_connections("inet")
    inet = {f"{c.laddr.ip}:{c.laddr.port}" for c in found if c.status == psutil.CONN_LISTEN}
    return {each.removeprefix("::ffff:") for each in inet}


async def test_every_listener_that_there_is_has_its_place(tmp_path: Path) -> None:
    before = listening()
    async with cluster(tmp_path, "127.0.0.1", None) as served:
        known = {endpoint for endpoint, _ in served.listeners.values()}
        known |= {
            served.router.http_endpoint,
            served.router.metrics_endpoint,
            served.worker.metrics_endpoint,
        }
        (pages,) = listening() - before - known
        # where pages arrive: it hangs up on everybody who does not know both workers' epochs
        assert await status_of(pages, "/", None) == 0
