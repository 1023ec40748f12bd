"""What the tests of the HTTP door share: a cluster with a client, and events of a stream."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2

from twolane.router.config import RouterConfig, ServerConfig
from twolane.router.doors.server import RouterServer
from twolane.router.testing.cluster import ScriptedCluster
from twolane.router.testing.served import serve_cluster
from twolane.router.text.codec import TextCodec

PATH = "/v1/completions"
CHAT_PATH = "/v1/chat/completions"


@asynccontextmanager
async def http_cluster(
    *worker_ids: str,
    config: RouterConfig | None = None,
    server_config: ServerConfig | None = None,
    text: TextCodec | None = None,
    **knobs: Any,
) -> AsyncIterator[tuple[httpx2.AsyncClient, RouterServer, ScriptedCluster]]:
    """A router with scripted workers on loopback, and a client of its HTTP door."""
    async with (
        serve_cluster(
            *(worker_ids or ("p0", "d0")),
            config=config,
            server_config=server_config,
            text=text,
            **knobs,
        ) as (server, cluster),
        httpx2.AsyncClient(base_url=f"http://{server.http_address}", timeout=20.0) as client,
    ):
        yield client, server, cluster


async def events(client: httpx2.AsyncClient, **fields: Any) -> list[Any]:
    """The events of one stream of completions, decoded; `[DONE]` as it is."""
    return await events_of(client, PATH, fields)


async def chat_events(client: httpx2.AsyncClient, **fields: Any) -> list[Any]:
    return await events_of(client, CHAT_PATH, fields)


async def events_of(client: httpx2.AsyncClient, path: str, fields: dict[str, Any]) -> list[Any]:
    async with client.stream("POST", path, json={"stream": True, **fields}) as response:
        assert response.status_code == 200, await response.aread()
        assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
        return [decoded(line) async for line in response.aiter_lines() if line]


def decoded(line: str) -> Any:
    data = line.removeprefix("data: ")
    return data if data == "[DONE]" else json.loads(data)
