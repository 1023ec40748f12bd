"""Calls that are open, calls whose message does not come: each bound, on real connections."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest

from tests import h2
from tests.own_time import own_time
from tests.until import until
from twolane.errors import DeadlineError, OverloadedError, TwolaneError
from twolane.rpc.call_gate import SLOW_S, CallGate, CallGateConfig
from twolane.rpc.channel_options import CHANNEL_OPTIONS, DOOR_SERVER_OPTIONS, door_server_options
from twolane.rpc.errors import from_rpc_error
from twolane.rpc.handlers import unary_stream
from twolane.v1 import inference_pb2

PATH = "/t.T/Call"
REQUEST = inference_pb2.CancelRequest(request_id="a")


class Served:
    """A server whose one method answers, or waits until `go` is set."""

    def __init__(self, config: CallGateConfig) -> None:
        self.gate = CallGate(config)
        self.go = asyncio.Event()
        self.n_waiting = 0

    async def handle(self, request: inference_pb2.CancelRequest, context: Any) -> None:
        self.n_waiting += 1
        await self.go.wait()
        await context.write(inference_pb2.CancelResponse(found=True))

    @asynccontextmanager
    async def at(self, options: Any = DOOR_SERVER_OPTIONS) -> AsyncIterator[int]:
        server = grpc.aio.server(options=options)
        method = unary_stream(inference_pb2.CancelRequest, self.handle, self.gate)
        handler = grpc.method_handlers_generic_handler("t.T", {"Call": method})
        server.add_generic_rpc_handlers((handler,))
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        try:
            yield port
        finally:
            await server.stop(None)


async def outcome(channel: grpc.aio.Channel, **options: Any) -> TwolaneError | int:
    """How many responses came, or the error."""
    call: Any = channel.unary_stream(PATH)
    try:
        return len([raw async for raw in call(REQUEST.SerializeToString(), **options)])
    except grpc.aio.AioRpcError as error:
        return from_rpc_error(error)


@asynccontextmanager
async def senders(port: int, n_calls: int, n_sent: int) -> AsyncIterator[asyncio.Task[None]]:
    """One connection with calls of which no more than the first bytes come."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(h2.hello())
    for stream in range(1, 2 * n_calls, 2):
        writer.write(h2.call(PATH, stream) + h2.message(bytes(1000), stream, n_sent))
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(h2.answer_pings(reader, writer))
        try:
            yield task
        finally:
            writer.close()


async def test_a_connection_with_too_many_open_calls_is_refused_with_a_reason() -> None:
    served = Served(CallGateConfig(calls_per_connection=3))
    async with (
        served.at() as port,
        grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=CHANNEL_OPTIONS) as one,
        grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=CHANNEL_OPTIONS) as other,
    ):
        open_calls = [asyncio.create_task(outcome(one)) for _ in range(3)]
        await until(lambda: served.n_waiting == 3)
        refused = await outcome(one)
        assert isinstance(refused, OverloadedError)
        assert refused.retry_after_s == 1.0
        assert refused.metadata == {"bound": "3"}
        served.go.set()
        assert await outcome(other) == 1
        assert await asyncio.gather(*open_calls) == [1, 1, 1]
        assert await outcome(one) == 1


async def test_two_thousand_calls_at_once_on_one_connection_are_all_answered() -> None:
    served = Served(CallGateConfig())
    served.go.set()
    async with (
        served.at() as port,
        grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=CHANNEL_OPTIONS) as channel,
    ):
        answers = await asyncio.gather(*(outcome(channel) for _ in range(2000)))
    assert set(answers) == {1}


async def test_calls_that_come_while_the_loop_is_busy_are_answered_late_and_not_cancelled() -> None:
    """gRPC's core would cancel some of those beyond a thousand, without a word."""
    served = Served(CallGateConfig())
    served.go.set()

    def call_all() -> Counter[grpc.StatusCode]:
        with grpc.insecure_channel(f"127.0.0.1:{port}", options=CHANNEL_OPTIONS) as channel:
            grpc.channel_ready_future(channel).result(60.0)
            is_ready.set()
            call: Any = channel.unary_unary(PATH)
            futures = [call.future(REQUEST.SerializeToString()) for _ in range(2500)]
            return Counter(future.code() for future in futures)

    is_ready = threading.Event()
    async with served.at() as port:
        calling = asyncio.create_task(asyncio.to_thread(call_all))
        await asyncio.to_thread(is_ready.wait)
        time.sleep(1.0)  # noqa: ASYNC251 - the busy loop
        assert await calling == {grpc.StatusCode.OK: 2500}


