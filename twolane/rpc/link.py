"""One end of an ordered two-way message stream, and its gRPC forms.

Routers, workers and the control streams of transfers communicate through `Link`, so that the same
code runs over gRPC, and over memory under virtual time (`twolane.testing.links`). A link delivers
in order or breaks; after a break it is unknown which messages arrived.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any, Generic, Protocol, TypeVar

import grpc
from google.protobuf.message import Message
from grpc.aio import EOF

from twolane.rpc.own_cancel import is_own_task_cancelled

OutT = TypeVar("OutT")
InT = TypeVar("InT")
OutT_contra = TypeVar("OutT_contra", contravariant=True)
InT_co = TypeVar("InT_co", covariant=True)

MAX_UNSENT_MESSAGES = 20_000
MAX_UNSENT_BYTES = 64 * 1024 * 1024

# Of a stream that is over. A write to a client that has disconnected raises `InternalError`.
_STREAM_ERRORS = (
    grpc.RpcError,
    asyncio.InvalidStateError,
    grpc.aio.UsageError,
    grpc.aio.InternalError,
)


class LinkBrokenError(Exception):
    """The stream is over: closed by either side, or the peer is dead or too slow."""


class Link(Protocol[OutT_contra, InT_co]):
    """`send` never blocks. The first `LinkBrokenError` is final. `close` may be called twice."""

    def send(self, message: OutT_contra) -> None: ...

    async def receive(self) -> InT_co: ...

    def close(self) -> None: ...


class _Stream(Protocol):
    """What `grpc.aio.StreamStreamCall` and `grpc.aio.ServicerContext` have in common."""

    async def read(self) -> Any: ...

    async def write(self, message: Any) -> None: ...


class GrpcLink(Generic[OutT, InT]):
    """A `Link` over one gRPC stream, client or server end.

    Messages wait in a bounded queue, which one task writes to the stream. If `MAX_UNSENT_MESSAGES`
    or `MAX_UNSENT_BYTES` wait because the peer reads too slowly, the link breaks, so that our
    memory stays bounded. A single message may have any size.
    """

    def __init__(self, stream: _Stream) -> None:
        self._stream = stream
        self._unsent: deque[tuple[OutT, int]] = deque()  # each with its size in bytes
        self._unsent_bytes = 0
        self._wake = asyncio.Event()
        self._broken = asyncio.Event()
        self._why = "closed"
        self._is_finishing = False
        self._writer = asyncio.create_task(self._write_all(), name="link-writer")

    def send(self, message: OutT) -> None:
        if self._broken.is_set() or self._is_finishing:
            raise LinkBrokenError(self._why)
        if len(self._unsent) >= MAX_UNSENT_MESSAGES:
            self._break(f"peer is {MAX_UNSENT_MESSAGES} messages behind")
            raise LinkBrokenError(self._why)
        n_bytes = _size(message)
        if self._unsent and self._unsent_bytes + n_bytes > MAX_UNSENT_BYTES:
            self._break(f"peer is {self._unsent_bytes >> 20} MiB behind")
            raise LinkBrokenError(self._why)
        self._unsent.append((message, n_bytes))
        self._unsent_bytes += n_bytes
        self._wake.set()

    async def receive(self) -> InT:
        if self._broken.is_set():
            raise LinkBrokenError(self._why)
        try:
            message = await self._stream.read()
        except (*_STREAM_ERRORS, asyncio.CancelledError) as error:  # the last: see `_break`, too
            self._break(_describe(error))
            _raise_if_cancelled()
            raise LinkBrokenError(self._why) from error
        if message is EOF:
            self._break("closed by peer")
            _raise_if_cancelled()
            raise LinkBrokenError(self._why)
        if message is None:  # how a client's stream reports that it could not parse a message
            self._break("a malformed message")
            raise LinkBrokenError(self._why)
        received: InT = message
        return received

    def close(self) -> None:
        """Stop sending. Queued messages that are not written yet are lost."""
        self._break("closed")

    async def finish(self) -> None:
        """Wait until all queued messages are written, and end the link. Nothing more can be sent.

        At the server's end the peer receives all of them if the handler then returns.
        """
        self._is_finishing = True
        self._wake.set()
        await self._broken.wait()

    async def wait_broken(self) -> str:
        """Wait until the link is over for any reason, and return the reason."""
        await self._broken.wait()
        return self._why

    def _break(self, why: str) -> None:
        if self._broken.is_set():
            return
        self._why = why
        self._broken.set()
        if self._writer is not asyncio.current_task():
            self._writer.cancel()
        if isinstance(self._stream, grpc.aio.Call):
            self._stream.cancel()  # a read that waits raises CancelledError, as a cancelled task's

    async def _write_all(self) -> None:
        try:
            while True:
                while self._unsent:
                    message, n_bytes = self._unsent.popleft()
                    self._unsent_bytes -= n_bytes
                    await self._stream.write(message)
                if self._is_finishing:
                    self._break("finished")
                    return
                self._wake.clear()
                await self._wake.wait()
        except _STREAM_ERRORS as error:
            self._break(_describe(error))


def _raise_if_cancelled() -> None:
    """Raise CancelledError if the task is cancelled: grpc may return a status from a cancelled
    read, and the cancellation must win."""
    if is_own_task_cancelled():
        raise asyncio.CancelledError


def _size(message: object) -> int:
    if isinstance(message, Message):
        return message.ByteSize()
    assert isinstance(message, bytes), "a message is protobuf, or serialised"
    return len(message)


def _describe(error: BaseException) -> str:
    if isinstance(error, grpc.aio.AioRpcError):
        return f"{error.code().name}: {error.details()}"
    return f"{type(error).__name__}: {error}"
