"""An ASGI application on a port, on the event loop that is there: uvicorn without its signals."""

from __future__ import annotations

import asyncio
import math
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import uvicorn
from starlette.types import ASGIApp

from router.config import HttpConfig

# Accepted connections inherit these from the listener. A client whose machine is gone shows after
# 10 + 3 seconds, as at the gRPC door. Events go out at once: asyncio turns Nagle's algorithm off
# only for sockets that name TCP as their protocol, which create_server's do not, and with it a
# first event waits 40 ms for the client's delayed acknowledgement of the head.
_OPTIONS = (
    (socket.IPPROTO_TCP, "TCP_NODELAY", 1),
    (socket.SOL_SOCKET, "SO_KEEPALIVE", 1),
    (socket.IPPROTO_TCP, "TCP_KEEPIDLE", 10),
    (socket.IPPROTO_TCP, "TCP_KEEPINTVL", 1),
    (socket.IPPROTO_TCP, "TCP_KEEPCNT", 3),
    (socket.IPPROTO_TCP, "TCP_USER_TIMEOUT", 13_000),
)
_LAST_WORDS_S = 1.0


class HttpServer:
    """`open` once, then `stop` once."""

    def __init__(self, app: ASGIApp, config: HttpConfig) -> None:
        self._app = app
        self._config = config

    def open(self, host: str) -> int:
        """Serve from now on, in a task. Returns the port. Raises OSError."""
        listener = _listen(host, self._config.port)
        port: int = listener.getsockname()[1]
        self._server = _Server(
            uvicorn.Config(
                self._app,
                http="httptools",
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                limit_concurrency=self._config.connections,
                timeout_keep_alive=math.ceil(self._config.keep_alive_s),
            )
        )
        self._serving = asyncio.create_task(self._server.serve([listener]), name="http-door")
        return port

    async def stop(self, grace_s: float, end_answers: Callable[[], None]) -> None:
        """Take no more; running answers get the grace; what is left then is ended by `end_answers`,
        and by force if its client does not even read that."""
        self._server.should_exit = True
        await asyncio.wait([self._serving], timeout=grace_s)
        if not self._serving.done():
            end_answers()
            await asyncio.wait([self._serving], timeout=_LAST_WORDS_S)
        self._server.drop()
        await self._serving


class _Server(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are the process's business."""
        yield

    def drop(self) -> None:
        """Whatever still runs ends here."""
        self.force_exit = True
        for connection in list(self.server_state.connections):
            if connection.transport is not None:
                connection.transport.abort()


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.create_server((host, port), family=family, backlog=1024)
    listener.setblocking(False)
    for level, option, value in _OPTIONS:
        if hasattr(socket, option):
            listener.setsockopt(level, getattr(socket, option), value)
    return listener
