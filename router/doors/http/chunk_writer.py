"""Writes the chunks of an answer, whose head was sent, directly to its connection's transport.

An ASGI application finds the writer in its scope, as the extension `twolane.chunks`. The head and
the end of an answer go through ASGI's `send` as usual. The chunks between may be written here: the
bytes are the same as with uvicorn's `send`, without a coroutine and five wrappers for each token.

HTTP/1.0 has no chunks: there the body is sent as it is, and ends with its connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

EXTENSION = "twolane.chunks"


def _nothing() -> None:
    """The callback while no answer uses the writer."""


class ChunkWriter:
    """The writer of one connection, which tells it by `pause` and `resume` when the transport's
    buffer is full and when it has room again. It calls `on_pause` and `on_resume` then; do not
    write in between. `is_plain` is set for a request of HTTP/1.0."""

    __slots__ = ("_transport", "is_paused", "is_plain", "on_pause", "on_resume")

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self.is_paused = False
        self.is_plain = False
        self.release()

    def pause(self) -> None:
        self.is_paused = True
        self.on_pause()

    def resume(self) -> None:
        self.is_paused = False
        self.on_resume()

    def release(self) -> None:
        """End the use of the writer by an answer."""
        self.on_pause: Callable[[], None] = _nothing
        self.on_resume: Callable[[], None] = _nothing

    def write(self, data: bytes) -> None:
        """Write one chunk, which is not empty. Does nothing if the client has disconnected."""
        assert not self.is_paused
        if not self._transport.is_closing():
            self._transport.write(data if self.is_plain else b"%x\r\n%b\r\n" % (len(data), data))


def chunk_writer_of(scope: Scope) -> ChunkWriter:
    writer = scope["extensions"][EXTENSION]
    assert isinstance(writer, ChunkWriter)
    return writer


def without_chunks(app: ASGIApp, cycle: RequestResponseCycle) -> ASGIApp:
    """`app`, for the request of HTTP/1.0 that `cycle` answers: uvicorn would send a body without a
    Content-Length in chunks. It closes the connection behind the answer."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        is_bounded = True

        async def send_plain(message: Message) -> None:
            nonlocal is_bounded
            if message["type"] == "http.response.start":
                names = [name.lower() for name, _ in message.get("headers", ())]
                is_bounded = b"content-length" in names
                if not is_bounded:
                    cycle.chunked_encoding = False
            elif not is_bounded:  # uvicorn expects each to be as long as was announced
                cycle.expected_content_length = len(message.get("body", b""))
            await send(message)

        await app(scope, receive, send_plain)

    return answer
