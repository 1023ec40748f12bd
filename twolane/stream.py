"""The stream of one answer as it is generated."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Self

import grpc

from twolane.calls.multiplexed import Call
from twolane.errors import CancelledError, InternalError, InvalidRequestError, TwolaneError
from twolane.rpc.own_cancel import is_own_task_cancelled
from twolane.v1 import inference_pb2
from twolane.values import Chunk, Completion


class AsyncStream:
    """An async iterator of `Chunk`s, and an async context manager.

    It ends after the chunk with a `finish_reason`; every other end is a `TwolaneError`. Closing it
    early (`aclose`, leaving `async with`, cancelling the task that reads, or dropping the last
    reference) cancels the request, and the cluster frees its resources within a second. One task
    reads at a time; `aclose` may be called from another, and more than once. `request_id` and
    `seed` are the router's values as soon as the first chunk has arrived.
    """

    def __init__(self, call: Call, request_id: str, explain: Callable[..., TwolaneError]) -> None:
        """`explain(error, n_tokens=…)` is `failures.explain` with what the client knows."""
        self.request_id = request_id
        self.seed = 0
        self._call = call
        self._messages = aiter(call)
        self._loop = asyncio.get_running_loop()
        self._explain = explain
        self._is_admitted = False
        self._is_over = False
        self._chunks: list[Chunk] = []

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Chunk:
        if self._is_over:
            raise StopAsyncIteration
        check_loop(self._loop)
        message = await self._next_message()
        if message.request_id:  # the first message, sent when the request is admitted
            self.request_id, self.seed = message.request_id, message.seed
            self._is_admitted = True
            if not (message.tokens or message.text or message.finish_reason):
                return await anext(self)
        chunk = Chunk.from_proto(message, request_id=self.request_id, seed=self.seed)
        self._chunks.append(chunk)
        return chunk

    async def _next_message(self) -> inference_pb2.GenerateResponse:
        try:
            return await anext(self._messages)
        except (StopAsyncIteration, grpc.RpcError) as error:
            self._is_over = True
            if self._is_finished:  # how the call ends after the last chunk does not matter
                raise StopAsyncIteration from None
            if isinstance(error, grpc.RpcError):
                raise self._explain(error, n_tokens=self._n_tokens) from error
            why = f"the answer to {self.request_id} ended without a finish reason"
            raise InternalError(why) from None
        except asyncio.CancelledError:
            if is_own_task_cancelled():
                self.cancel()
                raise
            if self._is_over or self._is_finished:  # closed by another task
                raise StopAsyncIteration from None
            self._is_over = True
            details = await self._call.details() if self._call.done() else "the client was closed"
            raise CancelledError(details or f"request {self.request_id} was cancelled") from None

    @property
    def _n_tokens(self) -> int | None:
        """The number of tokens received; None before the request is admitted."""
        return sum(len(chunk.tokens) for chunk in self._chunks) if self._is_admitted else None

    async def completion(self) -> Completion:
        """Read the rest and return the whole answer, including the chunks read before."""
        async for _ in self:
            pass
        return self._whole()

    def cancel(self) -> None:
        """Cancel the request. Returns at once."""
        self._is_over = True
        self._call.cancel()

    async def aclose(self) -> None:
        self.cancel()

    @property
    def _is_finished(self) -> bool:
        return bool(self._chunks) and self._chunks[-1].finish_reason is not None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.aclose()

    def __del__(self) -> None:
        if not self._is_over and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._call.cancel)

    def _whole(self) -> Completion:
        last = self._chunks[-1] if self._chunks else None
        if last is None or last.finish_reason is None or last.ledger is None:
            raise CancelledError(f"the stream of {self.request_id} was closed before its end")
        return Completion(
            request_id=self.request_id,
            seed=self.seed,
            text="".join(chunk.text for chunk in self._chunks),
            tokens=tuple(token for chunk in self._chunks for token in chunk.tokens),
            finish_reason=last.finish_reason,
            ledger=last.ledger,
        )


def running_loop() -> asyncio.AbstractEventLoop:
    """The event loop of the caller. Raises `InvalidRequestError` if there is none."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        why = "AsyncClient needs a running event loop; twolane.Client does not"
        raise InvalidRequestError(why) from None


def check_loop(loop: asyncio.AbstractEventLoop) -> None:
    """Raise `InvalidRequestError` if `loop` is not the running one: a gRPC object of one event loop
    hangs on another."""
    if running_loop() is not loop:
        raise InvalidRequestError("this client belongs to another event loop; create one for each")
