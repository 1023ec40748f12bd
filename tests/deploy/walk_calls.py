"""The calls of a walk: one method or one path, by one kind of caller."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Collection
from typing import Any

import grpc

from tests.deploy.walk_tables import all_methods
from tests.deploy.walked import Served
from twolane.security.identity import Role
from twolane.security.tls import TlsFiles, server_name


async def code_of(channel: grpc.aio.Channel, method: str, metadata: Any = ()) -> grpc.StatusCode:
    """What a call with a malformed message ends with. Whoever gets as far as the message is in."""

    call: Any = channel.unary_unary(f"/{method}")  # so it is sent with the call, whatever it is
    code: grpc.StatusCode
    code = await call(b"\xff\xff\xff", metadata=metadata, timeout=20.0).code()
    return code


async def outcomes(
    served: Served, open_channel: Any, *, metadata: Any = (), but: Collection[str] = ()
) -> dict[tuple[str, str], grpc.StatusCode]:
    found: dict[tuple[str, str], grpc.StatusCode] = {}
    for listener, (endpoint, role) in served.listeners.items():
        if listener in but:
            continue
        async with open_channel(endpoint, role) as channel:
            for method in all_methods():
                found[listener, method] = await code_of(channel, method, metadata)
    return found


def tls_channel(files: TlsFiles, *, shows: bool = True) -> Any:
    """Opens channels that trust `files.ca`, and show the certificate."""
    ca = files.ca.read_bytes()
    pair = (files.key.read_bytes(), files.cert.read_bytes()) if shows else (None, None)
    credentials = grpc.ssl_channel_credentials(ca, *pair)

    def opened(endpoint: str, role: Role) -> grpc.aio.Channel:
        name = ("grpc.ssl_target_name_override", server_name(role))
        return grpc.aio.secure_channel(endpoint, credentials, options=[name])

    return opened


def plain_channel(endpoint: str, role: Role) -> grpc.aio.Channel:
    return grpc.aio.insecure_channel(endpoint)


async def status_of(
    endpoint: str, path: str, context: ssl.SSLContext | None, role: Role = Role.ROUTER
) -> int:
    """Of a GET; 0 where the connection ends without an answer."""
    host, _, port = endpoint.rpartition(":")
    name = None if context is None else server_name(role)
    async with asyncio.timeout(20.0):
        try:
            reader, writer = await asyncio.open_connection(
                host, int(port), ssl=context, server_hostname=name
            )
            head = f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
            writer.write(head.encode())
            answer = await reader.read()
        except (ssl.SSLError, ConnectionError):
            return 0
        writer.transport.abort()
    return int(answer.split()[1]) if answer.startswith(b"HTTP/1.1 ") else 0


def context_of(files: TlsFiles, *, shows: bool = True) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(files.ca))
    if shows:
        context.load_cert_chain(files.cert, files.key)
    return context
