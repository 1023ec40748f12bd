"""Writes the chunks of an answer, whose head was sent, directly to its connection's transport.

An ASGI application finds the writer in its scope, as the extension `twolane.chunks`. The head and
the end of an answer go through ASGI's `send` as usual. The chunks between may be written here: the
bytes are the same as with uvicorn's `send`, without a coroutine and five wrappers for each token.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from starlette.types import Scope

EXTENSION = "twolane.chunks"


def _nothing() -> None:
    """The callback while no answer uses the writer."""


class ChunkWriter:
    """The writer of one connection, which tells it by `pause` and `resume` when the transport's
    buffer is full and when it has room again. It calls `on_pause` and `on_resume` then; do not
    write in between."""

    __slots__ = ("_transport", "is_paused", "on_pause", "on_resume")

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self.is_paused = False
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
            self._transport.write(b"%x\r\n%b\r\n" % (len(data), data))


def chunk_writer_of(scope: Scope) -> ChunkWriter:
    writer = scope["extensions"][EXTENSION]
    assert isinstance(writer, ChunkWriter)
    return writer
