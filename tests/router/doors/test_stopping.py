"""A router that stops lets its clients go at once: they reach another router at the shared port,
whatever still runs at the first."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import grpc
import pytest

from tests.router.doors.two_routers import HEARD_S
from twolane import AsyncClient
from twolane.errors import UnavailableError
from twolane.router.config import RouterConfig, ServerConfig
from twolane.router.router import Router
from twolane.router.testing.client import ask, message, play
from twolane.router.testing.cluster import ScriptedCluster
from twolane.router.testing.rows import expected_answer
from twolane.router.testing.served import SETTLED, serve_cluster
from twolane.v1 import inference_pb2_grpc, worker_pb2

CONFIG = ServerConfig(stop_grace_s=60.0, metrics_port=None, http=None, shares_ports=True)
N_TOKENS, STEP_S = 50, 0.02


@asynccontextmanager
async def stopping_router(
    *, knows_one: bool = False
) -> AsyncIterator[tuple[AsyncClient, asyncio.Event]]:
    """A client connected to a router, and an event: once it is set, the router stops, and another
    one listens at its port. Within the block the router does not end, because one of its clients
    was told to move and does not. With `knows_one` the client has heard that there is no other."""
    stop = asyncio.Event()
    async with (
        serve_cluster("p0", "d0", server_config=CONFIG, step_s=STEP_S) as (first, _),
        AsyncClient(first.address) as client,
        grpc.aio.insecure_channel(first.address) as channel,
    ):
        # Else it says so only after some seconds, which a busy machine may take to come here.
        first.router.known.settled_at = 0.0 if knows_one else math.inf
        staying = message([7], max_tokens=1900)
        staying.resumes = True
        call = inference_pb2_grpc.InferenceServiceStub(channel).Generate(staying)
        submission_id = (await call.read()).submission_id
        await client.generate(token_ids=[1], max_tokens=1)

        async def stop_it() -> None:
            await stop.wait()
            await first.__aexit__(None, None, None)

        at = replace(CONFIG, port=first.port)
        config = RouterConfig(router_id="router-1", membership=SETTLED)
        async with serve_cluster("p1", "d1", config=config, server_config=at) as (second, _):
            first.router.known.hear(
                [second.router.address], asyncio.get_running_loop().time() + HEARD_S
            )
            stopping = asyncio.create_task(stop_it())
            yield client, stop
            assert not stopping.done(), "it waits for the client that stays"
            first.router.cancel_submission(submission_id)
            await stopping


@pytest.mark.parametrize("knows_one", [False, True])
async def test_a_new_request_reaches_another_router_while_one_stops(knows_one: bool) -> None:
    async with stopping_router(knows_one=knows_one) as (client, stop):
        stop.set()
        for prompt in range(2, 8):
            answer = await client.generate(token_ids=[prompt], max_tokens=4, timeout_s=60.0)
            assert list(answer.token_ids) == expected_answer([prompt], 4)


async def test_an_answer_moves_to_another_router_with_one_takeover() -> None:
    async with stopping_router() as (client, stop):
        stream = client.stream(token_ids=[5], max_tokens=N_TOKENS, timeout_s=60.0)
        await anext(stream)
        stop.set()
        answer = await stream.completion()
        assert list(answer.token_ids) == expected_answer([5], N_TOKENS)
        assert answer.ledger.takeovers == 1


@pytest.mark.parametrize("thrown", [OSError, asyncio.CancelledError])
async def test_a_router_that_cannot_leave_its_port_ends_its_answers_all_the_same(
    monkeypatch: pytest.MonkeyPatch, thrown: type[BaseException]
) -> None:
    async def fail() -> None:
        raise thrown

    place = ServerConfig(stop_grace_s=0.0, metrics_port=None, http=None)
    async with (
        serve_cluster("p0", "d0", server_config=place, step_s=STEP_S) as (server, _),
        AsyncClient(server.address) as client,
    ):
        stream = client.stream(token_ids=[5], max_tokens=1900)
        await anext(stream)
        with monkeypatch.context() as patched:
            patched.setattr(server._door, "leave_port", fail)
            with pytest.raises(thrown):
                await server.__aexit__(None, None, None)
        assert not server.router.status().requests
        with pytest.raises(UnavailableError):
            await server.router.open(message([1]))


def test_a_router_announces_no_lone_door_before_workers_have_reported_the_others() -> None:
    async def script(router: Router, cluster: ScriptedCluster) -> None:
        router.address.grpc_endpoint = "here:7200"
        assert not (await ask(router, message([1]))).first.routers
        await asyncio.sleep(2 * router.config.membership.announce_interval_s)
        assert list((await ask(router, message([1]))).first.routers) == ["here:7200"]

    play(script)


def test_a_router_announces_the_others_as_soon_as_it_knows_one() -> None:
    async def script(router: Router, cluster: ScriptedCluster) -> None:
        router.address.grpc_endpoint = "here:7200"
        other = worker_pb2.RouterAddress(router_id="router-1", grpc_endpoint="there:7200")
        router.known.hear([other], asyncio.get_running_loop().time())
        first = (await ask(router, message([1]))).first
        assert list(first.routers) == ["there:7200", "here:7200"]

    play(script)
