"""A client that reads many long answers at once, as a process that a test can stop or kill:
`python -m tests.faults.streaming_client grpc|http HOST:PORT COUNT`."""

from __future__ import annotations

import asyncio
import json
import sys

from twolane import AsyncClient

MAX_TOKENS = 4000


async def over_grpc(endpoint: str, count: int) -> None:
    async with AsyncClient(endpoint) as client:

        async def read() -> None:
            asked = client.stream("Once upon a time", max_tokens=MAX_TOKENS, ignore_eos=True)
            async for _ in asked:
                pass

        await asyncio.gather(*(read() for _ in range(count)))


async def over_http(endpoint: str, count: int) -> None:
    host, _, port = endpoint.rpartition(":")
    asked = {"prompt": "Once", "max_tokens": MAX_TOKENS, "stream": True, "ignore_eos": True}
    body = json.dumps(asked).encode()
    head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    head += f"Content-Length: {len(body)}\r\n\r\n"

    async def read() -> None:
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(head.encode() + body)
        while await reader.read(65_536):
            pass

    await asyncio.gather(*(read() for _ in range(count)))


if __name__ == "__main__":
    door, endpoint, count = sys.argv[1:]
    asyncio.run((over_grpc if door == "grpc" else over_http)(endpoint, int(count)))
