"""A client of the HTTP door that reads nothing does not hold its place for ever."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from tests.router.http.asking import PATH, http_cluster
from tests.router.http.raw import request
from tests.until import until
from twolane.router.config import HttpConfig, ReadersConfig, RouterConfig, ServerConfig
from twolane.router.doors.server import RouterServer

SOON = RouterConfig(readers=ReadersConfig(unread_bytes=3_000, pause_s=0.1, unread_s=0.3))
JSON = "Content-Type: application/json\r\n"


def door(unread_s: float = 0.5, **bounds: Any) -> ServerConfig:
    http = HttpConfig(unread_s=unread_s, **bounds)
    return ServerConfig(stop_grace_s=0.2, metrics_port=None, http=http)


def n_open(server: RouterServer) -> int:
    assert server._http is not None
    return len(server._http._server.server_state.connections)


def ask(
    port: int, fields: dict[str, Any], headers: str = "", version: str = "HTTP/1.1"
) -> socket.socket:
    """A client that asks and reads nothing."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    client.connect(("127.0.0.1", port))
    client.sendall(request(fields, headers=JSON + headers, version=version))
    return client


@pytest.mark.parametrize("version", ["HTTP/1.1", "HTTP/1.0"])
async def test_streams_that_nobody_reads_leave_their_places(version: str) -> None:
    """A 503 to everybody else, until they hang up: the router has ended both answers long ago."""
    fields = {"prompt": [1], "max_tokens": 1900, "stream": True, "logprobs": 5}
    fields |= {"return_token_ids": True, "stream_options": {"continuous_usage_stats": True}}
    async with http_cluster(config=SOON, server_config=door(requests=2), step_s=0.001) as its:
        client, server, _ = its
        held = [ask(server.http_port, fields, version=version) for _ in range(2)]
        await until(lambda: server.router.status().counters["cancelled"] == 2)
        assert not server.router.status().requests_by_state
        await until(lambda: n_open(server) <= 1, "both are closed", within_s=10.0)  # not the client
        answer = await client.post(PATH, json={"prompt": [1], "max_tokens": 2})
        for each in held:
            each.close()
        assert answer.status_code == 200, answer.text


@pytest.mark.parametrize(
    ("headers", "version"),
    [("Connection: close\r\n", "HTTP/1.1"), ("", "HTTP/1.0")],
    ids=["close", "http-1.0"],
)
async def test_whole_answers_that_nobody_reads_are_closed(headers: str, version: str) -> None:
    """Both connections count as being answered, and give way to nobody."""
    fields = {"prompt": [[1]] * 6, "max_tokens": 900, "logprobs": 20}
    place = door(keep_alive_s=0.5, connections=2, head_timeout_s=0.5)
    async with http_cluster(server_config=place, step_s=0.001) as (_, server, _):
        held = [ask(server.http_port, fields, headers, version) for _ in range(2)]
        await until(lambda: server.router.status().counters["finished"] == 12)
        try:
            await until(lambda: n_open(server) == 0, "both are closed", within_s=10.0)
        finally:
            for each in held:
                each.close()
