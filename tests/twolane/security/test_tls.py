"""A server's side of TLS."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.pki import FAR, Pki
from twolane.security.identity import Role
from twolane.security.tls import TlsFiles, client_context, server_context, server_name


@pytest.fixture
def pki(tmp_path: Path) -> Pki:
    return Pki(tmp_path / "pki")


@pytest.fixture
async def port(pki: Pki) -> AsyncIterator[int]:
    """Of a server that says one byte to whom it takes."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"x")
        await writer.drain()
        writer.close()

    context = server_context(
        pki.files("router/router-0"), certificate=ssl.CERT_OPTIONAL, listener="--host x"
    )
    server = await asyncio.start_server(serve, FAR, 0, ssl=context)
    async with server:
        bound: int = server.sockets[0].getsockname()[1]
        yield bound


async def ask(port: int, tls: TlsFiles | None) -> bytes:
    """What the server says; empty if it does not."""
    context = None if tls is None else client_context(tls)
    name = None if tls is None else server_name(Role.ROUTER)
    with contextlib.suppress(OSError):
        reader, writer = await asyncio.open_connection(FAR, port, ssl=context, server_hostname=name)
        with contextlib.closing(writer):
            if tls is None:
                writer.write(b"GET / HTTP/1.1\r\n\r\n")
            return await reader.read(1)
    return b""


async def test_the_log_says_why_handshakes_fail_and_is_not_flooded(
    pki: Pki, port: int, caplog: pytest.LogCaptureFixture
) -> None:
    assert await ask(port, pki.files("client/acme/alice")) == b"x"
    assert caplog.messages == []
    for _ in range(3):
        assert await ask(port, pki.expired("client/acme/alice")) == b""
        await ask(port, None)
    assert caplog.messages[:2] == [
        "--host x: 1 TLS handshakes failed: certificate has expired",
        "--host x: 1 TLS handshakes failed: http request",
    ]
    assert len(caplog.messages) < 6, "of each kind one in ten seconds"
