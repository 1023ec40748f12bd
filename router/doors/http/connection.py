"""One connection of the HTTP door: uvicorn's, with bounds on everything before the answer.

    IDLE ──first byte──> HEAD ──> BODY ──> ANSWERED ──> IDLE ──> closed
      │                   │        │
      └─ too long ────────┴────────┴──> ENDING: refused, further input is discarded

The application is started when a request is complete, so an incomplete one costs only a few bytes.
Only one request at a time is parsed; further input waits unparsed in a small buffer, then unread in
the socket.
"""

from __future__ import annotations

import asyncio
import enum
from typing import Any

import httptools
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from twolane.router.config import HttpConfig
from twolane.router.doors.http.caller import HttpGates, refusal_of_caller
from twolane.router.doors.http.chunk_writer import EXTENSION, ChunkWriter, without_chunks
from twolane.router.doors.http.connection_budget import ConnectionBudget
from twolane.router.doors.http.errors import refusal_answer
from twolane.router.doors.http.head import (
    Body,
    Refusal,
    announced_body,
    refusal_of_body,
    refusal_of_head,
    too_large,
)
from twolane.router.doors.http.lingering import Lingering
from twolane.router.doors.http.reader_watch import ReaderWatch
from twolane.rpc.peer import peer_of

_END = b"\r\n\r\n"  # the end of a head, and of a chunked body
_HELD_BYTES = 65_536  # buffered input after the running request
_LINGER_S = 2.0  # for a client to read the refusal before the connection closes
_LINGER_BYTES = 8 << 20


class Phase(enum.Enum):
    """The phase of a connection; see the module's docstring."""

    IDLE = enum.auto()
    HEAD = enum.auto()
    BODY = enum.auto()
    ANSWERED = enum.auto()
    ENDING = enum.auto()


