"""Acts between one router and its controller: each is handed out once, and its answer arrives."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, TypeAlias

import grpc
import pytest

from twolane.deploy.launch.router_client import RouterClient
from twolane.deploy.process.handshake import Handle
from twolane.security.credentials import Credentials
from twolane.security.tls import TlsFilesError
from twolane.v1 import acts_pb2, cluster_pb2, cluster_pb2_grpc

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"
ACT, LATER = 7, 8
REPORT = cluster_pb2.SuperviseRequest()


class Router(cluster_pb2_grpc.MembershipServiceServicer):
    """Names its acts until it has their results. A call ends when `may_end` is set."""

    def __init__(self) -> None:
        self.acts = {ACT}
        self.results: list[int] = []
        self.is_called, self.may_end = asyncio.Event(), asyncio.Event()
        self.may_end.set()
        self.fails = False
        self.peer = Peer()

    async def Supervise(
        self, request: cluster_pb2.SuperviseRequest, context: Context
    ) -> cluster_pb2.SuperviseResponse:
        self.results += [result.number for result in request.results]
        self.acts -= {*self.results}
        named = sorted(self.acts)
        self.is_called.set()
        await self.may_end.wait()
        if self.fails:
            await context.abort(grpc.StatusCode.INTERNAL, "killed")
        return cluster_pb2.SuperviseResponse(
            acts=[acts_pb2.ControllerAct(number=number) for number in named]
        )


class Peer(cluster_pb2_grpc.PeerServiceServicer):
    """The same router, as others ask it for a drain. It answers when `may_end` is set."""

    def __init__(self) -> None:
        self.is_called, self.may_end = asyncio.Event(), asyncio.Event()

    async def DrainWorker(
        self, request: cluster_pb2.DrainWorkerRequest, context: Context
    ) -> cluster_pb2.DrainWorkerResponse:
        self.is_called.set()
        await self.may_end.wait()
        return cluster_pb2.DrainWorkerResponse()


@asynccontextmanager
async def called() -> AsyncIterator[tuple[Router, RouterClient]]:
    router, server = Router(), grpc.aio.server()
    cluster_pb2_grpc.add_MembershipServiceServicer_to_server(router, server)
    cluster_pb2_grpc.add_PeerServiceServicer_to_server(router.peer, server)
    endpoint = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    handle = Handle("router-0", 0, endpoint, "", 1, worker_endpoint=endpoint)
    try:
        async with RouterClient(handle, Credentials(), timeout_s=30.0) as client:
            yield router, client
    finally:
        await server.stop(0)


async def new_acts(client: RouterClient) -> list[int] | None:
    answer = await client.supervise(REPORT)
    return None if answer is None else [act.number for act in answer.acts]


async def test_act_is_handed_out_once_and_its_result_told_once() -> None:
    async with called() as (router, client):
        assert await new_acts(client) == [ACT]
        router.acts |= {LATER}
        assert await new_acts(client) == [LATER]
        client.answer(acts_pb2.ControllerActResult(number=ACT))
        assert await new_acts(client) == []
        assert await new_acts(client) == []
        assert router.results == [ACT]


async def test_act_that_is_answered_during_a_call_is_not_handed_out_again() -> None:
    async with called() as (router, client):
        assert await new_acts(client) == [ACT]
        router.is_called.clear()
        router.may_end.clear()
        calling = asyncio.create_task(new_acts(client))
        await router.is_called.wait()  # the router's answer still names the act
        client.answer(acts_pb2.ControllerActResult(number=ACT))
        router.may_end.set()
        assert await calling == []
        assert await new_acts(client) == []
        assert router.results == [ACT]


async def test_result_is_told_again_until_a_call_has_been_answered() -> None:
    async with called() as (router, client):
        assert await new_acts(client) == [ACT]
        client.answer(acts_pb2.ControllerActResult(number=ACT))
        router.fails = True
        assert await new_acts(client) is None
        router.fails = False
        assert await new_acts(client) == []
        assert router.results == [ACT, ACT]


async def test_silence_and_its_end_are_logged_once_with_the_routers_name(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with called() as (router, client):
        router.fails = True
        for _ in range(3):
            assert await client.supervise(REPORT) is None
        router.fails = False
        for _ in range(2):
            assert await client.supervise(REPORT) is not None
        lost, found = caplog.messages
        assert lost.startswith("router-0 does not answer since ")
        assert lost.endswith(": INTERNAL: killed")
        assert found.startswith("router-0 answers again, after ")
        assert not client.is_silent


async def test_only_a_router_that_lets_the_time_pass_is_silent() -> None:
    async with called() as (router, client):
        router.fails = True
        await client.supervise(REPORT)
        assert not client.is_silent
        router.may_end.clear()
        client._timeout_s = 0.05
        await client.supervise(REPORT)
        assert client.is_silent


async def test_a_drain_is_answered_though_another_call_fails_meanwhile() -> None:
    async with called() as (router, client):
        draining = asyncio.create_task(client.drain(cluster_pb2.DrainWorkerRequest()))
        await router.peer.is_called.wait()
        router.fails = True
        failing = asyncio.create_task(new_acts(client))
        await asyncio.wait([failing], timeout=1.0)
        assert not draining.done()
        router.peer.may_end.set()
        assert await draining == ""
        assert await failing is None
        router.fails = False
        assert await new_acts(client) == [ACT]


async def test_files_of_tls_that_cannot_be_read_now_end_no_supervisor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def unread(*args: object) -> None:
        raise TlsFilesError("tls_cert: x cannot be read")

    async with called() as (router, client):
        router.fails = True
        with monkeypatch.context() as without:
            without.setattr(Credentials, "channel", unread)
            assert await new_acts(client) is None
        router.fails = False
        assert await new_acts(client) == [ACT]
