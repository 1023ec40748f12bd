"""What the full HTTP door refuses is in the metrics, as what all other bounds refuse."""

from __future__ import annotations

from prometheus_client import generate_latest

from tests.router.http.asking import PATH, http_cluster
from tests.router.http.raw import connect, request
from twolane.router.config import HttpConfig, ServerConfig


async def test_requests_that_the_full_door_refuses_are_counted() -> None:
    place = ServerConfig(stop_grace_s=0.2, metrics_port=None, http=HttpConfig(requests=1))
    async with http_cluster(step_s=0.05, server_config=place) as (client, server, _):
        raw = await connect(server, request({"prompt": [1], "max_tokens": 1900, "stream": True}))
        await raw.head()
        refused = await client.post(PATH, json={"prompt": [1], "max_tokens": 2})
        raw.close()
        assert (refused.status_code, len(refused.headers["x-request-id"])) == (503, 16)
        shown = generate_latest(server.metrics.registry).decode()
        assert 'twolane_router_refused_total{reason="overloaded"} 1.0' in shown
