"""Serves an ASGI application on the running event loop: uvicorn without its signal handlers."""

from __future__ import annotations

import asyncio
import select
import socket
import ssl
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.routing import BaseRoute, Mount, Route

from twolane.router.config import HttpConfig
from twolane.router.doors.http.caller import HttpGates
from twolane.router.doors.http.connection import Connection
from twolane.router.doors.http.connection_budget import ConnectionBudget

# Accepted connections inherit these from the listener. A client whose machine has vanished is
# detected after 10 + 3 seconds, as at the gRPC door; while it has something to acknowledge, after
# `unread_s` to twice that (TCP_USER_TIMEOUT would also end clients that read slowly). Nagle's
# algorithm is off: asyncio turns it off only for sockets that name TCP as their protocol, which
# create_server's do not, and with it a first event would wait 40 ms for the client's delayed
# acknowledgement of the head. Data that a client does not read waits in the kernel up to SO_SNDBUF
# (twice that, as Linux counts) instead of the usual 4 MiB, and then here, where it is counted
# (`twolane.router.requests.slow_readers`).
_OPTIONS = (
    (socket.IPPROTO_TCP, "TCP_NODELAY", 1),
    (socket.SOL_SOCKET, "SO_SNDBUF", 131_072),
    (socket.SOL_SOCKET, "SO_KEEPALIVE", 1),
    (socket.IPPROTO_TCP, "TCP_KEEPIDLE", 10),
    (socket.IPPROTO_TCP, "TCP_KEEPINTVL", 1),
    (socket.IPPROTO_TCP, "TCP_KEEPCNT", 3),
)
_LAST_WORDS_S = 1.0
_DATE_S = 1.0  # how often the header `date` is made anew
_TURNS = 10  # of the event loop: what was accepted last is a connection by then
_LATE_S, _LOOK_EVERY_S = 1.0, 0.01  # for requests on connections that have come just before a stop
# asyncio accepts up to this many connections in one iteration of its loop, and when there is no
# descriptor left, it still tries each, with a log record for each. The kernel's queue is longer.
_ACCEPTS_AT_ONCE = 64
_BACKLOG = 1024


class HttpServer:
    """An HTTP server. Call `open` once, then `stop` once."""

    def __init__(
        self,
        app: Starlette,
        config: HttpConfig,
        gates: HttpGates,
        *,
        max_bytes: int,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """`max_bytes` bounds a body. Without `tls` it serves plain HTTP."""
        self._app = app
        self._config = config
        self._gates = gates
        self._tls = tls
        self._max_bytes = max_bytes
        self._room = ConnectionBudget(config)

    @property
    def refused(self) -> Counter[str]:
        """Connections, and requests refused by their connection, by reason."""
        return self._room.refused

    def open(self, host: str, port: int, *, shares_port: bool = False) -> int:
        """Begin to serve, in a task. Returns the port, which the system chooses if `port` is 0.
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
            handshake_s=self._config.head_timeout_s,
        )
        self._serving = asyncio.create_task(self._server.serve([listener]), name="http-door")
        return port

    def _protocol(self) -> Any:
        """Makes a connection; uvicorn expects a protocol class."""
        return partial(
            Connection,
            door=self._config,
            gates=self._gates,
            room=self._room,
            post_paths=frozenset(_post_paths(self._app.routes)),
            max_bytes=self._max_bytes,
        )

    async def leave_port(self) -> None:
        """Accept no more connections, where other processes do, and wait until those that were
        accepted have been asked something: their clients know of no stop. At most `_LATE_S`."""
        loop = asyncio.get_running_loop()
        until = loop.time() + _LATE_S
        await self._server.close_listeners(until)
        for _ in range(_TURNS):
            await asyncio.sleep(0)
        while loop.time() < until and self._server.is_asked_yet():  # noqa: ASYNC110 - many, many ways
            await asyncio.sleep(_LOOK_EVERY_S)

    async def stop(self, grace_s: float, end_answers: Callable[[], None]) -> None:
        """Stop accepting, and give running answers the grace period. `end_answers` ends those left
        then; connections whose clients do not read that are closed by force."""
        self._server.leave()
        await asyncio.wait([self._serving], timeout=grace_s)
        if not self._serving.done():
            end_answers()
            await asyncio.wait([self._serving], timeout=_LAST_WORDS_S)
        self._server.drop()
        await self._serving


class _Server(uvicorn.Server):
    def __init__(
        self, config: uvicorn.Config, tls: ssl.SSLContext | None, *, handshake_s: float
    ) -> None:
        super().__init__(config)
        self._tls = tls
        self._handshake_s = handshake_s
        self._leaving = asyncio.Event()

    def leave(self) -> None:
        """Make `serve` end. May be called twice."""
        self.should_exit = True
        self._leaving.set()

    async def main_loop(self) -> None:
        """As uvicorn's, which wakes up ten times a second."""
        while not await self.on_tick(0):  # which makes the header `date`
            with suppress(TimeoutError):
                async with asyncio.timeout(_DATE_S):
                    await self._leaving.wait()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to the process."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """As uvicorn's, with our context instead of one that would never reread its files, and a
        bound for handshakes: a connection counts only after its own."""

        def make() -> asyncio.Protocol:
            return self.config.http_protocol_class(  # type: ignore[call-arg]
                config=self.config, server_state=self.server_state, app_state=self.lifespan.state
            )

        within_s = None if self._tls is None else self._handshake_s
        loop = asyncio.get_running_loop()
        self.servers = []
        for listener in sockets or []:
            self.servers.append(
                await loop.create_server(
                    make,
                    sock=listener,
                    ssl=self._tls,
                    backlog=self.config.backlog,
                    ssl_handshake_timeout=within_s,
                )
            )
            listener.listen(_BACKLOG)
        self.started = True

    async def close_listeners(self, until: float) -> None:
        """What the kernel has connected is accepted first: it would be reset. That ends at `until`,
        by the event loop's clock, as more may come all the time, and without a free descriptor
        nothing is accepted. May be called again, as uvicorn does."""
        loop = asyncio.get_running_loop()
        for server in self.servers:
            for listener in server.sockets:
                poll = select.poll()
                poll.register(listener, select.POLLIN)
                while loop.time() < until and poll.poll(0):  # noqa: ASYNC110 - the kernel sends no event
                    await asyncio.sleep(0)  # the event loop accepts
            server.close()

    def is_asked_yet(self) -> bool:
        """Whether a request is on its way, or the first one of a connection has not come."""
        connections = self.server_state.connections
        return any(isinstance(c, Connection) and c.is_to_ask for c in connections)

    def drop(self) -> None:
        """End everything that still runs."""
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
    """The paths that accept a body."""
    for route in routes:
        if isinstance(route, Mount):
            yield from _post_paths(route.routes, prefix + route.path)
        elif isinstance(route, Route) and "POST" in (route.methods or ()):
            yield prefix + route.path