class Connection(HttpToolsProtocol):
    """A `BudgetedConnection` of `room`. `post_paths` accept a body of up to `max_bytes`."""

    def __init__(
        self,
        *,
        door: HttpConfig,
        gates: HttpGates,
        room: ConnectionBudget,
        post_paths: frozenset[str],
        max_bytes: int,
        config: uvicorn.Config,
        server_state: Any,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self.peer = ""
        self._door = door
        self._gates = gates
        self._room = room
        self._post_paths = post_paths
        self._max_bytes = max_bytes
        self._phase = Phase.IDLE
        self._has_entered = False
        self._has_asked = False  # whether it has ever sent a request
        self._due = 0.0  # the time limit of the phase
        self._timer: asyncio.TimerHandle | None = None
        self._tail = b""  # the last bytes parsed, because the end mark may be split
        self._held = b""
        self._head_bytes = 0
        self._silent_bytes = 0  # of a body's chunk framing without content
        self._body = Body()
        self._n_body = 0
        self._n_discarded = 0
        self._refusal: Refusal | None = None
        self._is_upgrade = False

    # The connection

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.peer = peer_of(self.client[0] if self.client else "")
        self._chunks = ChunkWriter(transport)
        self._reader = ReaderWatch(transport, self._door.unread_s, self._end_unread)
        self._has_entered = self._room.try_enter(self)
        if not self._has_entered:
            transport.abort()
            return
        self._wait_at_most(self._door.head_timeout_s)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.cycle = None  # type: ignore[assignment]  # it refers to us, and has the body
        self._chunks.is_paused = False  # as the server's own flow control
        if self._has_entered:
            self._room.leave(self)
        if self._timer is not None:
            self._timer.cancel()
        self._reader.stop()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._chunks.pause()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._chunks.resume()

    def shutdown(self) -> None:
        """The server is stopping: complete requests are answered, others are dropped."""
        if self._phase is Phase.ANSWERED:
            super().shutdown()
        else:
            self.transport.abort()

    @property
    def is_to_ask(self) -> bool:
        """Whether its client has connected and not asked yet, or a request is not complete."""
        return not self._has_asked or self._phase in (Phase.HEAD, Phase.BODY)

    def give_way(self) -> None:
        """See `BudgetedConnection`."""
        self._room.stop_waiting(self)
        if self._phase in (Phase.HEAD, Phase.BODY):
            text = "too many requests are arriving at once; this one had waited longest"
            self._write(Refusal(503, text, self._door.retry_after_s))
        else:
            self._room.count_refusal(503)
        is_silent = self._phase is Phase.ENDING  # its client was told, or does not read
        self._phase = Phase.ENDING
        if is_silent:
            self.transport.abort()
        else:
            self.transport.close()

    # Time

    def _wait_at_most(self, seconds: float) -> None:
        """Limit the time in this phase. There is one timer, which is reset only if it would fire
        too late."""
        self._due = self.loop.time() + seconds
        if self._timer is not None and self._timer.when() > self._due:
            self._timer.cancel()
            self._timer = None
        if self._timer is None:
            self._timer = self.loop.call_at(self._due, self._on_time)

    def _on_time(self) -> None:
        self._timer = None
        if self._phase is Phase.ANSWERED or self.transport.is_closing():
            return
        if self.loop.time() < self._due:
            self._timer = self.loop.call_at(self._due, self._on_time)
        elif self._phase is Phase.HEAD:
            within_s = self._door.head_timeout_s
            self._refuse(Refusal(408, f"the head has not arrived within {within_s:g} s"))
        elif self._phase is Phase.BODY:
            within_s = self._door.body_timeout_s
            text = f"the body has not arrived within {within_s:g} s; {self._n_body} bytes have"
            self._refuse(Refusal(408, text))
        elif self._phase is Phase.IDLE and not self._has_asked:
            within_s = self._door.head_timeout_s
            self._refuse(Refusal(408, f"no request has arrived within {within_s:g} s"))
        elif self._phase is Phase.IDLE and self._reader.has_unread:
            self._wait_at_most(self._door.keep_alive_s)  # it reads its answer, or `_reader` ends it
        else:
            self.transport.abort()

    def _end_unread(self) -> None:
        self._room.count_refusal(408)
        self.transport.abort()

    # Input

    def data_received(self, data: bytes) -> None:
        if self._phase is Phase.ENDING:
            self._discard(len(data))
        elif self._phase is Phase.ANSWERED:
            self._hold(data)
        else:
            self._parse(data)

    def _hold(self, data: bytes) -> None:
        """Buffer input until the running request is answered. Small amounts are still read, because
        only reading detects a disconnect."""
        self._held += data
        if len(self._held) > _HELD_BYTES:
            self.flow.pause_reading()

    def _discard(self, n_bytes: int) -> None:
        self._n_discarded += n_bytes
        if self._n_discarded > _LINGER_BYTES:
            self.transport.abort()

    def _parse(self, data: bytes) -> None:
        """Parse input up to the end of one request."""
        while data and self._refusal is None and self._phase is not Phase.ENDING:
            if self._phase is Phase.ANSWERED:
                self._hold(data)
                return
            if self._phase is Phase.IDLE:
                self._phase = Phase.HEAD
                self._head_bytes = 0
                self._wait_at_most(self._door.head_timeout_s)
            piece = data[: self._n_next(data)]
            data = data[len(piece) :]
            self._feed(piece)
        if self._refusal is not None:
            refusal, self._refusal = self._refusal, None
            self._refuse(refusal)

    def _n_next(self, data: bytes) -> int:
        """The number of bytes that may be parsed without passing the end of this head or body."""
        if self._phase is Phase.BODY and self._body.n_bytes is not None:
            return self._body.n_bytes - self._n_body
        at = (self._tail + data).find(_END)
        n_next = len(data) if at < 0 else at + len(_END) - len(self._tail)
        self._tail = b"" if at >= 0 else (self._tail + data[-3:])[-3:]
        return n_next

    def _feed(self, piece: bytes) -> None:
        phase, n_body = self._phase, self._n_body
        if phase is Phase.BODY and self._is_upgrade:  # the parser considers the request complete
            self.on_body(piece)
            if self._n_body == self._body.n_bytes:
                self._complete()
            return
        try:
            self.parser.feed_data(piece)
        except httptools.HttpParserUpgrade:
            pass  # the upgrade is ignored, which HTTP allows
        except httptools.HttpParserError as error:
            self._refusal = self._refusal or Refusal(400, f"this is not an HTTP request: {error}")
            return
        if phase is Phase.HEAD and self._phase is Phase.HEAD:
            self._head_bytes += len(piece)
            self._check_head_bytes(self._head_bytes)
        elif phase is Phase.BODY and self._n_body == n_body:
            self._silent_bytes += len(piece)
            self._check_head_bytes(self._silent_bytes)

    def _check_head_bytes(self, n_bytes: int) -> None:
        bound = self._door.head_bytes
        if n_bytes > bound and self._refusal is None:
            self._refusal = Refusal(431, f"the head has more than {bound} bytes")

    # The parser's callbacks

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["extensions"] = {EXTENSION: self._chunks}  # type: ignore[dict-item]
        self._has_asked = True
        self._n_body = self._silent_bytes = 0
        self._is_upgrade = False

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._phase is Phase.HEAD:  # else it is a trailer after a chunked body, which is ignored
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        n_bytes = len(self.url) + sum(len(name) + len(value) for name, value in self.headers)
        self._check_head_bytes(n_bytes)
        version = self.parser.get_http_version()
        self._refusal = self._refusal or refusal_of_head(version, self.headers)
        if self._refusal is not None:
            return
        self._body = announced_body(self.headers)
        self._is_upgrade = self.parser.should_upgrade()
        super().on_headers_complete()  # creates the cycle; see `_start_asgi_task`
        self._chunks.is_plain = version == "1.0"
        self._refusal = refusal_of_caller(self._gates, self.scope, self.headers, self.transport)
        if self._refusal is not None:
            return
        takes_body = self.scope["method"] == "POST" and self.scope["path"] in self._post_paths
        if takes_body:
            self._refusal = refusal_of_body(self.headers, self._body, self._max_bytes)
        if self._refusal is not None:
            return
        if self._is_upgrade:
            self.cycle.keep_alive = False
            if self._body.n_bytes is None:
                self._refusal = Refusal(400, "an upgrade with a chunked body is not accepted")
        if not takes_body and not self._body.is_empty:
            self._answer_unread()
            return
        may_wait = self.expect_100_continue and version != "1.0"
        if may_wait and not self._body.is_empty:
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        self.cycle.waiting_for_100_continue = False
        self._phase = Phase.BODY
        if not self._body.is_empty:
            self._wait_at_most(self._door.body_timeout_s)

    def on_body(self, body: bytes) -> None:
        if self._phase is not Phase.BODY:
            return
        self._n_body += len(body)
        if self._n_body > self._max_bytes:
            self._refusal = self._refusal or too_large(self._n_body, self._max_bytes)
            return
        self.cycle.body += body
        if self._n_body != self._body.n_bytes:
            self._room.hold(self, len(body))

    def on_message_complete(self) -> None:
        if self._phase is Phase.BODY and not (self._is_upgrade and not self._body.is_empty):
            self._complete()

    # Answers

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        """Store the cycle: uvicorn would start it at the head, but it is started when the request
        is complete."""

    def _complete(self) -> None:
        if self._refusal is None:
            self.cycle.more_body = False
            self.cycle.message_event.set()
            self._answer()

    def _answer(self) -> None:
        self._phase = Phase.ANSWERED
        self._room.stop_waiting(self)
        self._reader.begin()
        app: Any = without_chunks(self.app, self.cycle) if self._chunks.is_plain else self.app
        super()._start_asgi_task(self.cycle, app)

    def _answer_unread(self) -> None:
        """Let the application answer a request whose path accepts no body, without reading the
        body."""
        self.cycle.keep_alive = self.cycle.more_body = False
        self.cycle.waiting_for_100_continue = False
        self.cycle.transport = Lingering(self.transport, self.linger)  # type: ignore[assignment]
        self._answer()

    def on_response_complete(self) -> None:
        self.server_state.total_requests += 1
        self._reader.end()
        if self.transport.is_closing() or self._phase is Phase.ENDING:
            return
        self._phase = Phase.IDLE
        self._room.wait(self)
        self._wait_at_most(self._door.keep_alive_s)
        self.flow.resume_reading()
        if self._held:
            held, self._held = self._held, b""
            self.loop.call_soon(self._parse_held, held)

    def _parse_held(self, held: bytes) -> None:
        if not self.transport.is_closing():
            self.data_received(held)

    def _refuse(self, refusal: Refusal) -> None:
        if not self.transport.is_closing():
            self._write(refusal)
            self.linger()

    def linger(self) -> None:
        """Stop writing, and let the client read the answer: closing at once would reset the
        connection."""
        if self.transport.is_closing() or self._phase is Phase.ENDING:
            return
        self._phase = Phase.ENDING
        self._room.wait(self)
        self._wait_at_most(_LINGER_S)
        self.flow.resume_reading()
        if self.transport.can_write_eof():
            self.transport.write_eof()
        else:  # TLS sends its close_notify, and reads until the client's
            self.transport.close()

    def _write(self, refusal: Refusal) -> None:
        self._room.count_refusal(refusal.status)
        if self.cycle is not None:
            self.cycle.body.clear()
        self.transport.write(refusal_answer(refusal, self.headers or ()))
