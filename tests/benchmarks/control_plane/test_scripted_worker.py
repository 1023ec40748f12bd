"""Scripted workers, spoken to by a scripted router."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from benchmarks.control_plane.scripted_row import ScriptConfig
from benchmarks.control_plane.scripted_worker import serve
from twolane.testing.heard import heard
from twolane.v1 import cluster_pb2, cluster_pb2_grpc, worker_pb2, worker_pb2_grpc

Kind = worker_pb2.RowEvent


class ScriptedRouter(cluster_pb2_grpc.MembershipServiceServicer):
    """Keeps who announced itself, and opens sessions."""

    def __init__(self) -> None:
        self.known: dict[str, Any] = {}

    async def Announce(self, request: Any, context: Any) -> Any:
        self.known[worker_pb2.Role.Name(request.roles[0])] = request
        return cluster_pb2.AnnounceResponse(interval_ms=1000)

    async def open(self, role: str) -> Any:
        async with asyncio.timeout(30.0):
            while role not in self.known:
                await asyncio.sleep(0.01)
        worker = self.known[role].worker
        channel = grpc.aio.insecure_channel(worker.endpoint)
        session = worker_pb2_grpc.WorkerServiceStub(channel).Session()
        opening = worker_pb2.Open(router_id="r", router_epoch=1, worker_epoch=worker.epoch)
        await session.write(worker_pb2.SessionRequest(open=opening))
        first = await session.read()
        assert first.opened.worker.epoch == worker.epoch
        return session


@pytest.fixture
async def router() -> AsyncIterator[ScriptedRouter]:
    router = ScriptedRouter()
    server = grpc.aio.server()
    cluster_pb2_grpc.add_MembershipServiceServicer_to_server(router, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    config = ScriptConfig(router=f"127.0.0.1:{port}", model="m", step_s=0.001, vocab_size=100)
    workers = asyncio.create_task(serve(config))
    yield router
    workers.cancel()
    await asyncio.wait([workers])
    await server.stop(grace=None)


ROWS = ("", "a", "b", "c", "gone", "stays")


def _assign(name: str, max_tokens: int) -> Any:
    assign = worker_pb2.Assign(
        key=worker_pb2.AttemptKey(submission_id=name, attempt=1),
        row=ROWS.index(name),
        token_ids=[1, 2, 3],
        n_prompt=3,
    )
    assign.sampling.max_tokens = max_tokens
    return worker_pb2.SessionRequest(assign=assign)


async def _read(session: Any, n_tokens: int) -> tuple[list[Any], list[Any]]:
    """Messages until there are so many tokens."""
    tokens: list[Any] = []
    rows: list[Any] = []
    async with asyncio.timeout(30.0):
        while len(tokens) < n_tokens:
            message = await session.read()
            tokens += heard(message.tokens)
            rows += message.rows
    return tokens, rows


async def test_both_workers_tell_one_answer_as_real_ones_do(router: ScriptedRouter) -> None:
    prefill, decode = await router.open("ROLE_PREFILL"), await router.open("ROLE_DECODE")
    began = asyncio.get_running_loop().time()
    for session in (prefill, decode):
        await session.write(_assign("a", 5))
    first, handed_over = await _read(prefill, 1)
    tokens, news = await _read(decode, 5)
    assert [token.index for token in tokens] == [0, 1, 2, 3, 4]
    assert first[0].token_id == tokens[0].token_id
    assert [bool(token.finish_reason) for token in tokens] == [False] * 4 + [True]
    assert all(16 <= token.token_id < 100 for token in tokens)
    assert [row.kind for row in handed_over] == [Kind.KIND_HANDED_OVER]
    took_s = asyncio.get_running_loop().time() - began
    assert 0 <= handed_over[0].figures.prefill_s < took_s
    assert [row.kind for row in news] == [Kind.KIND_JOINED, Kind.KIND_FINISHED]


async def test_a_step_tells_a_token_of_every_row_in_one_message(router: ScriptedRouter) -> None:
    prefill, decode = await router.open("ROLE_PREFILL"), await router.open("ROLE_DECODE")
    for name in ("a", "b", "c"):
        await prefill.write(_assign(name, 200))
    async with asyncio.timeout(30.0):
        while len(heard((await decode.read()).tokens)) < 3:
            pass
        message = await decode.read()
    assert [ROWS[token.row] for token in heard(message.tokens)] == ["a", "b", "c"]


async def test_a_cancelled_row_is_told_no_more(router: ScriptedRouter) -> None:
    prefill, decode = await router.open("ROLE_PREFILL"), await router.open("ROLE_DECODE")
    for name in ("gone", "stays"):
        await prefill.write(_assign(name, 100_000))
    await _read(decode, 10)
    key = worker_pb2.AttemptKey(submission_id="gone", attempt=1)
    await decode.write(worker_pb2.SessionRequest(cancel=worker_pb2.Cancel(keys=[key])))
    async with asyncio.timeout(30.0):
        while {ROWS[token.row] for token in heard((await decode.read()).tokens)} != {"stays"}:
            pass
