"""A multiplexed stream whose client does not read is bounded, whatever the client still writes."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

from google.rpc import status_pb2

from tests.router.freed import until_free
from tests.until import until
from twolane.router.config import ReadersConfig, RouterConfig
from twolane.router.deliveries import Delivery
from twolane.router.doors.multiplex import Multiplexed
from twolane.router.testing.client import message
from twolane.router.testing.served import serve_cluster
from twolane.rpc.call_gate import CallGate, CallGateConfig
from twolane.v1 import inference_pb2

QUICK: dict[str, Any] = {"prefill_s": 0.0, "transfer_s": 0.0, "step_s": 0.0}


class _Unread:
    """A gRPC context whose client reads once it is told to."""

    def __init__(self) -> None:
        self.requests: asyncio.Queue[Any] = asyncio.Queue()
        self.reads = asyncio.Event()
        self.messages: list[inference_pb2.MultiplexResponse] = []

    def peer(self) -> str:
        return "client"

    async def read(self) -> Any:
        return await self.requests.get()

    async def write(self, message: inference_pb2.MultiplexResponse) -> None:
        await self.reads.wait()
        self.messages.append(message)

    def answers(self) -> list[int]:
        return [part.answer for message in self.messages for part in message.parts]


async def test_an_answer_that_is_started_while_nothing_is_read_is_bounded_too() -> None:
    readers = ReadersConfig(unread_s=0.3, pause_s=0.1)
    async with serve_cluster("p0", "d0", config=RouterConfig(readers=readers), **QUICK) as (
        server,
        cluster,
    ):
        router, context = server.router, _Unread()

        async def open_answer(start: inference_pb2.AnswerStart) -> Delivery:
            return await router.open(start.generate)

        def start(answer: int) -> None:
            asked = message([answer], max_tokens=30)
            starts = [inference_pb2.AnswerStart(answer=answer, generate=asked)]
            context.requests.put_nowait(inference_pb2.MultiplexRequest(starts=starts))

        stream = Multiplexed(context, CallGate(CallGateConfig()), open_answer)
        running = asyncio.create_task(stream.run())
        start(1)
        await until(lambda: stream._is_stalled, "nothing is read")
        start(2)
        await until(lambda: len(router._deliveries.readers._cut) == 2, "both are cut", 20.0)
        await until_free(server, cluster)
        context.reads.set()
        await until(lambda: not stream._answers and not stream._message, "all is written")
        last = [part for told in context.messages for part in told.parts][-1]
        assert last.answer == 2
        assert "the client has read nothing" in status_pb2.Status.FromString(last.status).message
        await _end(running)


async def test_refusals_that_are_not_read_are_bounded_and_come_when_they_are() -> None:
    async def never(start: inference_pb2.AnswerStart) -> Delivery:
        await asyncio.Event().wait()
        raise AssertionError("it is not admitted")

    context = _Unread()
    stream = Multiplexed(context, CallGate(CallGateConfig(calls_per_connection=3)), never)
    starts = [inference_pb2.AnswerStart(answer=n) for n in range(1, 10_001)]
    running = asyncio.create_task(stream.run())
    context.requests.put_nowait(inference_pb2.MultiplexRequest(starts=starts[:4]))
    await until(lambda: stream._is_stalled, "nothing is read")
    context.requests.put_nowait(inference_pb2.MultiplexRequest(starts=starts[4:]))
    await until(lambda: stream._highest > 9, "starts are refused")
    await asyncio.sleep(0.2)  # as many as may be
    assert len(stream._message._parts) <= 6
    context.reads.set()
    await until(lambda: len(context.answers()) == 9_997, "all is written")
    assert context.answers() == list(range(4, 10_001))
    await _end(running)


async def _end(running: asyncio.Task[None]) -> None:
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running
