"""The options of the servers, on a real connection."""

from __future__ import annotations

import asyncio
import struct
import threading
import time
from collections import Counter
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

import grpc
import pytest

from twolane.rpc.channel_options import (
    CHANNEL_OPTIONS,
    DOOR_SERVER_OPTIONS,
    INTERNAL_SERVER_OPTIONS,
    WINDOW_BYTES,
)

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, SETTINGS, PING, GOAWAY = 0, 4, 6, 7
ACK = 1
WINDOW = 4  # SETTINGS_INITIAL_WINDOW_SIZE
N_PINGS = 50


def frame(kind: int, payload: bytes = b"") -> bytes:
    """A frame of HTTP/2 (RFC 9113, section 4.1) on stream 0, without flags."""
    return struct.pack(">I", len(payload))[1:] + bytes([kind, 0]) + bytes(4) + payload


async def read_frame(reader: asyncio.StreamReader) -> tuple[int, int, bytes]:
    """Type, flags, payload."""
    head = await reader.readexactly(9)
    n_bytes = int.from_bytes(head[:3], "big")
    return head[3], head[4], await reader.readexactly(n_bytes)


@pytest.mark.parametrize("options", [INTERNAL_SERVER_OPTIONS, DOOR_SERVER_OPTIONS])
async def test_pings_close_to_each_other_do_not_end_a_connection(options: Any) -> None:
    server = grpc.aio.server(options=options)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(PREFACE + frame(SETTINGS))
    n_answered = 0
    for number in range(N_PINGS):
        writer.write(frame(PING, struct.pack(">q", number)))
        while n_answered == number:
            kind, flags, payload = await read_frame(reader)
            assert kind != GOAWAY, payload
            n_answered += kind == PING and flags == ACK
    writer.close()
    await writer.wait_closed()
    await server.stop(None)


async def test_a_flood_of_pings_ends_a_connection_at_the_door() -> None:
    server = grpc.aio.server(options=DOOR_SERVER_OPTIONS)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(PREFACE + frame(SETTINGS) + frame(PING, bytes(8)) * 200)
    kind, payload = 0, b""
    while kind != GOAWAY:
        kind, _, payload = await read_frame(reader)
    assert payload.endswith(b"too_many_pings")
    writer.close()
    await writer.wait_closed()
    await server.stop(None)


async def test_an_endpoint_may_take_its_time_to_say_hello() -> None:
    server = grpc.aio.server(options=DOOR_SERVER_OPTIONS)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()

    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):  # the other end has hung up in the middle of a frame
            while data := await reader.read(65536):
                writer.write(data)
        writer.close()

    over = asyncio.Event()

    async def serve_late(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(0.5)
        there, back = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.gather(forward(reader, back), forward(there, writer))
        for each in (back, writer):
            with suppress(ConnectionError):
                await each.wait_closed()
        over.set()

    proxy = await asyncio.start_server(serve_late, "127.0.0.1", 0)
    late = proxy.sockets[0].getsockname()[1]
    async with grpc.aio.insecure_channel(f"127.0.0.1:{late}", options=CHANNEL_OPTIONS) as channel:
        call: Any = channel.unary_unary("/no/method")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call(b"", timeout=60)
    assert caught.value.code() == grpc.StatusCode.UNIMPLEMENTED, caught.value.details()
    proxy.close()
    await server.stop(None)  # hangs up, and so does the proxy then
    await asyncio.wait_for(over.wait(), 60)


@pytest.mark.parametrize("options", [INTERNAL_SERVER_OPTIONS, DOOR_SERVER_OPTIONS])
async def test_nobody_is_asked_for_a_sign_of_life_while_data_comes(options: Any) -> None:
    """A process that pauses for as long as a ping may take would lose all its streams then. What
    the pings are for is settled from the start: how much may be under way."""

    async def echo(request: bytes, context: object) -> bytes:
        return request

    server = grpc.aio.server(options=options)
    method: Any = grpc.unary_unary_rpc_method_handler(echo)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("t.T", {"E": method}),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    kinds: Counter[int] = Counter()  # of frames, both ways
    windows: list[int] = []
    over = asyncio.Event()

    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while head := await reader.readexactly(9):
                payload = await reader.readexactly(int.from_bytes(head[:3], "big"))
                kinds[head[3]] += 1
                if head[3] == SETTINGS:
                    windows.extend(
                        n for name, n in struct.iter_unpack(">HI", payload) if name == WINDOW
                    )
                writer.write(head + payload)
        writer.close()

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", port)
        back.write(await reader.readexactly(len(PREFACE)))
        await asyncio.gather(forward(reader, back), forward(there, writer))
        with suppress(ConnectionError):  # the other side has hung up first
            await asyncio.gather(back.wait_closed(), writer.wait_closed())
        over.set()

    proxy = await asyncio.start_server(pass_on, "127.0.0.1", 0)
    between = proxy.sockets[0].getsockname()[1]
    where = f"127.0.0.1:{between}"
    async with grpc.aio.insecure_channel(where, options=CHANNEL_OPTIONS) as channel:
        call: Any = channel.unary_unary("/t.T/E")
        for _ in range(5):
            assert len(await call(bytes(100_000), timeout=60)) == 100_000
        assert kinds[DATA] > 10
        assert windows.count(WINDOW_BYTES) >= 2, "of both sides"
        assert kinds[PING] == 0  # there is one when a server stops
    proxy.close()
    await server.stop(None)
    await asyncio.wait_for(over.wait(), 60)


async def _cancelled(options: Any, blocked_s: float) -> int:
    """How many of ten calls gRPC cancels while the loop is blocked for so long."""

    async def answer(requests: object, context: Any) -> None:
        await context.write(b"answer")

    server = grpc.aio.server(options=options)
    method: Any = grpc.stream_stream_rpc_method_handler(answer)
    handlers = grpc.method_handlers_generic_handler("t.T", {"Call": method})
    server.add_generic_rpc_handlers((handlers,))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    codes: Future[list[grpc.StatusCode]] = Future()
    is_connected = threading.Event()

    def ask() -> None:
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            grpc.channel_ready_future(channel).result()
            is_connected.set()
            call: Any = channel.unary_unary("/t.T/Call")
            codes.set_result([one.code() for one in [call.future(b"") for _ in range(10)]])

    asker = threading.Thread(target=ask)
    asker.start()
    await asyncio.to_thread(is_connected.wait)
    time.sleep(blocked_s)  # noqa: ASYNC251  this is what happens
    found = await asyncio.wrap_future(codes)
    asker.join()
    await server.stop(None)
    return found.count(grpc.StatusCode.CANCELLED)


NAME = "grpc.server_max_unrequested_time_in_server"


@pytest.mark.parametrize("options", [INTERNAL_SERVER_OPTIONS, DOOR_SERVER_OPTIONS])
def test_no_call_is_cancelled_because_a_full_loop_has_not_taken_it_for_half_a_minute(
    options: Any,
) -> None:
    assert dict(options)[NAME] >= 600, "seconds; gRPC's default is 30"


@pytest.mark.soak
async def test_a_call_that_has_waited_half_a_minute_for_a_full_loop_is_answered() -> None:
    assert await _cancelled([(NAME, 1)], 10.0) > 0, "this is the option that decides"
    assert await _cancelled(DOOR_SERVER_OPTIONS, 32.0) == 0
