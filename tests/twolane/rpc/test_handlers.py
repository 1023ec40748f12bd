"""What a call leaves behind once it has ended."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from twolane.errors import OverloadedError
from twolane.rpc.handlers import streams, unary_stream
from twolane.security.gate import Gate
from twolane.security.identity import ANONYMOUS
from twolane.v1 import inference_pb2

PATH = "/twolane.v1.InferenceService/Cancel"


class Waiting:
    """A request that keeps the error that ended it."""

    def __init__(self) -> None:
        self.error = OverloadedError("refused", retry_after_s=1.0)


@pytest.fixture
def no_collector() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize("when", ["before the message is read", "after it"])
async def test_a_refused_call_is_freed_without_the_garbage_collector(
    no_collector: None, when: str
) -> None:
    """It would collect 45 objects and the call for each refusal, for 100 ms at a time."""
    freed = asyncio.Event()

    def refuse(context: Any) -> None:
        waiting = Waiting()
        weakref.finalize(waiting, freed.set)
        raise waiting.error

    async def handle(request: inference_pb2.CancelRequest, context: Any) -> None:
        refuse(context)

    def accept(context: Any) -> None:
        pass

    check = refuse if when == "before the message is read" else accept
    method = unary_stream(inference_pb2.CancelRequest, handle, check=check)
    gate = Gate("a door", is_private=True, anonymous=ANONYMOUS)
    server = grpc.aio.server(interceptors=[gate])
    services = grpc.method_handlers_generic_handler(
        "twolane.v1.InferenceService", {"Cancel": method}
    )
    server.add_generic_rpc_handlers((services,))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            call: Any = channel.unary_stream(PATH)
            with pytest.raises(grpc.aio.AioRpcError, match="refused") as caught:
                await call(b"").read()
            assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        async with asyncio.timeout(60.0):
            await freed.wait()
    finally:
        await server.stop(None)


async def test_a_stream_whose_client_has_gone_is_cancelled_and_no_bug() -> None:
    async def write(context: Any) -> None:
        raise grpc.aio.InternalError("Failed grpc_call_start_batch")

    method: Any = streams(inference_pb2.CancelRequest, write)
    with pytest.raises(asyncio.CancelledError):
        await method.stream_stream(None, None)
