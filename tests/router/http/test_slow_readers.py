"""A client that reads slowly gets its answer whole, over plain HTTP and with TLS; one that does not
read loses its connection."""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from tests.pki import Pki
from twolane.router.config import HttpConfig
from twolane.router.doors.http.caller import HttpGates
from twolane.router.doors.http.server import HttpServer
from twolane.security.gate import Gate
from twolane.security.identity import ANONYMOUS
from twolane.security.tls import server_context

N_BYTES, AT_ONCE = 2 << 20, 64 << 10


async def whole(request: Request) -> Response:
    return Response(b"y" * N_BYTES)


async def streamed(request: Request) -> Response:
    async def parts() -> AsyncIterator[bytes]:
        for _ in range(N_BYTES // AT_ONCE):
            yield b"y" * AT_ONCE

    return StreamingResponse(parts())


@asynccontextmanager
async def door(tls: ssl.SSLContext | None) -> AsyncIterator[int]:
    app = Starlette(routes=[Route("/v1/whole", whole), Route("/v1/streamed", streamed)])
    config = HttpConfig(keep_alive_s=0.5, unread_s=0.5)
    gates = HttpGates(Gate("clients", is_private=True, anonymous=ANONYMOUS))
    server = HttpServer(app, config, gates, max_bytes=1000, tls=tls)
    yield server.open("127.0.0.1", 0)
    await server.stop(0.2, lambda: None)


def ask(
    port: int, path: str, *, with_tls: bool, and_close: bool, version: str = "1.1"
) -> socket.socket:
    client = socket.create_connection(("127.0.0.1", port), timeout=10)
    if with_tls:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        client = context.wrap_socket(client)
    last = "Connection: close\r\n" * and_close
    client.sendall(f"GET {path} HTTP/{version}\r\nHost: localhost\r\n{last}\r\n".encode())
    return client


def n_read(client: socket.socket, pause_s: float) -> int:
    """Bytes of the body that arrive, with a pause after each 64 KiB, until all have or no more
    come."""
    got, paused_at = bytearray(), 0
    while got.count(b"y") < N_BYTES:
        try:
            data = client.recv(AT_ONCE)
        except ConnectionError:
            break
        if not data:
            break
        got += data
        if len(got) - paused_at >= AT_ONCE:
            paused_at = len(got)
            time.sleep(pause_s)
    return got.count(b"y")


@pytest.mark.parametrize("with_tls", [False, True], ids=["plain", "tls"])
@pytest.mark.parametrize(
    ("path", "and_close", "version"),
    [
        ("/v1/whole", False, "1.1"),
        ("/v1/whole", True, "1.1"),
        ("/v1/streamed", False, "1.1"),
        ("/v1/streamed", False, "1.0"),
    ],
)
async def test_an_answer_that_is_read_slowly_arrives_whole(
    path: str, *, with_tls: bool, and_close: bool, version: str, tmp_path: Path
) -> None:
    """Reading takes several times as long as a connection may be idle, or unread."""
    tls = None
    if with_tls:
        files = Pki(tmp_path / "pki").files("router/router-0")
        tls = server_context(files, certificate=ssl.CERT_OPTIONAL)
    async with door(tls) as port:
        client = await asyncio.to_thread(
            ask, port, path, with_tls=with_tls, and_close=and_close, version=version
        )
        with client:
            assert await asyncio.to_thread(n_read, client, 0.06) == N_BYTES


@pytest.mark.parametrize("with_tls", [False, True], ids=["plain", "tls"])
@pytest.mark.parametrize("path", ["/v1/whole", "/v1/streamed"])
async def test_a_client_that_stops_to_read_loses_its_connection(
    path: str, *, with_tls: bool, tmp_path: Path
) -> None:
    tls = None
    if with_tls:
        files = Pki(tmp_path / "pki").files("router/router-0")
        tls = server_context(files, certificate=ssl.CERT_OPTIONAL)
    async with door(tls) as port:
        client = await asyncio.to_thread(ask, port, path, with_tls=with_tls, and_close=False)
        with client:
            await asyncio.sleep(3.0)
            assert await asyncio.to_thread(n_read, client, 0.0) < N_BYTES
