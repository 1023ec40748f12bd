"""The gRPC door towards clients that send what no client of ours would."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import Any, cast

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from opentelemetry.sdk.trace.sampling import DEFAULT_ON

from tests import h2
from tests.faults import floods
from twolane.aclient import AsyncClient
from twolane.errors import InvalidRequestError
from twolane.router.config import GrpcDoorConfig, LimitsConfig, RouterConfig, ServerConfig
from twolane.router.doors.grpc_door import Door
from twolane.router.doors.peer_calls import PeerCalls
from twolane.router.members import own_pause
from twolane.router.requests.trace_context import CALLED_BY, TraceHeaders
from twolane.router.router import Router
from twolane.router.testing.client import message, play
from twolane.router.testing.cluster import ScriptedCluster
from twolane.router.testing.served import serve_cluster
from twolane.router.tracing import RequestTraces
from twolane.rpc import shared_port
from twolane.security.gate import Gate
from twolane.v1 import inference_pb2, inference_pb2_grpc

CODE = grpc.StatusCode
FOREIGN = {  # methods that are not ours, by whether they take a stream of messages
    "/grpc.health.v1.Health/Check": False,
    "/grpc.health.v1.Health/List": False,
    "/grpc.health.v1.Health/Watch": False,
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": True,
}
OK_OR_REFUSED = {CODE.OK, CODE.NOT_FOUND, CODE.INVALID_ARGUMENT}


async def code_of(channel: Any, method: str, raw: bytes, is_stream: bool) -> grpc.StatusCode:
    kind = channel.stream_stream if is_stream else channel.unary_stream
    call = kind(method)(iter([raw]) if is_stream else raw)
    try:
        while await call.read() is not grpc.aio.EOF:
            if method.endswith("Watch"):
                call.cancel()  # it would go on for ever
                break
        return CODE.OK
    except grpc.aio.AioRpcError as error:
        return error.code()


async def fuzz(n_messages: int) -> Counter[tuple[str, grpc.StatusCode]]:
    rng, codes = random.Random(9), Counter[tuple[str, grpc.StatusCode]]()
    whole = health_pb2.HealthCheckRequest(service="twolane.v1.InferenceService").SerializeToString()
    async with (
        serve_cluster() as (server, _),
        grpc.aio.insecure_channel(server.address) as channel,
    ):
        for number in range(n_messages):
            method, is_stream = list(FOREIGN.items())[number % len(FOREIGN)]
            raw = bytearray(rng.randbytes(rng.randrange(1, 40)) if rng.random() < 0.5 else whole)
            raw[0] = rng.choice([0x0A, 0x12, 0x1A, 0x22, 0x2A, 0x32, 0x3A, rng.randrange(256)])
            codes[method, await code_of(channel, method, bytes(raw), is_stream)] += 1
    return codes


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The log, but for what a router says of a machine that stalls."""
    return [record.getMessage() for record in caplog.records if record.name != own_pause.log.name]


async def test_malformed_bytes_for_health_and_reflection_are_refused_without_a_traceback(
    caplog: pytest.LogCaptureFixture,
) -> None:
    codes = await fuzz(400)
    assert {code for _, code in codes} <= OK_OR_REFUSED, codes
    for method in FOREIGN:
        assert codes[method, CODE.INVALID_ARGUMENT] > 10, codes
    assert told(caplog) == []


@pytest.mark.soak
async def test_thousands_of_malformed_messages_are_refused_without_a_traceback(
    caplog: pytest.LogCaptureFixture,
) -> None:
    codes = await fuzz(20_000)
    assert {code for _, code in codes} <= OK_OR_REFUSED, codes
    assert told(caplog) == []


async def test_health_lists_all_services() -> None:
    async with (
        serve_cluster() as (server, _),
        grpc.aio.insecure_channel(server.address) as channel,
    ):
        pb2: Any = health_pb2
        stub: Any = health_pb2_grpc.HealthStub(channel)
        statuses = (await stub.List(pb2.HealthListRequest())).statuses
    not_serving = health_pb2.HealthCheckResponse.NOT_SERVING
    assert {name: answer.status for name, answer in statuses.items()} == {
        "": not_serving,
        "twolane.v1.InferenceService": not_serving,
    }


