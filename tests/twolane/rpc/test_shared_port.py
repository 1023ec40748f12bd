import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest

from twolane.rpc.call_gate import CallGate, CallGateConfig
from twolane.rpc.channel_options import CHANNEL_OPTIONS
from twolane.rpc.handlers import unary
from twolane.rpc.shared_port import SERVERS, SharedPort
from twolane.v1 import inference_pb2

REQUEST = inference_pb2.CancelRequest(request_id="a").SerializeToString()


def shared(connections: int = 8192) -> SharedPort:
    return SharedPort(message_bytes=1 << 20, connections=connections, idle_s=60.0)


@asynccontextmanager
async def serving() -> AsyncIterator[int]:
    async def handle(request: Any, context: Any) -> inference_pb2.CancelResponse:
        return inference_pb2.CancelResponse(found=True)

    method = unary(inference_pb2.CancelRequest, handle, CallGate(CallGateConfig()))
    servers = shared()
    servers.add_handlers([grpc.method_handlers_generic_handler("t.T", {"Call": method})])
    port = servers.bind("127.0.0.1", 0)
    await servers.start()
    try:
        yield port
    finally:
        await servers.stop(None)


async def test_calls_of_all_connections_are_answered_whichever_server_has_them() -> None:
    async def ask(port: int) -> bytes:
        target = f"127.0.0.1:{port}"
        async with grpc.aio.insecure_channel(target, options=CHANNEL_OPTIONS) as channel:
            call: Any = channel.unary_unary("/t.T/Call")
            answer: bytes = await call(REQUEST)
            return answer

    async with serving() as port:
        answers = await asyncio.gather(*(ask(port) for _ in range(4 * SERVERS)))
    wanted = inference_pb2.CancelResponse(found=True).SerializeToString()
    assert answers == [wanted] * (4 * SERVERS)


async def test_a_port_that_another_door_shares_among_its_servers_is_in_use() -> None:
    async with serving() as port:
        with pytest.raises(OSError, match="in use"):
            shared().bind("127.0.0.1", port)


@pytest.mark.parametrize(("connections", "servers"), [(8192, SERVERS), (128, 2), (2, 1)])
async def test_no_more_connections_than_asked_for_are_shared_out(
    connections: int, servers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    bounds = []
    make = grpc.aio.server

    def seen(*, options: Any, interceptors: Any) -> grpc.aio.Server:
        bounds.append(dict(options)["grpc.max_allowed_incoming_connections"])
        return make(options=options, interceptors=interceptors)

    monkeypatch.setattr(grpc.aio, "server", seen)
    shared(connections)
    assert len(bounds) == servers
    assert sum(bounds) == connections
