"""What a broken or hostile client sends to a gRPC door, at any strength."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from typing import Any

import grpc

from tests import h2

Ends = tuple[asyncio.StreamReader, asyncio.StreamWriter]
CONTINUATION, PRIORITY = 9, 2
FIELDS = b"".join(h2.field(b"x-%04d" % n, b"v" * 100) for n in range(140))
FLOODS = {
    "SETTINGS": h2.frame(h2.SETTINGS) * 500,
    "PRIORITY": h2.frame(PRIORITY, stream=1, payload=bytes([0, 0, 0, 0, 1])) * 500,
    "PING": h2.frame(h2.PING, payload=b"12345678") * 500,
    "CONTINUATION": h2.frame(CONTINUATION, stream=1, payload=FIELDS),
}
BEGINS = {"CONTINUATION": h2.frame(h2.HEADERS, stream=1, payload=h2.field(b":method", b"POST"))}
METADATA: list[list[tuple[str, str | bytes]]] = [
    [(f"x-{n}", "v" * 50) for n in range(100)],
    [("x", "v" * 7_000)],
    [("x", "v" * 2_000_000)],
    [(f"x-{n}", "abcde") for n in range(10_000)],
    [("x-bin", bytes(range(256)) * 16)],
]
CHECK = "/grpc.health.v1.Health/Check"


async def opened(endpoint: str) -> Ends:
    host, _, port = endpoint.rpartition(":")
    return await asyncio.open_connection(host, int(port))


async def flood(endpoint: str, name: str, n_bytes: int, within_s: float = 6.0) -> None:
    """Until the door has had enough, or `n_bytes` are sent. Nothing of the door's is read."""
    block = FLOODS[name]
    _, writer = await opened(endpoint)
    writer.write(h2.hello() + BEGINS.get(name, b""))
    with suppress(OSError, TimeoutError):
        async with asyncio.timeout(within_s):
            for _ in range(max(1, n_bytes // len(block))):
                writer.write(block)
                await writer.drain()
    writer.transport.abort()


async def random_bytes(endpoint: str, n_connections: int, seed: int) -> None:
    """A third begin as noise, a third after the preface, a third as frames with noise in them."""
    rng = random.Random(seed)
    for number in range(n_connections):
        reader, writer = await opened(endpoint)
        noise = rng.randbytes(rng.randrange(1, 3000))
        if number % 3 == 1:
            noise = h2.PREFACE + noise
        elif number % 3 == 2:
            noise = h2.hello() + b"".join(
                h2.frame(rng.randrange(12), rng.randrange(256), rng.randrange(5), rng.randbytes(n))
                for n in range(20)
            )
        writer.write(noise)
        with suppress(OSError):
            await writer.drain()
            writer.write_eof()
            while await _read_some(reader):
                pass
        writer.transport.abort()


async def until_closed(reader: asyncio.StreamReader) -> None:
    """Read until the door has closed the connection."""
    with suppress(ConnectionError):
        while await reader.read(65_536):
            pass


async def _read_some(reader: asyncio.StreamReader) -> bytes:
    """Nothing where the door says nothing more for a moment."""
    with suppress(TimeoutError):
        async with asyncio.timeout(0.2):
            return await reader.read(65_536)
    return b""


async def metadata(endpoint: str) -> list[grpc.StatusCode]:
    """Codes of the calls with all of `METADATA`."""
    codes = []
    for fields in METADATA:
        async with grpc.aio.insecure_channel(endpoint) as channel:
            try:
                check: Any = channel.unary_unary(CHECK)
                await check(b"", timeout=5.0, metadata=fields)
                codes.append(grpc.StatusCode.OK)
            except grpc.aio.AioRpcError as error:
                codes.append(error.code())
    return codes