async def test_a_message_beyond_the_limit_is_refused_before_it_is_read() -> None:
    config = RouterConfig(limits=LimitsConfig(message_bytes=20_000))
    async with (
        serve_cluster("p0", "d0", config=config) as (server, _),
        grpc.aio.insecure_channel(server.address) as channel,
        AsyncClient(server.address) as client,
    ):
        call = inference_pb2_grpc.InferenceServiceStub(channel).Generate(message("x" * 30_000))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call.read()
        assert caught.value.code() is CODE.RESOURCE_EXHAUSTED
        assert "larger than max (30015 vs. 20000)" in str(caught.value.details())
        with pytest.raises(InvalidRequestError, match="a message may have at most 20,000"):
            await client.generate("x" * 30_000)
        assert (await client.generate(token_ids=[1], max_tokens=2)).token_ids


@pytest.mark.parametrize(
    ("method", "request_"),
    [
        ("Cancel", inference_pb2.CancelRequest(request_id="r" * 65)),
        ("Cancel", inference_pb2.CancelRequest(submission_id="s" * 65)),
        ("GetStatus", inference_pb2.GetStatusRequest(submission_ids=["s", "s" * 65])),
    ],
)
async def test_an_id_that_no_request_can_have_is_refused(method: str, request_: Any) -> None:
    async with (
        serve_cluster() as (server, _),
        grpc.aio.insecure_channel(server.address) as channel,
    ):
        stub = inference_pb2_grpc.InferenceServiceStub(channel)
        with pytest.raises(grpc.aio.AioRpcError, match="1 to 64") as caught:
            await getattr(stub, method)(request_)
        assert caught.value.code() is CODE.INVALID_ARGUMENT


async def test_a_compressed_request_is_refused_and_its_connection_goes_on() -> None:
    async with (
        serve_cluster("p0", "d0") as (server, _),
        grpc.aio.insecure_channel(server.address) as channel,
    ):
        stub = inference_pb2_grpc.InferenceServiceStub(channel)
        bombs = [
            stub.Generate(message("a" * 15_000_000), compression=grpc.Compression.Gzip)
            for _ in range(5)
        ]
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await asyncio.gather(*(bomb.read() for bomb in bombs))
        assert caught.value.code() is CODE.UNIMPLEMENTED
        good = [response async for response in stub.Generate(message([1], max_tokens=2))]
        assert good[-1].finish_reason


async def test_a_peer_beyond_its_connections_loses_the_newest_and_others_none(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """127.0.0.2 plays another machine."""
    monkeypatch.setattr(shared_port, "peer_of", lambda host: "x" if host.endswith(".2") else "")
    monkeypatch.setattr(shared_port, "PEERS_S", 0.05)
    config = ServerConfig(metrics_port=None, grpc=GrpcDoorConfig(connections_per_peer=3))
    async with (
        serve_cluster("p0", "d0", server_config=config) as (server, _),
        AsyncClient(server.address) as client,
        asyncio.timeout(30.0),
    ):
        opened = [
            await asyncio.open_connection("127.0.0.1", server.port, local_addr=("127.0.0.2", 0))
            for _ in range(5)
        ]
        for _, writer in opened:
            writer.write(h2.hello())
        ends = [asyncio.create_task(h2.answer_pings(*each)) for each in opened]
        while sum(end.done() for end in ends) < 2:
            await asyncio.sleep(0.01)
        assert (await client.generate(token_ids=[1], max_tokens=2)).token_ids
        assert sum(end.done() for end in ends) == 2
        for _, writer in opened:
            writer.close()
        await asyncio.gather(*ends)
    assert "which has 3 already" in caplog.text


async def test_noise_bad_metadata_and_floods_of_frames_leave_the_door_open_to_others() -> None:
    """The short form of attacks in tests/faults."""
    async with (
        serve_cluster("p0", "d0") as (server, _),
        AsyncClient(server.address) as client,
    ):
        await floods.random_bytes(server.address, 15, seed=3)
        assert CODE.RESOURCE_EXHAUSTED in await floods.metadata(server.address)
        for name in floods.FLOODS:
            await floods.flood(server.address, name, 1 << 20)
            assert (await client.generate(token_ids=[1], max_tokens=2)).token_ids


class Departed:
    """The call of a client that is gone before it reads anything."""

    async def send_initial_metadata(self, metadata: object) -> None:
        raise asyncio.CancelledError


def test_request_of_a_traced_caller_that_leaves_before_the_first_message_ends() -> None:
    async def script(router: Router, cluster: ScriptedCluster) -> None:
        CALLED_BY.set(TraceHeaders("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"))
        door: Any = Door(router, cast(Gate, None), cast(PeerCalls, None))
        with pytest.raises(asyncio.CancelledError):
            await door._answer(await router.open(message([1], max_tokens=100)), Departed())
        assert not router.status().requests

    play(script, traces=RequestTraces(DEFAULT_ON, lambda record: None))
