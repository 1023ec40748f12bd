"""A client that leaves while a router is asked to continue its answer leaves nothing behind."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from tests.twolane.test_lost_calls import FIRST, LOST, TOKEN, UNKNOWN, Router, run
from tests.twolane.test_resuming import RouterDouble, two_routers
from twolane.aclient import AsyncClient
from twolane.calls.door import Doors
from twolane.calls.resuming import ResumingCall
from twolane.errors import CancelledError
from twolane.security.target import Target
from twolane.v1 import inference_pb2, inference_pb2_grpc

WITHIN_S = 20.0


class SlowRouter(RouterDouble):
    """Does not answer a Resume."""

    def __init__(self) -> None:
        super().__init__()
        self.is_asked, self.is_cancelled = asyncio.Event(), asyncio.Event()

    async def Resume(self, request: Any, context: Any) -> AsyncIterator[Any]:
        self.is_asked.set()
        try:
            await asyncio.Event().wait()
            yield
        except asyncio.CancelledError:
            self.is_cancelled.set()
            raise


async def test_a_stream_that_is_closed_during_a_takeover_cancels_the_resume() -> None:
    server, slow = grpc.aio.server(), SlowRouter()
    inference_pb2_grpc.add_InferenceServiceServicer_to_server(slow, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with (
            two_routers() as (_, one, _),
            AsyncClient(f"{one.address},127.0.0.1:{port}") as client,
            asyncio.timeout(WITHIN_S),
        ):
            client._doors._at, one.breaks_after = 1, 3
            stream = client.stream(token_ids=[1])
            reading = asyncio.create_task(stream.completion())
            await slow.is_asked.wait()
            await stream.aclose()
            await slow.is_cancelled.wait()
            with pytest.raises(CancelledError, match="closed before its end"):
                await reading
            assert not slow.generates
    finally:
        await server.stop(None)


def test_an_answer_that_is_cancelled_as_its_router_has_lost_it_is_not_asked_for_again() -> None:
    class Leaving(Router):
        """Its client leaves while a Resume is under way."""

        def Resume(self, request: Any, timeout: float | None, metadata: object) -> Any:
            calls[0].cancel()
            return super().Resume(request, timeout, metadata)

    calls: list[ResumingCall] = []
    other = Leaving([UNKNOWN])

    async def read() -> None:
        doors = Doors([Target("r0:1"), Target("r1:1")])
        doors._at = 1
        calls.append(ResumingCall(doors, inference_pb2.GenerateRequest(), None))
        with pytest.raises(asyncio.CancelledError):
            async for _ in calls[0]:
                pass

    run(read(), (Router([FIRST, TOKEN, LOST]), other))
    assert other.n_asked == 1, "a new request has begun"
