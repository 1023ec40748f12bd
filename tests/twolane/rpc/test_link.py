"""GrpcLink over a real stream on loopback."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest

from twolane.rpc import link as link_module
from twolane.rpc.link import GrpcLink, LinkBrokenError
from twolane.v1 import worker_pb2

Serve = Callable[[GrpcLink[bytes, bytes]], Awaitable[None]]


async def test_messages_go_both_ways_in_order() -> None:
    async def echo(link: GrpcLink[bytes, bytes]) -> None:
        for _ in range(200):
            link.send(await link.receive())
        await link.wait_broken()

    async with connected(echo) as link:
        for number in range(200):
            link.send(b"%d" % number)
        assert [await link.receive() for _ in range(200)] == [b"%d" % n for n in range(200)]


async def test_the_other_end_learns_of_a_close() -> None:
    is_open, seen = asyncio.Event(), asyncio.Event()

    async def wait_for_end(link: GrpcLink[bytes, bytes]) -> None:
        is_open.set()
        with pytest.raises(LinkBrokenError):
            await link.receive()
        seen.set()

    async with connected(wait_for_end) as link:
        await asyncio.wait_for(is_open.wait(), 60)
        link.close()
        await asyncio.wait_for(seen.wait(), 60)
        with pytest.raises(LinkBrokenError):
            link.send(b"late")


async def test_a_read_that_waits_learns_of_a_close_by_another_task() -> None:
    """A cancelled task would end without an error, and nobody would dial again."""

    async def never_write(link: GrpcLink[bytes, bytes]) -> None:
        await link.wait_broken()

    async with connected(never_write) as link:
        reading = asyncio.create_task(link.receive())
        await asyncio.sleep(0.1)
        link.close()
        with pytest.raises(LinkBrokenError, match="closed"):
            await asyncio.wait_for(reading, 60)


async def test_a_server_that_returns_breaks_the_link_here() -> None:
    async def leave(link: GrpcLink[bytes, bytes]) -> None:
        await link.receive()

    async with connected(leave) as link:
        link.send(b"hello")
        with pytest.raises(LinkBrokenError, match="closed by peer"):
            await asyncio.wait_for(link.receive(), 60)
        assert await link.wait_broken()


async def test_a_peer_that_does_not_read_breaks_the_link_instead_of_filling_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(link_module, "MAX_UNSENT_MESSAGES", 50)

    async def never_read(link: GrpcLink[bytes, bytes]) -> None:
        await link.wait_broken()

    async with connected(never_read) as link:
        for _ in range(50):
            link.send(b"x" * 100_000)
        with pytest.raises(LinkBrokenError, match="50 messages behind"):
            link.send(b"one too many")


async def test_a_peer_that_is_too_many_bytes_behind_breaks_the_link(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(link_module, "MAX_UNSENT_BYTES", 5 << 20)

    async def never_read(link: GrpcLink[bytes, bytes]) -> None:
        await link.wait_broken()

    async with connected(never_read) as link:
        for _ in range(5):
            link.send(bytes(1 << 20))
        with pytest.raises(LinkBrokenError, match="5 MiB behind"):
            link.send(b"a byte too many")


async def test_bytes_that_were_sent_and_a_single_large_message_break_no_link(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(link_module, "MAX_UNSENT_BYTES", 1000)

    async def echo_sizes(link: GrpcLink[bytes, bytes]) -> None:
        while True:
            link.send(b"%d" % len(await link.receive()))

    async with connected(echo_sizes) as link:
        for size in (100_000, 900, 900, 900):
            link.send(bytes(size))
            assert await asyncio.wait_for(link.receive(), 60) == b"%d" % size


async def test_malformed_message_of_a_server_breaks_the_link() -> None:
    async def garble(link: GrpcLink[bytes, bytes]) -> None:
        link.send(worker_pb2.SessionResponse(load=worker_pb2.LoadReport()).SerializeToString())
        link.send(b"\xff no message of ours")
        await link.wait_broken()

    async with connected(garble, worker_pb2.SessionResponse.FromString) as link:
        received: Any = await asyncio.wait_for(link.receive(), 60)
        assert received.HasField("load")
        with pytest.raises(LinkBrokenError, match="malformed"):
            await asyncio.wait_for(link.receive(), 60)


class AnswersCancelWithStatus:
    """A stream whose read, when cancelled, says so with an error of grpc's, as grpc may."""

    async def read(self) -> bytes:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise grpc.aio.UsageError("RPC already finished") from None
        raise AssertionError("nobody sets it")

    async def write(self, message: bytes) -> None:
        raise AssertionError("nothing is sent here")


async def test_a_cancelled_read_stays_cancelled_whatever_grpc_makes_of_it() -> None:
    link: GrpcLink[bytes, bytes] = GrpcLink(AnswersCancelWithStatus())
    reading = asyncio.create_task(link.receive())
    await asyncio.sleep(0)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    link.close()


class Departed:
    """A server's stream whose client has gone: grpc raises an error that is no `RpcError`."""

    async def read(self) -> bytes:
        raise grpc.aio.InternalError("Failed grpc_call_start_batch")

    async def write(self, message: bytes) -> None:
        raise grpc.aio.InternalError("Failed grpc_call_start_batch")


async def test_a_link_whose_client_has_gone_breaks_as_it_writes() -> None:
    link: GrpcLink[bytes, bytes] = GrpcLink(Departed())
    link.send(b"too late")
    await asyncio.wait_for(link.finish(), 20)
    assert "InternalError" in await link.wait_broken()


async def test_a_link_whose_client_has_gone_breaks_as_it_reads() -> None:
    link: GrpcLink[bytes, bytes] = GrpcLink(Departed())
    with pytest.raises(LinkBrokenError, match="InternalError"):
        await link.receive()


async def test_what_was_queued_before_finish_arrives_however_late_it_is_read() -> None:
    sent = [b"%d" % number * 1000 for number in range(2_000)]

    async def say_all(link: GrpcLink[bytes, bytes]) -> None:
        for message in sent:
            link.send(message)
        await link.finish()
        with pytest.raises(LinkBrokenError, match="finished"):
            link.send(b"too late")

    async with connected(say_all) as link:
        assert [await link.receive() for _ in sent] == sent
        with pytest.raises(LinkBrokenError, match="closed by peer"):
            await link.receive()


@asynccontextmanager
async def connected(
    serve: Serve, parse: Callable[[bytes], Any] | None = None
) -> AsyncIterator[GrpcLink[bytes, bytes]]:
    async def handler(requests: Any, context: Any) -> None:
        server_link: GrpcLink[bytes, bytes] = GrpcLink(context)
        try:
            await serve(server_link)
        finally:
            server_link.close()

    server = grpc.aio.server()
    method: grpc.RpcMethodHandler[bytes, bytes] = grpc.stream_stream_rpc_method_handler(handler)
    service = grpc.method_handlers_generic_handler("t.T", {"Go": method})
    server.add_generic_rpc_handlers((service,))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            link: GrpcLink[bytes, bytes] = GrpcLink(
                channel.stream_stream("/t.T/Go", response_deserializer=parse)()
            )
            yield link
            link.close()
    finally:
        await server.stop(None)
