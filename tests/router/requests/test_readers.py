"""Clients that do not read: bounded in bytes and time, told why, and of no harm to others."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import grpc
import pytest

from tests import h2
from tests.router.freed import until_free
from tests.router.members.test_own_pause import stop_for
from tests.router.test_tables import request
from twolane.errors import CancelledError
from twolane.router.config import ReadersConfig, RouterConfig, ServerConfig
from twolane.router.requests.slow_readers import Readers
from twolane.router.router import Router
from twolane.router.testing.client import ask, message, play
from twolane.router.testing.cluster import ScriptedCluster
from twolane.router.testing.rows import expected_answer
from twolane.router.testing.served import serve_cluster
from twolane.rpc.errors import from_rpc_error
from twolane.v1 import inference_pb2, inference_pb2_grpc

GENERATE = "/twolane.v1.InferenceService/Generate"
LONG = message([1], max_tokens=1900)
SMALL_WINDOW = [("grpc.http2.lookahead_bytes", 1), ("grpc.http2.bdp_probe", 0)]
SOON = RouterConfig(readers=ReadersConfig(unread_bytes=3_000, pause_s=0.1, unread_s=60.0))


async def read_slowly(
    answer: AsyncGenerator[inference_pb2.GenerateResponse, None], pause_s: float
) -> list[int]:
    tokens: list[int] = []
    async for response in answer:
        tokens += [token.token_id for token in response.tokens]
        await asyncio.sleep(pause_s)
    return tokens


def config(**bounds: Any) -> RouterConfig:
    return RouterConfig(readers=ReadersConfig(**bounds))


def test_a_client_that_reads_nothing_for_long_loses_its_request_and_hears_why() -> None:
    async def script(router: Router, cluster: ScriptedCluster) -> None:
        async with aclosing(router.generate(LONG)) as answer:
            await anext(answer)
            await asyncio.sleep(5.2)
            assert not router.status().requests
            assert not cluster.workers["d0"].rows
            with pytest.raises(CancelledError, match=r"read nothing for 5\.[01] s") as caught:
                await anext(answer)
        assert caught.value.metadata["waited_s"].startswith("5.")
        assert int(caught.value.metadata["unread_bytes"]) > 0

    play(script, config=config(unread_s=5.0, unread_bytes=10**9))


def test_a_client_that_is_too_far_behind_loses_its_request_after_a_pause() -> None:
    async def script(router: Router, cluster: ScriptedCluster) -> None:
        request = message([1], max_tokens=1900, top_logprobs=20)
        async with aclosing(router.generate(request)) as answer:
            await anext(answer)
            await asyncio.sleep(0.9)
            assert router.status().requests
            await asyncio.sleep(0.3)
            assert not router.status().requests
            with pytest.raises(CancelledError, match="bytes of its answer wait"):
                await anext(answer)

    play(script, config=config(unread_bytes=1000))


def test_a_client_that_reads_slowly_gets_all_of_its_answer() -> None:
    async def script(router: Router, cluster: ScriptedCluster) -> None:
        async with aclosing(router.generate(LONG)) as answer:
            assert await read_slowly(answer, 0.9) == expected_answer([1], 1900)

    play(script, config=config(unread_bytes=1000, unread_s=1.5))


@pytest.mark.parametrize(("paused_s", "is_cut"), [(0.45, True), (2.0, False), (40.0, False)])
def test_a_pause_of_the_router_is_none_of_its_clients(paused_s: float, is_cut: bool) -> None:
    async def script(router: Router, cluster: ScriptedCluster) -> None:
        async with aclosing(router.generate(LONG)) as answer:
            await anext(answer)
            await asyncio.sleep(0.7)
            stop_for(paused_s)
            await asyncio.sleep(0.06)  # it has looked at its readers since
            assert bool(router.status().requests) is not is_cut
            await asyncio.sleep(0.4)
            assert not router.status().requests, "it has read nothing since, either"

    play(script, config=config(unread_bytes=1000))


def test_a_write_that_begins_after_a_pause_is_excused_for_none_of_it() -> None:
    """It began before the router took note of its pause."""
    readers, late = Readers(ReadersConfig(pause_s=1.0, unread_s=2.0)), request("late")
    readers.begin(late, now=10.0)
    readers.excuse(5.0, now=10.0)
    assert not readers.cut(11.9)
    assert [ended for ended, _ in readers.cut(12.0)] == [late]


def test_an_answer_that_is_complete_is_not_kept_for_a_client_that_does_not_read_it() -> None:
    async def script(router: Router, cluster: ScriptedCluster) -> None:
        async with aclosing(router.generate(message([1], max_tokens=20))) as answer:
            await anext(answer)
            await asyncio.sleep(20.0)
            assert not router.status().requests
            with pytest.raises(CancelledError):
                await anext(answer)

    play(script, config=config(unread_s=10.0))


def test_others_are_answered_meanwhile_and_nothing_is_left_of_readers_that_leave() -> None:
    async def script(router: Router, cluster: ScriptedCluster) -> None:
        answers = [router.generate(LONG) for _ in range(3)]
        for answer in answers:
            await anext(answer)
        outcome = await ask(router, message([7], max_tokens=30))
        assert outcome.tokens == expected_answer([7], 30)
        await asyncio.sleep(3.0)
        for answer in answers:
            await answer.aclose()
        assert not router._deliveries.readers._writes
        assert not router._deliveries.readers._cut

    play(script, config=config(unread_s=2.0))


def test_an_answer_that_was_cut_is_shown_with_the_reason() -> None:
    async def script(router: Router, cluster: ScriptedCluster) -> None:
        async with aclosing(router.generate(LONG)) as answer:
            await anext(answer)
            await asyncio.sleep(5.2)
            (cut,) = router._dispatcher.board.ended
            assert (cut.state, cut.finish, cut.detail) == ("cancelled", "cancelled", "unread")

    play(script, config=config(unread_s=5.0))


async def read_on(call: Any) -> None:
    async with asyncio.timeout(30.0):
        while await call.read() is not grpc.aio.EOF:
            pass


async def test_a_grpc_client_that_stops_reading_hears_why_when_it_reads_on() -> None:
    place = ServerConfig(stop_grace_s=0.2, metrics_port=None)
    async with (
        serve_cluster("p0", "d0", config=SOON, server_config=place) as (server, cluster),
        grpc.aio.insecure_channel(server.address, options=SMALL_WINDOW) as channel,
    ):
        stub = inference_pb2_grpc.InferenceServiceStub(channel)
        call = stub.Generate(LONG)
        await call.read()
        await until_free(server, cluster)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await read_on(call)
        error = from_rpc_error(caught.value)
        assert isinstance(error, CancelledError)
        assert "the client has read nothing for" in error.message
        good = [response async for response in stub.Generate(message([1], max_tokens=3))]
        assert good[-1].finish_reason


async def test_clients_that_grant_no_window_at_all_hold_no_worker_and_no_one_up() -> None:
    place = ServerConfig(stop_grace_s=0.2, metrics_port=None)
    raw = LONG.SerializeToString()
    async with (
        serve_cluster("p0", "d0", config=SOON, server_config=place) as (server, cluster),
        grpc.aio.insecure_channel(server.address) as channel,
        asyncio.TaskGroup() as tasks,
    ):
        host, _, port = server.address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(h2.hello(window=0))
        for stream in range(1, 21, 2):
            writer.write(h2.call(GENERATE, stream) + h2.message(raw, stream))
        tasks.create_task(h2.answer_pings(reader, writer))
        async with asyncio.timeout(30.0):
            while server.router.status().counters["cancelled"] < 10:
                await asyncio.sleep(0.01)
        await until_free(server, cluster)
        assert server.router.status().counters["cancelled"] == 10, "none was answered to its end"
        stub = inference_pb2_grpc.InferenceServiceStub(channel)
        good = [response async for response in stub.Generate(message([1], max_tokens=3))]
        assert good[-1].finish_reason
        writer.close()
