"""Clients of the HTTP door that behave as no library would."""

from __future__ import annotations

import asyncio
import json
import socket
from typing import Any

from tests.router.http.asking import PATH
from twolane.router.doors.server import RouterServer


class Raw:
    """One connection, byte by byte."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def head(self) -> tuple[int, dict[str, str]]:
        """Status and headers of the next answer."""
        async with asyncio.timeout(30.0):
            head = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        first, *lines = head.strip().split("\r\n")
        named = dict(line.split(": ", 1) for line in lines)
        return int(first.split()[1]), {name.lower(): value for name, value in named.items()}

    async def answer(self) -> tuple[int, Any]:
        """Status and JSON of the next answer, which is not a stream."""
        status, headers = await self.head()
        async with asyncio.timeout(30.0):
            raw = await self.reader.readexactly(int(headers["content-length"]))
        return status, json.loads(raw) if raw else None

    async def is_closed(self) -> bool:
        """Whether the other side hangs up now, or has."""
        try:
            async with asyncio.timeout(30.0):
                return await self.reader.read() == b""
        except ConnectionError:
            return True

    def close(self) -> None:
        self.writer.transport.abort()


async def connect(server: RouterServer, first: bytes = b"") -> Raw:
    """`first` is sent before the server has seen the connection: no stall comes in between."""
    sock = socket.create_connection(("127.0.0.1", server.http_port))
    sock.sendall(first)
    return Raw(*await asyncio.open_connection(sock=sock, limit=1 << 24))


def request(
    fields: Any,
    *,
    path: str = PATH,
    method: str = "POST",
    headers: str = "Content-Type: application/json\r\n",
    version: str = "HTTP/1.1",
) -> bytes:
    """A whole one; `fields` is encoded unless it is bytes."""
    body = fields if isinstance(fields, bytes) else json.dumps(fields).encode()
    head = f"{method} {path} {version}\r\nHost: localhost\r\n{headers}"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode("latin-1") + body
