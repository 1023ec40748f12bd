"""Straight to the transport of one connection: the chunks of an answer whose head is out.

An ASGI application finds it in its scope, as the extension `twolane.chunks`. Head and end of an
answer go through ASGI's `send` as always. What comes between may go through here: the bytes are
those of uvicorn's `send`, without a coroutine and five wrappers for each token.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from starlette.types import Scope
from uvicorn.protocols.http.flow_control import FlowControl

EXTENSION = "twolane.chunks"


def _nothing() -> None:
    """Nobody writes."""


class ChunkWriter:
    """Of one connection. `on_pause` and `on_resume` tell when the transport takes no more, and when
    it does again; nothing is written in between."""

    __slots__ = ("_flow", "_transport", "on_pause", "on_resume")

    def __init__(self, transport: asyncio.Transport, flow: FlowControl) -> None:
        self._transport = transport
        self._flow = flow
        self.release()

    def release(self) -> None:
        """The answer needs it no more."""
        self.on_pause: Callable[[], None] = _nothing
        self.on_resume: Callable[[], None] = _nothing

    @property
    def is_paused(self) -> bool:
        return self._flow.write_paused

    def write(self, data: bytes) -> None:
        """One chunk, not empty. To a client that has gone nothing is written."""
        assert not self._flow.write_paused
        if not self._transport.is_closing():
            self._transport.write(b"%x\r\n%b\r\n" % (len(data), data))


def chunk_writer_of(scope: Scope) -> ChunkWriter:
    writer = scope["extensions"][EXTENSION]
    assert isinstance(writer, ChunkWriter)
    return writer
