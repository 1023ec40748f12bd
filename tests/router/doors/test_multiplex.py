"""Many answers on one gRPC stream: each is what a call of its own would have been."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import grpc
import pytest
from google.rpc import status_pb2

from tests.own_time import own_time
from tests.router.freed import until_free
from tests.until import WITHIN_S
from twolane.router.config import GrpcDoorConfig, ReadersConfig, RouterConfig, ServerConfig
from twolane.router.doors import multiplex
from twolane.router.doors.answer_message import AnswerMessage
from twolane.router.doors.grpc_door import Door
from twolane.router.doors.multiplex import WINDOW_TOKENS
from twolane.router.doors.server import RouterServer
from twolane.router.requests.piece import Piece
from twolane.router.testing.client import message
from twolane.router.testing.cluster import ScriptedCluster
from twolane.router.testing.rows import expected_answer
from twolane.router.testing.served import serve_cluster
from twolane.rpc.call_gate import CallGateConfig
from twolane.v1 import inference_pb2, inference_pb2_grpc

LONG = message([1], max_tokens=1900)
SMALL_WINDOW = [("grpc.http2.lookahead_bytes", 1), ("grpc.http2.bdp_probe", 0)]
GRACE_S = 60.0
QUICK: dict[str, Any] = {"prefill_s": 0.0, "transfer_s": 0.0, "step_s": 0.0}


class Asking:
    """One stream, and what has come of each answer. It grants what it reads, unless told not to."""

    def __init__(self, server: RouterServer, channel: grpc.aio.Channel) -> None:
        self.server = server
        self.call: Any = inference_pb2_grpc.InferenceServiceStub(channel).Multiplex()
        self.tokens: dict[int, list[int]] = defaultdict(list)
        self.firsts: dict[int, inference_pb2.GenerateResponse] = {}
        self.lasts: dict[int, inference_pb2.GenerateResponse] = {}
        self.statuses: dict[int, status_pb2.Status] = {}
        self.unread: set[int] = set()  # answers that are not granted more
        self.is_told_to_close = False

    async def say(self, **fields: Any) -> None:
        await self.call.write(inference_pb2.MultiplexRequest(**fields))

    async def start(
        self, answer: int, request: inference_pb2.GenerateRequest, timeout_s: float = 0.0
    ) -> None:
        start = inference_pb2.AnswerStart(answer=answer, generate=request, timeout_s=timeout_s)
        await self.say(starts=[start])

    async def read(self) -> bool:
        """One message. False: the stream is over."""
        told = await self.call.read()
        if told is grpc.aio.EOF:
            return False
        self.is_told_to_close = self.is_told_to_close or told.is_ending
        n_before = {answer: len(tokens) for answer, tokens in self.tokens.items()}
        for part in told.parts:
            if part.status:
                self.statuses[part.answer] = status_pb2.Status.FromString(part.status)
            elif part.answer not in self.firsts:
                self.firsts[part.answer] = part.response
            else:
                self.tokens[part.answer] += [token.token_id for token in part.response.tokens]
            if part.response.finish_reason:
                self.lasts[part.answer] = part.response
        at = 0
        for nth, answer in enumerate(told.answers):
            n_tokens = told.counts[nth] if told.counts else 1
            assert told.first_indexes[nth] == len(self.tokens[answer])
            self.tokens[answer] += told.token_ids[at : at + n_tokens]
            at += n_tokens
        reads = [
            inference_pb2.AnswerRead(answer=answer, n_tokens=len(tokens))
            for answer, tokens in self.tokens.items()
            if answer not in self.unread and len(tokens) != n_before.get(answer)
        ]
        if reads:
            await self.say(reads=reads)
        return True

    async def read_until_over(self, *answers: int) -> None:
        async with asyncio.timeout(WITHIN_S):
            while not self.lasts.keys() | self.statuses.keys() >= set(answers):
                assert await self.read()


@asynccontextmanager
async def asking(
    *, grpc_door: GrpcDoorConfig | None = None, options: Any = (), **knobs: Any
) -> AsyncIterator[tuple[Asking, RouterServer, ScriptedCluster]]:
    door = grpc_door or GrpcDoorConfig()
    place = ServerConfig(stop_grace_s=GRACE_S, metrics_port=None, grpc=door)
    async with (
        serve_cluster("p0", "d0", server_config=place, **knobs) as (server, cluster),
        grpc.aio.insecure_channel(server.address, options=options) as channel,
    ):
        stream = Asking(server, channel)
        yield stream, server, cluster
        stream.call.cancel()


def test_pieces_of_many_answers_are_one_message() -> None:
    told = AnswerMessage(window_tokens=9)
    told.add_piece(1, Piece(4, [7], "a"))
    told.add_piece(2, Piece(0, [8], ""))
    first = told.take()
    assert (first.window_tokens, list(first.answers), list(first.counts)) == (9, [1, 2], [])
    told.add_piece(1, Piece(5, [9, 10], "b"))
    told.add_piece(2, Piece(1, [], "c"))
    second = told.take()
    assert (second.window_tokens, list(second.counts)) == (0, [2, 0])
    assert list(second.token_ids) == [9, 10]
    assert list(second.texts) == ["b", "c"]
    assert not told


async def test_answers_are_those_of_single_calls() -> None:
    async with asking(step_s=0.02) as (stream, _, _):
        requests = {n: message([n, 7], max_tokens=20) for n in range(1, 21)}
        for n, request in requests.items():
            await stream.start(n, request)
        await stream.read_until_over(*requests)
        for n in requests:
            assert stream.tokens[n] == expected_answer([n, 7], 20)
            assert stream.firsts[n].submission_id
            assert stream.firsts[n].prompt_tokens == 2
            assert stream.lasts[n].ledger.output_tokens == 20


def test_log_probabilities_go_with_their_tokens() -> None:
    told = AnswerMessage(window_tokens=9)
    told.add_piece(3, Piece(4, [7, 8], "ab", {5: (-0.5, ((8, -0.5), (9, -1.5)))}))
    (part,) = told.take().parts
    assert part.answer == 3
    without, with_them = part.response.tokens
    assert not without.HasField("logprob")
    assert (with_them.index, with_them.token_id, with_them.logprob) == (5, 8, -0.5)
    assert [top.token_id for top in with_them.top_logprobs] == [8, 9]
    assert part.response.text == "ab"


async def test_a_request_that_fails_says_why_and_the_others_go_on() -> None:
    async with asking(**QUICK) as (stream, _, _):
        await stream.start(1, message([1], max_tokens=-5))
        await stream.start(2, message([2], max_tokens=3, request_id="x" * 2000))
        await stream.start(3, message([3], max_tokens=3))
        await stream.read_until_over(1, 2, 3)
        assert stream.statuses[1].code == grpc.StatusCode.INVALID_ARGUMENT.value[0]
        assert "max_tokens" in stream.statuses[1].message
        assert stream.statuses[1].details, "as single calls have them"
        assert 2 in stream.statuses
        assert stream.tokens[3] == expected_answer([3], 3)


async def test_a_deadline_is_of_one_answer() -> None:
    async with asking(step_s=0.05) as (stream, server, cluster):
        await stream.start(1, LONG, timeout_s=0.5)
        await stream.start(2, message([2], max_tokens=30))
        await stream.read_until_over(1, 2)
        assert stream.statuses[1].code == grpc.StatusCode.DEADLINE_EXCEEDED.value[0]
        assert stream.tokens[2] == expected_answer([2], 30)
        await until_free(server, cluster)


async def test_a_cancelled_answer_frees_its_workers_and_no_other() -> None:
    async with asking(step_s=0.02) as (stream, server, cluster):
        await stream.start(1, LONG)
        await stream.start(2, message([2], max_tokens=40))
        while not stream.tokens[1]:
            assert await stream.read()
        await stream.say(cancels=[1, 77])
        await stream.read_until_over(2)
        assert stream.tokens[2] == expected_answer([2], 40)
        await until_free(server, cluster)
        assert server.router.status().counters["cancelled"] == 1


async def test_a_client_that_leaves_takes_all_its_answers_with_it() -> None:
    async with asking(step_s=0.02) as (stream, server, cluster):
        for n in range(1, 6):
            await stream.start(n, LONG)
        while len(stream.tokens) < 5:
            assert await stream.read()
        stream.call.cancel()
        await until_free(server, cluster)
        assert not server.router._deliveries._open


async def test_an_answer_that_is_not_read_stops_at_its_window_and_the_others_go_on() -> None:
    async with asking(**QUICK) as (stream, _, _):
        stream.unread = {1}
        await stream.start(1, LONG)
        await stream.start(2, message([2], max_tokens=1800))
        await stream.read_until_over(2)
        assert stream.tokens[2] == expected_answer([2], 1800)
        async with asyncio.timeout(WITHIN_S):
            while len(stream.tokens[1]) < WINDOW_TOKENS:  # its row may be behind the other's
                assert await stream.read()
        await stream.start(3, message([3], max_tokens=1800))
        await stream.read_until_over(3)
        assert len(stream.tokens[1]) < 1900
        stream.unread = set()
        await stream.say(reads=[inference_pb2.AnswerRead(answer=1, n_tokens=WINDOW_TOKENS)])
        await stream.read_until_over(1)
        assert stream.tokens[1] == expected_answer([1], 1900), "it comes when it is read on"


async def test_an_answer_that_is_not_read_for_long_ends_and_says_why_when_it_is() -> None:
    config = RouterConfig(readers=ReadersConfig(unread_s=0.3, pause_s=0.1))
    async with asking(config=config, **QUICK) as (stream, server, cluster):
        stream.unread = {1}
        await stream.start(1, LONG)
        async with asyncio.timeout(WITHIN_S):
            while len(stream.tokens[1]) < WINDOW_TOKENS:
                assert await stream.read()
        await until_free(server, cluster)
        async with asyncio.timeout(WITHIN_S):
            while not server.router._deliveries.readers._cut:
                await asyncio.sleep(0.01)
        await stream.say(reads=[inference_pb2.AnswerRead(answer=1, n_tokens=WINDOW_TOKENS)])
        await stream.read_until_over(1)
        assert "the client has read nothing" in stream.statuses[1].message


async def test_a_client_that_reads_nothing_at_all_holds_no_worker() -> None:
    readers = ReadersConfig(unread_s=0.5, pause_s=0.1, unread_bytes=2_000)
    async with asking(options=SMALL_WINDOW, config=RouterConfig(readers=readers), **QUICK) as (
        stream,
        server,
        cluster,
    ):
        for n in range(1, 4):
            await stream.start(n, message([n], max_tokens=1900, top_logprobs=20))
        async with asyncio.timeout(WITHIN_S):
            while server.router.status().counters["cancelled"] < 3:
                await asyncio.sleep(0.01)
        await until_free(server, cluster)
        assert server.router.status().counters["cancelled"] == 3
        await stream.read_until_over(1, 2, 3)
        assert "the client has read nothing" in stream.statuses[1].message


async def test_beyond_as_many_as_a_connection_may_have_open_an_answer_is_refused() -> None:
    door = GrpcDoorConfig(calls=CallGateConfig(calls_per_connection=3))
    async with asking(grpc_door=door, step_s=0.02) as (stream, _, _):
        for n in (1, 2, 3):  # the stream is a call too
            await stream.start(n, LONG)
        await stream.read_until_over(3)
        assert stream.statuses[3].code == grpc.StatusCode.RESOURCE_EXHAUSTED.value[0]
        await stream.say(cancels=[1])
        await stream.start(4, message([4], max_tokens=3))
        await stream.read_until_over(4)
        assert stream.tokens[4] == expected_answer([4], 3)


async def test_a_number_that_was_used_ends_the_stream() -> None:
    async with asking(**QUICK) as (stream, server, cluster):
        await stream.start(2, LONG)
        await stream.start(1, LONG)
        with suppress(grpc.aio.AioRpcError):
            while await stream.call.read() is not grpc.aio.EOF:
                pass
        assert await stream.call.code() is grpc.StatusCode.INVALID_ARGUMENT
        await until_free(server, cluster)


async def test_a_stream_ends_when_its_client_asks_no_more_and_all_is_answered() -> None:
    async with asking(**QUICK) as (stream, _, _):
        await stream.start(1, message([1], max_tokens=4))
        await stream.call.done_writing()
        stream.say = lambda **_: asyncio.sleep(0)  # type: ignore[method-assign]
        while await stream.read():
            pass
        assert stream.tokens[1] == expected_answer([1], 4)


async def test_a_router_that_stops_ends_an_idle_stream_at_once_and_answers_what_runs() -> None:
    async with asking(step_s=0.01) as (stream, server, _):
        await stream.start(1, message([1], max_tokens=50))
        while not stream.tokens[1]:
            assert await stream.read()
        with own_time() as took:
            stopping = asyncio.create_task(server.__aexit__(None, None, None))
            await stream.read_until_over(1)
            assert stream.tokens[1] == expected_answer([1], 50)
            async with asyncio.timeout(WITHIN_S):
                while not stream.is_told_to_close:
                    assert await stream.read()
            await stream.call.done_writing()
            assert not await stream.read()
            await stopping
        assert took.s() < 8.0, "not the grace of 60 s"


async def test_a_stream_whose_handler_begins_after_the_router_began_to_stop_ends_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """gRPC starts the handler of a call that has come some turns of the loop later."""
    has_come, is_stopping, multiplexed = asyncio.Event(), asyncio.Event(), Door._multiplex

    async def late(self: Door, *args: Any) -> None:
        has_come.set()
        await is_stopping.wait()
        await multiplexed(self, *args)

    monkeypatch.setattr(Door, "_multiplex", late)
    async with asking(**QUICK) as (stream, server, _):
        await stream.start(1, message([5], max_tokens=3))
        await has_come.wait()
        stopping = asyncio.create_task(server.__aexit__(None, None, None))
        while not server.router._is_stopping:
            await asyncio.sleep(0.01)
        is_stopping.set()
        async with asyncio.timeout(GRACE_S / 2):
            while not stream.is_told_to_close:
                assert await stream.read()
            await stream.call.done_writing()
            await stopping


async def test_a_router_that_stops_waits_for_a_client_that_reads_late(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The client writes once everything was sent to it, and before it has read that."""
    monkeypatch.setattr(multiplex, "_CLOSE_S", 30 * multiplex._CLOSE_S)  # a machine may stall
    async with asking(**QUICK) as (stream, server, cluster):
        await stream.start(1, message([5], max_tokens=300))
        assert await stream.read()
        stopping = asyncio.create_task(server.__aexit__(None, None, None))
        await until_free(server, cluster)
        await asyncio.sleep(0.2)  # what is sent has time to come
        assert not stopping.done()
        await stream.say(reads=[inference_pb2.AnswerRead(answer=1, n_tokens=1)])
        await stream.read_until_over(1)
        assert stream.tokens[1] == expected_answer([5], 300)
        await stream.call.done_writing()
        await stopping


async def test_a_router_that_stops_refuses_at_once_what_a_client_still_asks_on_an_idle_stream(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It may not have read that the stream ends, or not know of that."""
    monkeypatch.setattr(multiplex, "_CLOSE_S", 30 * multiplex._CLOSE_S)
    async with asking(**QUICK) as (stream, server, _):
        await stream.start(1, message([5], max_tokens=3))
        await stream.read_until_over(1)
        stopping = asyncio.create_task(server.__aexit__(None, None, None))
        while not server.router._is_stopping:
            await asyncio.sleep(0.01)
        await stream.start(2, message([6], max_tokens=3))
        async with asyncio.timeout(GRACE_S / 2):
            await stream.read_until_over(2)
        assert "stopping" in stream.statuses[2].message
        await stream.call.done_writing()
        await stopping
