"""All requests of one client to one router on one stream, one message for all that have news.

    start ──> MultiplexedCall <──parts, columns── reader <── stream <── router
      │              │ read by its user
      └──────────────┴──> writer ──starts, reads, cancels──> stream

A call looks as one of `Generate` does, and fails as one does. A call that is not read stops at its
window: the others go on. A router that knows no such stream is asked by `Generate`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from itertools import repeat
from typing import Any, Protocol

import grpc
from google.rpc import status_pb2

from twolane.v1 import inference_pb2

# A stream takes new answers for so long: then the next one opens another, on what is the connection
# then. One that has no answer for so long is ended.
FRESH_S = 60.0
ASK_AGAIN_S = 60.0  # a router that knew no such stream
LARGE_BYTES = 1 << 20  # a request that is larger goes alone
SMALL_BYTES = 4 << 10  # those that are not share a message
_DETAILS = "grpc-status-details-bin"
_CODES = {code.value[0]: code for code in grpc.StatusCode}

Messages = AsyncIterator[inference_pb2.GenerateResponse]
StreamCall = Any  # grpc.aio.StreamStreamCall of MultiplexRequest and MultiplexResponse


class Call(Protocol):
    """One answer of a router, as `grpc.aio.UnaryStreamCall` has it."""

    def __aiter__(self) -> Messages: ...

    def cancel(self) -> object: ...

    def done(self) -> bool: ...

    async def details(self) -> str | None: ...


Generate = Callable[[inference_pb2.GenerateRequest, float | None], Call]  # request, timeout in s


class MultiplexedCall:
    """One answer. Iterating raises `grpc.RpcError` where a call of `Generate` would."""

    def __init__(self, answer: int, stream: _Stream, start: inference_pb2.AnswerStart) -> None:
        self._answer = answer
        self._stream = stream
        self._start: inference_pb2.AnswerStart | None = start  # until the router has answered
        self._loop = asyncio.get_running_loop()
        self._messages: deque[inference_pb2.GenerateResponse] = deque()
        self._news = asyncio.Event()
        self._instead: Call | None = None  # of a router that does not multiplex
        self._error: BaseException | None = None  # how it ends, once the messages are read
        self._n_read = 0
        self._n_granted = 0
        self._due = self._loop.time() + start.timeout_s if start.timeout_s else None
        self._timer = None if self._due is None else self._loop.call_at(self._due, self._expire)

    def __aiter__(self) -> Messages:
        return self

    async def __anext__(self) -> inference_pb2.GenerateResponse:
        while not self._messages:
            if self._error is not None:
                raise self._error
            if self._instead is not None:
                return await anext(aiter(self._instead))
            self._news.clear()
            await self._news.wait()
        message = self._messages.popleft()
        self._n_read += len(message.tokens)
        if self._n_read - self._n_granted >= self._stream.window_tokens // 2:
            self._n_granted = self._n_read
            self._stream.say_read(self._answer, self._n_read)
        return message

    def cancel(self) -> bool:
        """Give the answer up."""
        if self._instead is not None:
            return bool(self._instead.cancel())
        if self._error is not None:
            return False
        self._stream.say_cancelled(self._answer)
        self._end(asyncio.CancelledError())
        return True

    def done(self) -> bool:
        return self._error is not None if self._instead is None else self._instead.done()

    async def details(self) -> str | None:
        """gRPC's words at the end of a call."""
        if self._instead is not None:
            return await self._instead.details()
        if isinstance(self._error, grpc.aio.AioRpcError):
            return self._error.details()
        return "the client was closed" if self.done() else None

    # By its stream

    def add(self, message: inference_pb2.GenerateResponse) -> None:
        if self._error is None:
            self._start = None
            self._messages.append(message)
            self._news.set()
            if message.finish_reason:
                self._end(StopAsyncIteration())

    def fail(self, error: BaseException) -> None:
        """May be called for one that is over."""
        if self._error is None:
            self._end(error)

    @property
    def is_answered(self) -> bool:
        """Whether the router has said anything of it."""
        return self._start is None

    def ask_instead(self, generate: Generate) -> None:
        """Its stream was of no use; it is not answered, and not over."""
        assert self._start is not None
        left_s = None if self._due is None else max(0.0, self._due - self._loop.time())
        self._cancel_timer()
        self._instead = generate(self._start.generate, left_s)
        self._news.set()

    def _expire(self) -> None:
        self._stream.say_cancelled(self._answer)
        self.fail(_rpc_error(grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded"))

    def _end(self, error: BaseException) -> None:
        self._error = error
        self._cancel_timer()
        self._stream.forget(self._answer)
        self._news.set()

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()


class _Stream:
    """One stream to one router, with its calls."""

    def __init__(self, call: StreamCall, owner: Multiplexer) -> None:
        self.window_tokens = 1  # until it is told
        self._call = call
        self._owner = owner
        self._calls: dict[int, MultiplexedCall] = {}
        self._n_started = 0
        self._has_heard = False
        self._is_retired = False
        self._unsent = deque[inference_pb2.MultiplexRequest]()
        self._wake = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._began = self._loop.time()
        self.is_over = False
        self.tasks = [
            asyncio.create_task(self._read(), name="multiplexed-read"),
            asyncio.create_task(self._write(), name="multiplexed-write"),
        ]
        for task in self.tasks:  # a program may end with a client that it has never closed
            task._log_destroy_pending = False  # type: ignore[attr-defined]

    @property
    def is_fresh(self) -> bool:
        """Whether it takes another answer."""
        age_s = self._loop.time() - self._began
        return not self.is_over and not self._is_retired and age_s < FRESH_S

    def start(
        self, request: inference_pb2.GenerateRequest, timeout_s: float | None
    ) -> MultiplexedCall:
        self._n_started += 1
        start = inference_pb2.AnswerStart(
            answer=self._n_started, generate=request, timeout_s=timeout_s or 0.0
        )
        call = self._calls[self._n_started] = MultiplexedCall(self._n_started, self, start)
        self._message(start.ByteSize()).starts.append(start)
        return call

    def say_read(self, answer: int, n_tokens: int) -> None:
        self._message(0).reads.add(answer=answer, n_tokens=n_tokens)

    def say_cancelled(self, answer: int) -> None:
        if answer in self._calls:
            self._message(0).cancels.append(answer)

    def forget(self, answer: int) -> None:
        """It is over."""
        self._calls.pop(answer, None)
        self._wake.set()

    def retire(self) -> None:
        """Take no more; end with the calls that run."""
        self._is_retired = True
        self._wake.set()

    def _message(self, n_bytes: int) -> inference_pb2.MultiplexRequest:
        """The one to be written next, or, for something large, another."""
        if not self._unsent or n_bytes + self._unsent[-1].ByteSize() > SMALL_BYTES:
            self._unsent.append(inference_pb2.MultiplexRequest())
        self._wake.set()
        return self._unsent[-1]

    async def _write(self) -> None:
        try:
            while self._calls or self._unsent or not self._is_retired:
                while self._unsent:
                    await self._call.write(self._unsent.popleft())
                self._wake.clear()
                await self._wait()
            await self._call.done_writing()
        except (grpc.RpcError, asyncio.InvalidStateError):
            pass  # the reader says why

    async def _wait(self) -> None:
        """For something to write, or until it has been idle for too long."""
        while not self._wake.is_set():
            is_idle = not self._calls and not self._is_retired
            try:
                async with asyncio.timeout(FRESH_S if is_idle else None):
                    await self._wake.wait()
            except TimeoutError:
                self._is_retired = True
                return

    async def _read(self) -> None:
        is_refused, error = False, _ENDED
        try:
            while (message := await self._call.read()) is not grpc.aio.EOF:
                self._has_heard = True
                self._deliver(message)
            is_refused = True  # of what is not answered: the router takes no more on this stream
        except grpc.aio.AioRpcError as failed:
            is_old = failed.code() is grpc.StatusCode.UNIMPLEMENTED and not self._has_heard
            is_refused = is_old or failed.details() == _WRITTEN_TOO_LATE
            error = _ENDED if is_refused else failed
        except asyncio.CancelledError:  # by `close`, or by the channel's
            error = asyncio.CancelledError()
        finally:
            self.is_over = True
            self._wake.set()
            if is_refused and not self._has_heard:
                self._owner.note_refused()
            for call in list(self._calls.values()):
                if is_refused and not call.is_answered:
                    call.ask_instead(self._owner.generate)
                else:
                    call.fail(error)

    def _deliver(self, message: inference_pb2.MultiplexResponse) -> None:
        self.window_tokens = message.window_tokens or self.window_tokens
        for part in message.parts:
            call = self._calls.get(part.answer)
            if call is None:
                continue  # it was given up
            if part.status:
                call.fail(_of_status(part.status))
            else:
                call.add(part.response)
        counts = message.counts or repeat(1)
        columns = zip(message.answers, message.first_indexes, counts, message.texts, strict=False)
        at = 0
        for answer, first, count, text in columns:
            call = self._calls.get(answer)
            if call is not None:
                response = inference_pb2.GenerateResponse(text=text)
                for nth in range(count):
                    response.tokens.add(index=first + nth, token_id=message.token_ids[at + nth])
                call.add(response)
            at += count


class Multiplexer:
    """Of one channel. Each request is on its way when `start` returns. Close it before the channel.

    `open_stream` calls `Multiplex`; `generate` is for what does not go through it: a large request,
    an old router.
    """

    def __init__(self, open_stream: Callable[[], StreamCall], generate: Generate) -> None:
        self.generate = generate
        self._open_stream = open_stream
        self._loop = asyncio.get_running_loop()
        self._streams: list[_Stream] = []  # the last one takes calls, others end with theirs
        self._refused_until = 0.0

    def start(self, request: inference_pb2.GenerateRequest, timeout_s: float | None) -> Call:
        is_large = request.ByteSize() > LARGE_BYTES
        if is_large or self._loop.time() < self._refused_until:
            return self.generate(request, timeout_s)
        if not self._streams or not self._streams[-1].is_fresh:
            self.retire()
            self._streams = [stream for stream in self._streams if not stream.is_over]
            self._streams.append(_Stream(self._open_stream(), self))
        return self._streams[-1].start(request, timeout_s)

    def note_refused(self) -> None:
        """The router knows no such stream."""
        self._refused_until = self._loop.time() + ASK_AGAIN_S

    def retire(self) -> None:
        """No stream that is open takes another answer."""
        for stream in self._streams:
            stream.retire()

    async def close(self) -> None:
        """Every call that runs is cancelled."""
        tasks = [task for stream in self._streams for task in stream.tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)  # their calls have the reasons


def _of_status(raw: bytes) -> grpc.aio.AioRpcError:
    """What a call that ends with that google.rpc.Status raises."""
    status = status_pb2.Status.FromString(raw)
    details = grpc.aio.Metadata((_DETAILS, raw))
    return grpc.aio.AioRpcError(_CODES[status.code], grpc.aio.Metadata(), details, status.message)


def _rpc_error(code: grpc.StatusCode, text: str) -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(), text)


# A write to a stream that has just ended leaves this in place of the status that it ended with.
_WRITTEN_TOO_LATE = "Internal error from Core"
_ENDED: BaseException = _rpc_error(
    grpc.StatusCode.UNAVAILABLE, "the router has ended the stream of all answers"
)
