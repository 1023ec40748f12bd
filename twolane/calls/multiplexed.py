"""All requests of one client to one router share one stream; a message has new tokens of many.

    start ──> MultiplexedCall <──parts, columns── reader <── stream <── router
      │              │ read by the caller
      └──────────────┴──> writer ──starts, reads, cancels──> stream

A call looks and fails like one of `Generate`. If a call is not read, its answer stops at the
window, and the others continue. A router that does not support `Multiplex` gets `Generate` calls.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from copy import copy
from functools import partial
from itertools import repeat
from typing import Any, Protocol

import grpc
from google.rpc import status_pb2

from twolane.calls.trace_headers import TraceMetadata
from twolane.v1 import inference_pb2

# How long a stream takes new answers; the next answer then opens another stream, on the connection
# of that time. A stream that has had no answer for so long is closed.
FRESH_S = 60.0
ASK_AGAIN_S = 60.0  # until `Multiplex` is tried again at a router that did not support it
LARGE_BYTES = 1 << 20  # a larger request is sent by `Generate`
SMALL_BYTES = 4 << 10  # smaller items share a message
_DETAILS = "grpc-status-details-bin"
_CODES = {code.value[0]: code for code in grpc.StatusCode}

Messages = AsyncIterator[inference_pb2.GenerateResponse]
StreamCall = Any  # grpc.aio.StreamStreamCall of MultiplexRequest and MultiplexResponse


class Call(Protocol):
    """One answer of a router: the part of `grpc.aio.UnaryStreamCall` that is used here."""

    def __aiter__(self) -> Messages: ...

    def cancel(self) -> object: ...

    def done(self) -> bool: ...

    async def details(self) -> str | None: ...


# request, timeout in s, the caller's span
Generate = Callable[[inference_pb2.GenerateRequest, float | None, TraceMetadata], Call]


class MultiplexedCall:
    """One answer. Iterating raises `grpc.RpcError` where a call of `Generate` would."""

    def __init__(self, answer: int, stream: _Stream, start: inference_pb2.AnswerStart) -> None:
        self._answer = answer
        self._stream = stream
        self._start: inference_pb2.AnswerStart | None = start  # until the router has answered
        self._loop = asyncio.get_running_loop()
        self._messages: deque[inference_pb2.GenerateResponse] = deque()
        self._news = asyncio.Event()
        self._instead: Call | None = None  # the `Generate` call, if the router does not multiplex
        self._error: BaseException | None = None  # raised once all messages are read
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
        """Cancel the answer."""
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
        """gRPC's error text at the end of a call."""
        if self._instead is not None:
            return await self._instead.details()
        if isinstance(self._error, grpc.aio.AioRpcError):
            return self._error.details()
        return "the client was closed" if self.done() else None

    # Called by the stream.

    def add(self, message: inference_pb2.GenerateResponse) -> None:
        if self._error is None:
            self._start = None
            self._messages.append(message)
            self._news.set()
            if message.finish_reason:
                self._end(StopAsyncIteration())

    def fail(self, error: BaseException) -> None:
        """End the call with `error`. Does nothing if it is over."""
        if self._error is None:
            self._end(error)

    @property
    def is_answered(self) -> bool:
        """Whether the router has sent anything for this answer."""
        return self._start is None

    def ask_instead(self, generate: Generate) -> None:
        """Use `Generate`, because the stream failed before it answered this call, which is not
        over. Fails the call where the stream's channel takes no more."""
        assert self._start is not None
        left_s = None if self._due is None else max(0.0, self._due - self._loop.time())
        self._cancel_timer()
        start = self._start
        trace = (("traceparent", start.traceparent), ("tracestate", start.tracestate))
        said = tuple((name, value) for name, value in trace if value)
        try:
            self._instead = generate(start.generate, left_s, said)
        except grpc.aio.UsageError:  # it is retired: another router or channel may answer
            self.fail(_stream_ended())
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
        self.window_tokens = 1  # until the router sends its window
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
        for task in self.tasks:  # no warning if a program ends without closing its client
            task._log_destroy_pending = False  # type: ignore[attr-defined]

    @property
    def is_fresh(self) -> bool:
        """Whether the stream takes another answer."""
        age_s = self._loop.time() - self._began
        return not self.is_over and not self._is_retired and age_s < FRESH_S

    def start(
        self,
        request: inference_pb2.GenerateRequest,
        timeout_s: float | None,
        trace: TraceMetadata,
    ) -> MultiplexedCall:
        self._n_started += 1
        start = inference_pb2.AnswerStart(
            answer=self._n_started,
            generate=request,
            timeout_s=timeout_s or 0.0,
            **dict(trace),  # type: ignore[arg-type]
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
        """Remove an answer that is over."""
        self._calls.pop(answer, None)
        self._wake.set()

    def retire(self) -> None:
        """Take no more answers, and end when the running ones have ended."""
        self._is_retired = True
        self._wake.set()

    def cancel_calls(self) -> None:
        """Cancel the calls of a reader that was cancelled before it had begun: it ends none."""
        for call in list(self._calls.values()):
            call.fail(asyncio.CancelledError())

    def _message(self, n_bytes: int) -> inference_pb2.MultiplexRequest:
        """The message to which `n_bytes` are to be added: the last unsent one, or a new one if it
        would get too large."""
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
            pass  # the reader gets the reason

    async def _wait(self) -> None:
        """Wait for something to write. A stream that has been idle for too long is retired."""
        while not self._wake.is_set():
            is_idle = not self._calls and not self._is_retired
            try:
                async with asyncio.timeout(FRESH_S if is_idle else None):
                    await self._wake.wait()
            except TimeoutError:
                self._is_retired = True
                return

    async def _read(self) -> None:
        is_refused = False
        new_error: Callable[[], BaseException] = _stream_ended  # one for each call
        try:
            while (message := await self._call.read()) is not grpc.aio.EOF:
                self._has_heard = True
                self._deliver(message)
            is_refused = True  # calls without an answer: the router takes no more on this stream
        except grpc.aio.AioRpcError as failed:
            is_old = failed.code() is grpc.StatusCode.UNIMPLEMENTED and not self._has_heard
            is_refused = is_old or failed.details() == _WRITTEN_TOO_LATE
            if not is_refused:
                new_error = partial(copy, failed)
        except asyncio.CancelledError:  # by `close`, or because the channel was closed
            new_error = asyncio.CancelledError
        finally:
            self.is_over = True
            self._wake.set()
            if is_refused and not self._has_heard:
                self._owner.note_refused()
            for call in list(self._calls.values()):
                if is_refused and not call.is_answered:
                    call.ask_instead(self._owner.generate)
                else:
                    call.fail(new_error())

    def _deliver(self, message: inference_pb2.MultiplexResponse) -> None:
        self.window_tokens = message.window_tokens or self.window_tokens
        if message.is_ending:
            self.retire()
        for part in message.parts:
            call = self._calls.get(part.answer)
            if call is None:
                continue  # it was cancelled
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
    """Starts requests on one channel. When `start` returns, the request is being sent. Close the
    multiplexer before the channel.

    `open_stream` calls `Multiplex`; `generate` is for requests that cannot use it: large ones, and
    those to an old router.
    """

    def __init__(self, open_stream: Callable[[], StreamCall], generate: Generate) -> None:
        self.generate = generate
        self._open_stream = open_stream
        self._loop = asyncio.get_running_loop()
        # The last one takes calls; the others end when their calls have ended.
        self._streams: list[_Stream] = []
        self._refused_until = 0.0

    def start(
        self,
        request: inference_pb2.GenerateRequest,
        timeout_s: float | None,
        trace: TraceMetadata = (),
    ) -> Call:
        is_large = request.ByteSize() > LARGE_BYTES
        if is_large or self._loop.time() < self._refused_until:
            return self.generate(request, timeout_s, trace)
        if not self._streams or not self._streams[-1].is_fresh:
            self.retire()
            self._streams = [stream for stream in self._streams if not stream.is_over]
            self._streams.append(_Stream(self._open_stream(), self))
        return self._streams[-1].start(request, timeout_s, trace)

    def note_refused(self) -> None:
        """Record that the router does not support `Multiplex`."""
        self._refused_until = self._loop.time() + ASK_AGAIN_S

    def retire(self) -> None:
        """Let no open stream take another answer."""
        for stream in self._streams:
            stream.retire()

    async def close(self) -> None:
        """Cancel all running calls."""
        tasks = [task for stream in self._streams for task in stream.tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)  # the calls raise the errors
        for stream in self._streams:
            stream.cancel_calls()


def _of_status(raw: bytes) -> grpc.aio.AioRpcError:
    """The error that a call with this google.rpc.Status raises."""
    status = status_pb2.Status.FromString(raw)
    details = grpc.aio.Metadata((_DETAILS, raw))
    return grpc.aio.AioRpcError(_CODES[status.code], grpc.aio.Metadata(), details, status.message)


def _stream_ended() -> grpc.aio.AioRpcError:
    return _rpc_error(
        grpc.StatusCode.UNAVAILABLE, "the router has closed the stream of all answers"
    )


def _rpc_error(code: grpc.StatusCode, text: str) -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(), text)


# gRPC's details, in place of the stream's status, after a write to a stream that has just ended.
_WRITTEN_TOO_LATE = "Internal error from Core"
