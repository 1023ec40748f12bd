"""The gate at inner ports."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from twolane.errors import InternalError
from twolane.rpc.errors import from_rpc_error
from twolane.rpc.handlers import streams, unary
from twolane.rpc.link import GrpcLink
from twolane.rpc.log_rate import LogRate
from twolane.rpc.secret import METADATA_KEY, new_secret, shown
from twolane.security.gate import Gate
from twolane.v1 import worker_pb2

SECRET = new_secret()
SERVICE = "twolane.v1.WorkerService"


async def inspect(request: Any, context: Any) -> worker_pb2.InspectResponse:
    return worker_pb2.InspectResponse(model="m")


async def session(context: Any) -> None:
    link: GrpcLink[Any, Any] = GrpcLink(context)
    await link.receive()
    link.close()


@pytest.fixture
async def gated() -> AsyncIterator[tuple[Any, Gate]]:
    gate = Gate("the port", is_private=True, secret=SECRET)
    server = grpc.aio.server(interceptors=[gate])
    methods: dict[str, Any] = {
        "Inspect": unary(worker_pb2.InspectRequest, inspect),
        "Session": streams(worker_pb2.SessionRequest, session),
        "Unheard": unary(worker_pb2.InspectRequest, inspect),  # not in the table of roles
    }
    handler = grpc.method_handlers_generic_handler(SERVICE, methods)
    check = {"Check": unary(worker_pb2.InspectRequest, inspect)}
    health = grpc.method_handlers_generic_handler("grpc.health.v1.Health", check)
    server.add_generic_rpc_handlers((handler, health))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield channel, gate
    await server.stop(None)


@pytest.mark.parametrize(
    "metadata",
    [(), shown("0" * 64), shown(SECRET[:-1]), shown(SECRET + "0"), ((METADATA_KEY, ""),)],
    ids=["none", "another", "too short", "too long", "empty"],
)
async def test_without_the_secret_a_call_is_unauthenticated_at_once(
    gated: tuple[Any, Gate], metadata: Any
) -> None:
    channel, gate = gated
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await channel.unary_unary(f"/{SERVICE}/Inspect")(b"", metadata=metadata)
    assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
    stream = channel.stream_stream(f"/{SERVICE}/Session")(metadata=metadata)
    async with asyncio.timeout(60.0):  # though not a message is sent
        assert await stream.code() is grpc.StatusCode.UNAUTHENTICATED
    assert gate.refused == {"unauthenticated.Inspect": 1, "unauthenticated.Session": 1}


async def test_who_shows_the_secret_is_let_in(gated: tuple[Any, Gate]) -> None:
    channel, gate = gated
    raw = await channel.unary_unary(f"/{SERVICE}/Inspect")(b"", metadata=shown(SECRET))
    assert worker_pb2.InspectResponse.FromString(raw).model == "m"
    assert not gate.refused


async def test_health_asks_for_no_secret(gated: tuple[Any, Gate]) -> None:
    channel, _ = gated
    await channel.unary_unary("/grpc.health.v1.Health/Check")(b"")


async def test_a_method_that_is_not_in_the_table_is_for_nobody(gated: tuple[Any, Gate]) -> None:
    channel, gate = gated
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await channel.unary_unary(f"/{SERVICE}/Unheard")(b"", metadata=shown(SECRET))
    assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED
    assert gate.refused == {"denied.Unheard": 1}


async def test_a_method_that_does_not_exist_is_told_to_those_who_may_ask(
    gated: tuple[Any, Gate],
) -> None:
    channel, gate = gated
    for name in ("A", "B"):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await channel.unary_unary(f"/{SERVICE}/{name}")(b"", metadata=shown(SECRET))
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await channel.unary_unary(f"/{SERVICE}/{name}")(b"")
        assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
    assert not gate._guarded, "callers choose these names, so none is kept"


async def test_the_log_has_one_line_of_many_refusals(
    gated: tuple[Any, Gate], caplog: pytest.LogCaptureFixture
) -> None:
    channel, gate = gated
    caplog.set_level(logging.WARNING)
    for _ in range(20):
        with pytest.raises(grpc.aio.AioRpcError):
            await channel.unary_unary(f"/{SERVICE}/Inspect")(b"")
    assert gate.refused == {"unauthenticated.Inspect": 20}
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith("the port refused 1 calls; the last: /twolane.v1.WorkerService/Inspect")
    assert SECRET not in line


def test_of_alike_records_one_in_ten_seconds_is_written_and_tells_of_the_others() -> None:
    rate = LogRate()
    assert [rate.take("a", now) for now in (0.0, 1.0, 9.9)] == [1, 0, 0]
    assert rate.take("b", 1.0) == 1
    assert [rate.take("a", now) for now in (10.0, 12.0)] == [3, 0]
    for kind in range(5_000):
        assert rate.take(kind, 20.0) == 1
    assert len(rate._due) <= 1_000


@pytest.fixture
async def faulty() -> AsyncIterator[Any]:
    """A channel to a server whose handlers have bugs."""

    async def no_descriptor(request: Any, context: Any) -> worker_pb2.InspectResponse:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), "/a/secret/path")

    async def writes_twice_at_once(context: Any) -> None:
        large = worker_pb2.SessionResponse(rows=[worker_pb2.RowEvent(message="x" * 1_000_000)])
        await context.write(large)
        await asyncio.gather(*(context.write(large) for _ in range(40)))  # before any is read

    async def aborts(request: Any, context: Any) -> worker_pb2.InspectResponse:
        await context.abort(grpc.StatusCode.NOT_FOUND, "no such thing")
        raise AssertionError("abort raises")

    server = grpc.aio.server(interceptors=[Gate("the port", is_private=True, secret=SECRET)])
    methods: dict[str, Any] = {
        "Inspect": unary(worker_pb2.InspectRequest, no_descriptor),
        "Session": streams(worker_pb2.SessionRequest, writes_twice_at_once),
        "AnswerAlone": unary(worker_pb2.InspectRequest, aborts),
    }
    handler = grpc.method_handlers_generic_handler(SERVICE, methods)
    server.add_generic_rpc_handlers((handler,))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    unbounded = [("grpc.max_receive_message_length", -1)]
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=unbounded) as channel:
        yield channel
    await server.stop(None)


async def test_an_unexpected_exception_is_an_internal_error_that_says_where_its_traceback_is(
    faulty: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await faulty.unary_unary(f"/{SERVICE}/Inspect")(b"", metadata=shown(SECRET))
    assert caught.value.code() is grpc.StatusCode.INTERNAL
    error = from_rpc_error(caught.value)
    assert isinstance(error, InternalError)
    assert error.message == (
        "the port could not answer Inspect (Too many open files); the log of its process has the "
        "traceback"
    )
    assert error.metadata == {"method": "Inspect", "listener": "the port"}
    assert "Traceback" in caplog.text
    assert "/a/secret/path" in caplog.text


async def test_two_writes_at_once_end_the_call_with_an_error_and_not_its_clients_wait(
    faulty: Any, caplog: pytest.LogCaptureFixture
) -> None:
    stream = faulty.stream_stream(f"/{SERVICE}/Session")(metadata=shown(SECRET), timeout=30.0)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        async for _ in stream:
            pass
    assert caught.value.code() is grpc.StatusCode.INTERNAL
    assert "the port could not answer Session (ExecuteBatchError)" in str(caught.value.details())
    assert "TOO_MANY_OPERATIONS" in caplog.text


async def test_what_a_handler_answers_itself_is_no_fault(
    faulty: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await faulty.unary_unary(f"/{SERVICE}/AnswerAlone")(b"", metadata=shown(SECRET))
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND
    assert not caplog.text
