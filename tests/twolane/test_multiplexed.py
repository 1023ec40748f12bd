"""The SDK's one stream for all its requests: nobody is in another's way, and old routers are asked
as before."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest

from twolane.aclient import AsyncClient
from twolane.calls.door import Door
from twolane.calls.multiplexed import Multiplexer
from twolane.errors import CancelledError, DeadlineError, TwolaneError, UnavailableError
from twolane.router.config import ServerConfig
from twolane.router.doors.server import RouterServer
from twolane.router.testing.cluster import ScriptedCluster
from twolane.router.testing.rows import expected_answer
from twolane.router.testing.served import serve_cluster
from twolane.security.target import Target
from twolane.v1 import inference_pb2

GRACE_S = 60.0
QUICK: dict[str, Any] = {"prefill_s": 0.0, "transfer_s": 0.0, "step_s": 0.0}


@asynccontextmanager
async def served(**knobs: Any) -> AsyncIterator[tuple[AsyncClient, RouterServer, ScriptedCluster]]:
    place = ServerConfig(stop_grace_s=GRACE_S, metrics_port=None)
    async with (
        serve_cluster("p0", "d0", server_config=place, **knobs) as (server, cluster),
        AsyncClient(server.address) as client,
    ):
        yield client, server, cluster


def streams_of(client: AsyncClient) -> list[Any]:
    (door,) = client._doors.all
    return [stream for each in door._multiplexers.values() for stream in each._streams]


async def until_free(server: RouterServer) -> None:
    async with asyncio.timeout(60.0):
        while server.router.status().requests:
            await asyncio.sleep(0.01)


async def test_many_requests_go_on_one_stream_and_each_gets_its_own_answer() -> None:
    async with served(step_s=0.01) as (client, _, _):
        answers = await asyncio.gather(
            *(client.generate(token_ids=[n, 3], max_tokens=9) for n in range(1, 41))
        )
        for n, answer in enumerate(answers, start=1):
            assert list(answer.token_ids) == expected_answer([n, 3], 9)
            assert answer.ledger.output_tokens == 9
        assert len(streams_of(client)) == 1
        assert client._doors.all[0].multiplexer._refused_until == 0.0


async def test_a_stream_that_is_not_read_is_in_nobodys_way() -> None:
    async with served(**QUICK) as (client, _, _):
        slow = client.stream(token_ids=[1], max_tokens=1900, temperature=0)
        await anext(slow)
        other = await client.generate(token_ids=[2], max_tokens=1900, temperature=0)
        assert list(other.token_ids) == expected_answer([2], 1900)
        rest = await slow.completion()
        assert list(rest.token_ids) == expected_answer([1], 1900)


async def test_a_cancelled_stream_frees_its_request_and_the_others_go_on() -> None:
    async with served(step_s=0.01) as (client, server, _):
        other = asyncio.create_task(client.generate(token_ids=[2], max_tokens=60))
        async with client.stream(token_ids=[1], max_tokens=1900) as stream:
            await anext(stream)
        await other
        await until_free(server)
        assert server.router.status().counters["cancelled"] == 1


async def test_a_deadline_ends_one_request_even_if_the_router_says_nothing() -> None:
    async with served(prefill_s=60.0) as (client, server, _):
        with pytest.raises(DeadlineError):
            await client.generate(token_ids=[1], max_tokens=5, timeout_s=0.3)
        await until_free(server)


async def test_errors_are_those_of_the_request() -> None:
    async with served(**QUICK) as (client, _, _):
        with pytest.raises(TwolaneError, match="no worker serves"):
            await client.generate(token_ids=[1], model="nobody's", max_tokens=3)
        await client.generate(token_ids=[1], max_tokens=3)
        assert len(streams_of(client)) == 1, "the stream is as good as before"


async def test_closing_the_client_cancels_what_runs() -> None:
    async with served(step_s=0.02) as (client, server, _):
        running = asyncio.create_task(client.generate(token_ids=[1], max_tokens=1900))
        while not server.router.status().requests:
            await asyncio.sleep(0.01)
        await client.close()
        with pytest.raises(CancelledError):
            await running
        await until_free(server)
        assert server.router.status().counters["cancelled"] == 1


async def test_closing_the_client_cancels_what_has_just_begun() -> None:
    async with served() as (client, _, _):
        running = [client.stream(token_ids=[1], max_tokens=9) for _ in range(2)]
        await client.close()  # before a task of theirs has run
        for stream in running:
            async with asyncio.timeout(60):
                with pytest.raises(CancelledError):
                    await anext(stream)


async def test_a_large_request_goes_alone() -> None:
    async with served(**QUICK) as (client, _, _):
        with pytest.raises(TwolaneError, match="600000"):
            await client.generate(token_ids=[300] * 600_000, max_tokens=2)
        assert not streams_of(client)


async def test_a_router_that_stops_answers_what_runs_and_refuses_what_comes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("twolane.router.doors.multiplex._CLOSE_S", 1000.0)
    async with served(step_s=0.02) as (client, server, _):
        running = asyncio.create_task(client.generate(token_ids=[1], max_tokens=50))
        while not server.router.status().requests:
            await asyncio.sleep(0.01)
        stopping = asyncio.create_task(server.__aexit__(None, None, None))
        while not server.router._is_stopping:
            await asyncio.sleep(0.01)
        async with asyncio.timeout(GRACE_S / 2):  # the client closes its side
            with pytest.raises(UnavailableError):
                await client.generate(token_ids=[2], max_tokens=3)
        assert len((await running).token_ids) == 50
        await asyncio.wait({stopping}, timeout=GRACE_S / 2)
        assert stopping.done(), "the client has not closed its side"


async def test_a_stream_that_has_served_for_long_gives_way_to_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("twolane.calls.multiplexed.FRESH_S", 0.05)
    async with served(step_s=0.01) as (client, _, _):
        async with client.stream(token_ids=[1], max_tokens=60) as first:
            await anext(first)
            await asyncio.sleep(0.06)
            await client.generate(token_ids=[2], max_tokens=3)
            assert len(streams_of(client)) == 2
            assert len((await first.completion()).token_ids) == 60
        async with asyncio.timeout(60.0):
            while not all(stream.is_over for stream in streams_of(client)):
                await asyncio.sleep(0.01)


class EndingStream:
    """A stream that brings a token of each of two answers, and then ends with `end`."""

    def __init__(self, end: Any) -> None:
        self._says = iter([_TWO_TOKENS, end])
        self._is_asked = asyncio.Event()

    async def write(self, message: Any) -> None:
        self._is_asked.set()

    async def read(self) -> Any:
        await self._is_asked.wait()
        said = next(self._says)
        if isinstance(said, Exception):
            raise said
        return said

    async def done_writing(self) -> None:
        pass


_TWO_TOKENS = inference_pb2.MultiplexResponse(
    answers=[1, 2], first_indexes=[0, 0], texts=["", ""], token_ids=[7, 7]
)
_LOST = grpc.aio.AioRpcError(
    grpc.StatusCode.UNAVAILABLE, grpc.aio.Metadata(), grpc.aio.Metadata(), "Socket closed"
)


@pytest.mark.parametrize("end", [grpc.aio.EOF, _LOST], ids=["closed", "lost"])
async def test_each_answer_of_a_stream_that_ends_has_an_error_of_its_own(end: Any) -> None:
    """One that several raise would keep the frames of all who caught it."""
    stream = EndingStream(end)

    def generate(*request: object) -> Any:
        raise AssertionError("the stream has answered both")

    multiplexer = Multiplexer(lambda: stream, generate)
    calls = [multiplexer.start(inference_pb2.GenerateRequest(), None) for _ in range(2)]
    errors = []
    for call in calls:
        assert len((await anext(aiter(call))).tokens) == 1
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await anext(aiter(call))
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        errors.append(caught.value)
    assert errors[0] is not errors[1]
    assert errors[0].details() == errors[1].details()


async def test_unanswered_calls_of_a_stream_that_ends_on_a_retired_channel_fail() -> None:
    """The channel takes no call of `Generate` in their place."""
    has_come, may_end = asyncio.Event(), asyncio.Event()

    async def multiplex(requests: Any, context: Any) -> None:
        await context.read()
        has_come.set()
        await may_end.wait()

    server = grpc.aio.server()
    handler: Any = grpc.stream_stream_rpc_method_handler(multiplex)
    service = "twolane.v1.InferenceService"
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(service, {"Multiplex": handler}),)
    )
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    door = Door(Target(f"127.0.0.1:{port}"))
    calls = [door.multiplexer.start(inference_pb2.GenerateRequest(), None) for _ in range(2)]
    async with asyncio.timeout(60):
        await has_come.wait()
        door.retire()
        await asyncio.sleep(0.01)  # from now on
        may_end.set()
        for call in calls:
            with pytest.raises(grpc.aio.AioRpcError, match="UNAVAILABLE"):
                await anext(aiter(call))
    await door.close()
    await server.stop(None)
