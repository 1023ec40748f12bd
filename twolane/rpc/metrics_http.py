"""GET anything, get the metrics: an HTTP endpoint on the event loop, with no thread of its own.

endpoint = MetricsEndpoint(partial(generate_latest, registry))
port = await endpoint.start("127.0.0.1", 0)
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

PROMETHEUS_TEXT = "text/plain; version=0.0.4; charset=utf-8"

_READ_S = 5.0


class MetricsEndpoint:
    """Serves what `render` returns, in Prometheus' text format. It is called on the event loop, so
    gauges need no locks."""

    def __init__(self, render: Callable[[], bytes]) -> None:
        self._render = render
        self._server: asyncio.Server | None = None

    async def start(self, host: str, port: int) -> int:
        """Returns the port, which the system chose if `port` is 0. Raises OSError."""
        self._server = await asyncio.start_server(self._serve, host, port)
        bound: int = self._server.sockets[0].getsockname()[1]
        return bound

    async def close(self) -> None:
        """May be called twice."""
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_READ_S):
                await reader.readuntil(b"\r\n\r\n")
                body = self._render()
                head = (
                    f"HTTP/1.1 200 OK\r\nContent-Type: {PROMETHEUS_TEXT}\r\n"
                    f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
                )
                writer.write(head.encode() + body)
                await writer.drain()
        except (TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, OSError):
            return  # a scraper that hangs up, or speaks no HTTP, gets nothing
        finally:
            writer.close()