async def test_calls_beyond_those_whose_message_is_awaited_are_refused_and_room_comes_back() -> (
    None
):
    served = Served(CallGateConfig(unread_calls=2))
    served.go.set()
    async with (
        served.at() as port,
        grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=CHANNEL_OPTIONS) as channel,
    ):
        async with senders(port, n_calls=2, n_sent=10):
            await until(lambda: served.gate.n_unread == 2)
            refused = await outcome(channel)
            assert isinstance(refused, OverloadedError), refused
        await until(lambda: served.gate.n_unread == 0)
        assert await outcome(channel) == 1


async def test_a_message_that_does_not_come_ends_its_call_and_says_so() -> None:
    served = Served(CallGateConfig(message_s=0.2))
    async with (
        served.at() as port,
        grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=CHANNEL_OPTIONS) as channel,
    ):
        call: Any = channel.stream_stream(PATH)()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call.read()
        error = from_rpc_error(caught.value)
        assert isinstance(error, DeadlineError)
        assert error.message == "the message of this call has not arrived within 0.2 s"


async def test_of_senders_that_stall_the_oldest_gives_way_and_others_are_answered() -> None:
    served = Served(CallGateConfig(slow_messages=3, message_s=600.0))
    served.go.set()
    slow: list[asyncio.Timeout] = []
    add_slow = served.gate._add_slow

    def counted(timeout: asyncio.Timeout) -> None:
        slow.append(timeout)
        add_slow(timeout)

    served.gate._add_slow = counted  # type: ignore[method-assign]
    async with (
        served.at() as port,
        grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=CHANNEL_OPTIONS) as channel,
        senders(port, n_calls=20, n_sent=500),
    ):
        # a machine that stalls just now lets some of them be slow before all have come
        await until(lambda: served.gate.n_unread == 20 or served.gate._slow)
        assert await outcome(channel) == 1
        with own_time() as took:
            await until(lambda: len(slow) == 20 and served.gate.n_unread == 3)
        assert took.s() < SLOW_S + 2.0


class LostCall:
    """A call whose client left: gRPC fails whatever is still said, and its handler hears of the
    cancellation only afterwards."""

    def peer(self) -> str:
        return "ipv4:127.0.0.1:5"

    async def read(self) -> bytes:
        return REQUEST.SerializeToString()

    async def write(self, message: Any) -> None:
        raise grpc.aio.InternalError("Failed grpc_call_start_batch: 8")

    async def abort_with_status(self, status: Any) -> None:
        raise grpc.aio.InternalError("Failed grpc_call_start_batch: 8")


@pytest.mark.parametrize("says", ["refusal", "answer"])
async def test_what_is_said_to_a_client_that_left_is_a_cancelled_call_and_no_failure(
    says: str,
) -> None:
    async def handle(request: inference_pb2.CancelRequest, context: Any) -> None:
        if says == "refusal":
            raise DeadlineError("too late")
        await context.write(inference_pb2.CancelResponse())

    gate = CallGate(CallGateConfig())
    method: Any = unary_stream(inference_pb2.CancelRequest, handle, gate)
    with pytest.raises(asyncio.CancelledError):  # gRPC logs anything else, with its traceback
        await method.stream_stream(None, LostCall())


async def test_a_compressed_message_is_refused_before_it_is_inflated() -> None:
    served = Served(CallGateConfig())
    options = door_server_options(message_bytes=1 << 20, connections=10, idle_s=60.0)
    async with (
        served.at(options) as port,
        grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=CHANNEL_OPTIONS) as channel,
    ):
        call: Any = channel.unary_stream(PATH)
        for compression in (grpc.Compression.Gzip, grpc.Compression.Deflate):
            bomb = call(bytes(16 << 20), compression=compression)
            with pytest.raises(grpc.aio.AioRpcError, match="is disabled") as caught:
                await bomb.read()
            assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
        with pytest.raises(grpc.aio.AioRpcError, match="larger than max") as caught:
            await call(bytes((1 << 20) + 1)).read()
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert served.n_waiting == 0


async def greeted(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection that the server has taken."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(h2.hello())
    await reader.readexactly(9)
    return reader, writer


async def rest_of(reader: asyncio.StreamReader) -> bytes:
    """What comes until the server closes the connection."""
    async with asyncio.timeout(60.0):
        with contextlib.suppress(ConnectionResetError):
            return await reader.read()
    return b""


async def test_connections_beyond_the_bound_are_closed_at_once() -> None:
    options = door_server_options(message_bytes=1 << 20, connections=2, idle_s=600.0)
    async with Served(CallGateConfig()).at(options) as port:
        first = [await greeted(port) for _ in range(2)]
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        assert await rest_of(reader) == b""
        for _, open_writer in (*first, (reader, writer)):
            open_writer.close()


async def test_idle_connections_are_closed_in_time() -> None:
    options = door_server_options(message_bytes=1 << 20, connections=2, idle_s=0.5)
    async with Served(CallGateConfig()).at(options) as port:
        reader, writer = await greeted(port)
        await rest_of(reader)
        writer.close()
