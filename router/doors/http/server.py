"""An ASGI application on a port, on the event loop that is there: uvicorn without its signals."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.routing import BaseRoute, Mount, Route

from twolane.router.config import HttpConfig
from twolane.router.doors.http.connection import Connection
from twolane.router.doors.http.connection_budget import ConnectionBudget
from twolane.security.gate import Gate

# Accepted connections inherit these from the listener. A client whose machine is gone shows after
# 10 + 3 seconds, as at the gRPC door. Events go out at once: asyncio turns Nagle's algorithm off
# only for sockets that name TCP as their protocol, which create_server's do not, and with it a
# first event waits 40 ms for the client's delayed acknowledgement of the head. What a client does
# not read waits in the system's memory up to SO_SNDBUF (twice that, as Linux counts), not the usual
# 4 MiB, and then here, where it is counted (`twolane.router.requests.readers`).
_OPTIONS = (
    (socket.IPPROTO_TCP, "TCP_NODELAY", 1),
    (socket.SOL_SOCKET, "SO_SNDBUF", 131_072),
    (socket.SOL_SOCKET, "SO_KEEPALIVE", 1),
    (socket.IPPROTO_TCP, "TCP_KEEPIDLE", 10),
    (socket.IPPROTO_TCP, "TCP_KEEPINTVL", 1),
    (socket.IPPROTO_TCP, "TCP_KEEPCNT", 3),
    (socket.IPPROTO_TCP, "TCP_USER_TIMEOUT", 13_000),
)
_LAST_WORDS_S = 1.0
# asyncio takes as many connections as this in one turn of its loop, and goes on so when there is no
# descriptor left, with a log record for each; the system's queue is longer.
_ACCEPTS_AT_ONCE = 64
_BACKLOG = 1024


class HttpServer:
    """`open` once, then `stop` once."""

    def __init__(
        self,
        app: Starlette,
        config: HttpConfig,
        gate: Gate,
        *,
        max_bytes: int,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """`max_bytes`: of one body. Without `tls` it is plain HTTP."""
        self._app = app
        self._config = config
        self._gate = gate
        self._tls = tls
        self._max_bytes = max_bytes
        self._room = ConnectionBudget(config)

    @property
    def refused(self) -> Counter[str]:
        """Requests and connections that got no further than their connection, by reason."""
        return self._room.refused

    def open(self, host: str, port: int, *, shares_port: bool = False) -> int:
        """Serve from now on, in a task. Returns the port, which the system chooses if `port` is 0.
        Raises OSError. With `shares_port`, other processes may listen there, too."""
        listener = _listen(host, port, shares_port)
        port = listener.getsockname()[1]
        self._server = _Server(
            uvicorn.Config(
                self._app,
                http=self._protocol(),
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                backlog=_ACCEPTS_AT_ONCE,
            ),
            self._tls,
        )
        self._serving = asyncio.create_task(self._server.serve([listener]), name="http-door")
        return port

    def _protocol(self) -> Any:
        """What uvicorn takes for a class."""
        return partial(
            Connection,
            door=self._config,
            gate=self._gate,
            room=self._room,
            post_paths=frozenset(_post_paths(self._app.routes)),
            max_bytes=self._max_bytes,
        )

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
    def __init__(self, config: uvicorn.Config, tls: ssl.SSLContext | None) -> None:
        super().__init__(config)
        self._tls = tls

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are the process's business."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self.config.ssl = self._tls  # what it would make of paths is not read again
        await super().startup(sockets)
        for listener in sockets or []:
            listener.listen(_BACKLOG)

    def drop(self) -> None:
        """Whatever still runs ends here."""
        self.force_exit = True
        for connection in list(self.server_state.connections):
            if connection.transport is not None:
                connection.transport.abort()


def _listen(host: str, port: int, shares_port: bool) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.create_server(
        (host, port), family=family, backlog=_BACKLOG, reuse_port=shares_port
    )
    listener.setblocking(False)
    for level, option, value in _OPTIONS:
        if hasattr(socket, option):
            listener.setsockopt(level, getattr(socket, option), value)
    return listener


def _post_paths(routes: Iterable[BaseRoute], prefix: str = "") -> Iterator[str]:
    """The paths that take a body."""
    for route in routes:
        if isinstance(route, Mount):
            yield from _post_paths(route.routes, prefix + route.path)
        elif isinstance(route, Route) and "POST" in (route.methods or ()):
            yield prefix + route.path
