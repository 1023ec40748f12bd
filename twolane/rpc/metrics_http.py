"""GET /metrics: an HTTP endpoint on the event loop, with no thread of its own.

endpoint = MetricsEndpoint(registry)
port = endpoint.bind("127.0.0.1", 0)
await endpoint.start()

The format is Prometheus' text, or OpenMetrics if the scraper asks for it. Other pages can be added
by path; all other paths are 404.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import time
from collections.abc import Callable, Mapping
from functools import partial
from http import HTTPStatus
from typing import Any

from prometheus_client import CollectorRegistry, disable_created_metrics
from prometheus_client.exposition import choose_encoder
from prometheus_client.openmetrics.exposition import ALLOWUTF8

from twolane.errors import PermissionDeniedError, UnauthenticatedError
from twolane.rpc.log_rate import LogRate

log = logging.getLogger(__name__)

METRICS = "/metrics"
Headers = Mapping[str, str]  # by lower-case name
Admit = Callable[[Mapping[str, Any] | None, Headers], object]  # the scraper's certificate
Page = Callable[[Headers], tuple[bytes, str]]  # body and content type

# At once; more are closed, so that scrapers cannot use up the file descriptors.
MOST_CONNECTIONS = 64
_READ_S = 5.0

disable_created_metrics()  # type: ignore[no-untyped-call]  # a second family beside each


class _RefusedError(Exception):
    def __init__(self, status: HTTPStatus) -> None:
        self.status = status


class MetricsEndpoint:
    """Pages are generated on the event loop at each request, so gauges need no locks."""

    def __init__(
        self,
        registry: CollectorRegistry,
        *,
        pages: Mapping[str, Page] | None = None,
        admit: Admit | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """`admit` raises `UnauthenticatedError` or `PermissionDeniedError` for a scraper that may
        not see the pages. Without `tls` it is plain HTTP."""
        self._registry = registry
        self._pages = {METRICS: self._metrics, **(pages or {})}
        self._admit = admit
        self._tls = tls
        self._listener: socket.socket | None = None
        self._server: asyncio.Server | None = None
        self._n_connections = 0
        self._log_rate = LogRate()

    def bind(self, host: str, port: int) -> int:
        """Bind the endpoint and return the port, which the system chooses if `port` is 0. Raises
        OSError."""
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        self._listener = socket.create_server(found[0][4][:2], family=found[0][0])
        bound: int = self._listener.getsockname()[1]
        return bound

    async def start(self) -> None:
        """Begin to serve at the bound port."""
        self._server = await asyncio.start_server(
            self._serve,
            sock=self._listener,
            ssl=self._tls,
            ssl_handshake_timeout=None if self._tls is None else _READ_S,
        )

    async def close(self) -> None:
        """Stop serving. May be called twice."""
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()
        elif self._listener is not None:
            self._listener.close()

    def _metrics(self, headers: Headers) -> tuple[bytes, str]:
        encode, content_type = choose_encoder(headers.get("accept", ""))
        if isinstance(encode, partial):
            # The library's default replaces the colon in vllm:…; none of our names needs escapes.
            encode = partial(encode, escaping=ALLOWUTF8)
        return encode(self._registry), content_type.partition("; escaping")[0]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._n_connections += 1
        try:
            if self._n_connections > MOST_CONNECTIONS:
                if n := self._log_rate.take("connection", time.monotonic()):
                    text = "metrics: closed %d connections, because %d were open already"
                    log.warning(text, n, MOST_CONNECTIONS)
                return
            async with asyncio.timeout(_READ_S):
                head = await reader.readuntil(b"\r\n\r\n")
                certificate = writer.get_extra_info("peercert")
                writer.transport.set_write_buffer_limits(high=0)  # `drain` waits for all of it
                writer.write(self._answer(head.decode("latin-1"), certificate))
                await writer.drain()
        except (TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, OSError):
            writer.transport.abort()  # no response to a client that disconnects or sends no HTTP
        finally:
            self._n_connections -= 1
            writer.close()

    def _answer(self, head: str, certificate: Mapping[str, Any] | None) -> bytes:
        status, content_type, body = HTTPStatus.OK, "text/plain; charset=utf-8", b""
        method, _, target = head.partition("\r\n")[0].partition(" ")
        headers = _headers(head)
        try:
            if self._admit is not None:
                self._admit(certificate, headers)
            body, content_type = self._page(method, target)(headers)
        except (UnauthenticatedError, PermissionDeniedError) as error:
            is_known = isinstance(error, PermissionDeniedError)
            status = HTTPStatus.FORBIDDEN if is_known else HTTPStatus.UNAUTHORIZED
            body = f"{error.message}\n".encode()
        except _RefusedError as refused:
            status = refused.status
            body = f"{status.phrase}; the pages are {', '.join(self._pages)}\n".encode()
        except Exception:  # a bug, of ours or of the library's, fails only this page
            if n := self._log_rate.take("page", time.monotonic()):
                log.exception("metrics: %d pages could not be made; the last:", n)
            status, body = HTTPStatus.INTERNAL_SERVER_ERROR, b"a bug in twolane; see the log\n"
        sent = b"" if method == "HEAD" else body
        return (
            f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: {content_type}\r\n"
            f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        ).encode() + sent

    def _page(self, method: str, target: str) -> Page:
        path = target.partition(" ")[0].partition("?")[0]
        if path not in self._pages:
            raise _RefusedError(HTTPStatus.NOT_FOUND)
        if method not in ("GET", "HEAD"):
            raise _RefusedError(HTTPStatus.METHOD_NOT_ALLOWED)
        return self._pages[path]


def _headers(head: str) -> Headers:
    lines = (line.partition(":") for line in head.splitlines()[1:])
    return {name.strip().lower(): value.strip() for name, _, value in lines}
