"""The worker as a process would be: real gRPC on loopback, the fake engine on its own thread."""

from __future__ import annotations

import asyncio
import urllib.request
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Self, TypeVar, cast

import grpc
import pytest
from google.rpc import error_details_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from grpc_status import rpc_status

from tests.kvtransfer.nixl_marks import over_nixl
from tests.until import until
from twolane.decode_worker.role import DecodeRole
from twolane.engine.fake import FakeEngine, FakeEngineConfig, expected_answer
from twolane.kvtransfer.testing.memory import MemoryFabric
from twolane.kvtransfer.transports.common.shared_memory import create_pool_memory
from twolane.kvtransfer.transports.registry import OutletOpener, TransportConfig, open_landings
from twolane.params import SamplingParams
from twolane.prefill_worker.role import PrefillRole
from twolane.rpc.link import GrpcLink, LinkBrokenError
from twolane.rpc.params import params_to_proto
from twolane.rpc.secret import new_secret, shown
from twolane.security.credentials import Credentials
from twolane.testing.heard import HeardToken, heard
from twolane.v1 import cluster_pb2, cluster_pb2_grpc, worker_pb2, worker_pb2_grpc
from twolane.worker.config import SessionConfig, WorkerConfig
from twolane.worker.context import WorkerContext
from twolane.worker.doors.server import WorkerServer
from twolane.worker.metrics import WorkerMetrics
from twolane.worker.peers.links import PeerDialer
from twolane.worker.peers.peers import Wiring
from twolane.worker.role import Roles
from twolane.worker.steps.step_runner import ThreadStepRunner
from twolane.worker.worker import Worker

OutT = TypeVar("OutT")
InT = TypeVar("InT")

PROMPT = list(range(100))
PARAMS = SamplingParams(max_tokens=20, seed=5)
SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.ServingStatus.values()[1:3]
KEY = worker_pb2.AttemptKey(submission_id="r", attempt=1)


class Membership(cluster_pb2_grpc.MembershipServiceServicer):
    def __init__(self) -> None:
        self.heard: list[cluster_pb2.AnnounceRequest] = []

    async def Announce(
        self,
        request: cluster_pb2.AnnounceRequest,
        context: grpc.aio.ServicerContext[
            cluster_pb2.AnnounceRequest, cluster_pb2.AnnounceResponse
        ],
    ) -> cluster_pb2.AnnounceResponse:
        self.heard.append(request)
        return cluster_pb2.AnnounceResponse(interval_ms=50)


@asynccontextmanager
async def running(
    roles: str = "pd",
    *,
    fabric: MemoryFabric | None = None,
    worker_id: str = "w",
    routers: tuple[str, ...] = (),
    transport: str = "",
    sessions: SessionConfig | None = None,
) -> AsyncIterator[tuple[Worker, WorkerServer]]:
    """A served worker; ends by `stop`, and waits for it."""
    config = WorkerConfig(
        worker_id=worker_id,
        metrics_port=0,
        routers=routers,
        announce_every_s=0.05,
        drain_for_s=60.0,
        credentials=Credentials(secret=SECRET),
        sessions=sessions or SessionConfig(),
    )
    facts = FakeEngineConfig(n_pages=256)
    memory = create_pool_memory(facts.n_pages * facts.page_bytes, worker_id)
    engine = FakeEngine(facts, memory=memory.array.data)
    context = WorkerContext(config, engine)
    decode = DecodeRole(context) if "d" in roles else None
    prefill = PrefillRole(context, adopter=decode) if "p" in roles else None
    fabric = fabric or MemoryFabric(call_later=asyncio.get_running_loop().call_later)
    dialer = PeerDialer(Credentials(secret=SECRET))
    if transport:
        transports = TransportConfig(transports=(transport,))
        wire = Wiring(
            dial=dialer,
            open_outlet=OutletOpener(context.epoch, engine.pool, transports),
            landings=open_landings(context.epoch, engine.pool, transports, memory),
            transports=transports.transports,
        )
    else:
        wire = Wiring(
            dial=dialer,
            open_outlet=lambda hello: fabric.outlet(
                context.epoch, engine.pool, hello.transport_address
            ),
            landings={"memory": fabric.landing(context.epoch, engine.pool)},
            transports=("memory",),
        )
    metrics = WorkerMetrics()
    worker = Worker(
        config, context, Roles(decode, prefill), ThreadStepRunner(engine), wire, observer=metrics
    )
    server = WorkerServer(worker, metrics)
    life = asyncio.create_task(server.run())
    await asyncio.wait_for(server.started.wait(), 60.0)
    try:
        yield worker, server
    finally:
        server.stop()
        await asyncio.wait_for(life, 60.0)
        await dialer.close()
        for landing in wire.landings.values():
            landing.close()
        memory.close()


class Client:
    """A session, as a router would hold it."""

    def __init__(self, worker: Worker, *, epoch: int | None = None) -> None:
        self.channel = grpc.aio.insecure_channel(worker.endpoint)
        self.stub = worker_pb2_grpc.WorkerServiceStub(self.channel)
        self.call = self.stub.Session(metadata=shown(worker.config.credentials.secret))
        self.link: GrpcLink[worker_pb2.SessionRequest, worker_pb2.SessionResponse]
        self.link = GrpcLink(self.call)
        self.tokens: list[HeardToken] = []
        self.rows: list[worker_pb2.RowEvent] = []
        opening = worker_pb2.Open(
            router_id="r", router_epoch=1, worker_epoch=epoch or worker.context.epoch
        )
        self.link.send(worker_pb2.SessionRequest(open=opening))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.link.close()
        await self.channel.close()

    def assign(
        self,
        roles: Sequence[worker_pb2.Role],
        prefill: Worker,
        decode: Worker,
        *,
        key: worker_pb2.AttemptKey = KEY,
        max_tokens: int = 20,
    ) -> None:
        assign = worker_pb2.Assign(
            key=key,
            row=1,
            roles=roles,
            token_ids=PROMPT,
            n_prompt=len(PROMPT),
            sampling=params_to_proto(SamplingParams(max_tokens=max_tokens, seed=5)),
            prefill=prefill.address,
            decode=decode.address,
            growth_tokens=20,
        )
        self.link.send(worker_pb2.SessionRequest(assign=assign))

    async def hear(self, kind: worker_pb2.RowEvent.Kind) -> None:
        async with asyncio.timeout(30.0):
            while kind not in [event.kind for event in self.rows]:
                message = await self.link.receive()
                self.tokens += heard(message.tokens)
                self.rows += message.rows


async def read_all(call: grpc.aio.StreamStreamCall[OutT, InT]) -> None:
    while await call.read() is not grpc.aio.EOF:
        pass


SECRET = new_secret()
SHOWN = shown(SECRET)
FINISHED = worker_pb2.RowEvent.KIND_FINISHED
HANDED_OVER = worker_pb2.RowEvent.KIND_HANDED_OVER
BOTH = [worker_pb2.ROLE_PREFILL, worker_pb2.ROLE_DECODE]


async def test_session_answers_and_inspect_finds_nothing_left() -> None:
    async with running() as (worker, _), Client(worker) as client:
        client.assign(BOTH, worker, worker)
        await client.hear(FINISHED)
        answer = {event.index: event.token_id for event in client.tokens}
        assert [answer[i] for i in range(20)] == expected_answer(PROMPT, PARAMS, 20)
        seen = await client.stub.Inspect(worker_pb2.InspectRequest(), metadata=SHOWN)
        assert seen.integrity_error == ""
        assert seen.worker == worker.address
        assert list(seen.roles) == BOTH
        assert seen.load.pages.used == 0
        assert seen.load.pages.cached + seen.load.pages.free == 256


async def converse(p: Worker, d: Worker) -> tuple[list[int], worker_pb2.RowFigures]:
    """One request over both; its answer, and what the prefill side says it moved."""
    async with Client(p) as to_p, Client(d) as to_d:
        to_p.assign([worker_pb2.ROLE_PREFILL], p, d)
        to_d.assign([worker_pb2.ROLE_DECODE], p, d)
        await to_p.hear(HANDED_OVER)
        await to_d.hear(FINISHED)
    for worker in (p, d):
        worker.check_integrity()
    return [event.token_id for event in to_d.tokens], to_p.rows[-1].figures


async def test_two_workers_over_grpc_give_the_same_answer() -> None:
    fabric = MemoryFabric(call_later=asyncio.get_running_loop().call_later)
    async with (
        running("d", fabric=fabric, worker_id="d") as (d, _),
        running("p", fabric=fabric, worker_id="p") as (p, _),
    ):
        answer, _ = await converse(p, d)
        assert answer == expected_answer(PROMPT, PARAMS, 20)


@pytest.mark.parametrize("transport", ["tcp", "unix", "shm", over_nixl()])
async def test_pages_move_over_every_transport(transport: str) -> None:
    async with (
        running("d", worker_id="d", transport=transport) as (d, _),
        running("p", worker_id="p", transport=transport) as (p, _),
    ):
        answer, figures = await converse(p, d)
        assert answer == expected_answer(PROMPT, PARAMS, 20)
        assert figures.transfer_bytes == 7 * p.context.spec.page_bytes
        assert p.inspect().transports == {"d": transport}
        assert d.inspect().transports == {"p": transport}


async def test_stream_for_another_incarnation_is_failed_precondition() -> None:
    async with running() as (worker, _), Client(worker, epoch=12345) as client:
        with pytest.raises(LinkBrokenError, match="FAILED_PRECONDITION"):
            await client.hear(FINISHED)


async def test_stream_without_open_is_invalid_argument_with_the_field() -> None:
    async with running() as (worker, _), grpc.aio.insecure_channel(worker.endpoint) as channel:
        call = worker_pb2_grpc.WorkerServiceStub(channel).Session(metadata=SHOWN)
        await call.write(worker_pb2.SessionRequest(heartbeat=worker_pb2.Heartbeat()))
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await read_all(call)
        assert error.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        bad_request = error_details_pb2.BadRequest()
        details = rpc_status.from_call(cast(grpc.Call, error.value)).details
        assert any(d.Is(bad_request.DESCRIPTOR) and d.Unpack(bad_request) for d in details)
        assert bad_request.field_violations[0].field == "open"


async def test_stream_on_which_nobody_speaks_is_invalid_argument() -> None:
    impatient = SessionConfig(open_within_s=0.3)
    async with (
        running(sessions=impatient) as (worker, _),
        grpc.aio.insecure_channel(worker.endpoint) as channel,
    ):
        call = worker_pb2_grpc.WorkerServiceStub(channel).Session(metadata=SHOWN)
        with pytest.raises(grpc.aio.AioRpcError) as refusal:
            async with asyncio.timeout(30.0):
                await call.read()
        assert refusal.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert "within 0.3 s" in (refusal.value.details() or "")


async def test_malformed_bytes_end_their_stream_and_the_server_goes_on() -> None:
    async with running() as (worker, _), grpc.aio.insecure_channel(worker.endpoint) as channel:
        session: grpc.aio.StreamStreamMultiCallable[bytes, bytes]
        session = channel.stream_stream("/twolane.v1.WorkerService/Session")
        raw = session(metadata=SHOWN)
        await raw.write(b"\xff\xff\xff not a message")
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await read_all(raw)
        assert error.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        async with Client(worker) as client:
            client.assign(BOTH, worker, worker)
            await client.hear(FINISHED)


@pytest.mark.parametrize("method", ["WorkerService/Session", "TransferService/Connect"])
async def test_malformed_bytes_on_a_stream_are_invalid_argument_with_the_type(method: str) -> None:
    async with running() as (worker, _), grpc.aio.insecure_channel(worker.endpoint) as channel:
        stream: grpc.aio.StreamStreamMultiCallable[bytes, bytes]
        stream = channel.stream_stream(f"/twolane.v1.{method}")
        raw = stream(metadata=SHOWN)
        await raw.write(b"\xff\xff\xff not a message")
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await read_all(raw)
        assert error.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert "twolane.v1." in (error.value.details() or "")


async def test_malformed_bytes_in_place_of_a_request_are_invalid_argument() -> None:
    async with running() as (worker, _), grpc.aio.insecure_channel(worker.endpoint) as channel:
        inspect: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]
        inspect = channel.unary_unary("/twolane.v1.WorkerService/Inspect")
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await inspect(b"\xff\xff\xff not a message", metadata=SHOWN)
        assert error.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        stub = worker_pb2_grpc.WorkerServiceStub(channel)
        answer = await stub.Inspect(worker_pb2.InspectRequest(), metadata=SHOWN)
        assert answer.worker == worker.address


async def test_transfer_stream_to_a_worker_that_does_not_decode_is_unimplemented() -> None:
    async with running("p") as (worker, _):
        dialer = PeerDialer(Credentials(secret=SECRET))
        link = await dialer(worker.endpoint)
        with pytest.raises(LinkBrokenError, match="UNIMPLEMENTED"):
            await link.receive()
        link.close()
        await dialer.close()


async def test_health_reflection_and_metrics_are_served() -> None:
    async with (
        running() as (worker, server),
        Client(worker) as client,
        grpc.aio.insecure_channel(worker.endpoint) as channel,
    ):
        client.assign(BOTH, worker, worker)
        await client.hear(FINISHED)
        health: Any = health_pb2_grpc.HealthStub(channel)  # the stub file names no method
        request = health_pb2.HealthCheckRequest(service="twolane.v1.WorkerService")
        assert (await health.Check(request)).status == SERVING

        reflection = cast(Any, reflection_pb2_grpc.ServerReflectionStub)(channel)
        mirror = reflection.ServerReflectionInfo()
        await mirror.write(reflection_pb2.ServerReflectionRequest(list_services="*"))
        names = {s.name for s in (await mirror.read()).list_services_response.service}
        assert {"twolane.v1.WorkerService", "twolane.v1.TransferService"} <= names
        mirror.cancel()

        url = f"http://127.0.0.1:{server.metrics_port}/metrics"
        text = await asyncio.to_thread(lambda: urllib.request.urlopen(url).read().decode())
        assert 'twolane_pages{state="used"} 0.0' in text
        assert "twolane_step_seconds_count" in text
        assert 'twolane_row_events_total{kind="finished"} 1.0' in text
        assert "twolane_tokens_total 21.0" in text  # the first one is told by both roles


async def test_worker_announces_itself_and_says_when_it_leaves() -> None:
    membership = Membership()
    router = grpc.aio.server()
    cluster_pb2_grpc.add_MembershipServiceServicer_to_server(membership, router)
    port = router.add_insecure_port("127.0.0.1:0")
    await router.start()
    async with running(routers=(f"127.0.0.1:{port}", "127.0.0.1:1")) as (worker, _):
        await until(lambda: len(membership.heard) >= 3)
        first = membership.heard[0]
        assert first.worker == worker.address
        assert list(first.roles) == BOTH
        assert (first.n_pages, first.page_tokens) == (256, 16)
        assert not first.leaving
    assert membership.heard[-1].leaving
    await router.stop(None)


async def test_stopping_worker_finishes_its_rows_and_takes_no_new_ones() -> None:
    async with running() as (worker, server), Client(worker) as client:
        health: Any = health_pb2_grpc.HealthStub(client.channel)
        watch = health.Watch(health_pb2.HealthCheckRequest())
        client.assign(BOTH, worker, worker, max_tokens=2000)
        while not client.tokens:
            client.tokens += heard((await client.link.receive()).tokens)
        server.stop()
        await until(lambda: worker.load().draining)
        late = worker_pb2.AttemptKey(submission_id="late", attempt=1)
        client.assign(BOTH, worker, worker, key=late)
        await client.hear(worker_pb2.RowEvent.KIND_REFUSED)
        assert (client.rows[-1].key, client.rows[-1].reason) == (late, "draining")
        assert [(await watch.read()).status for _ in "12"] == [SERVING, NOT_SERVING]
        with pytest.raises(TimeoutError):  # it goes on, or else its client would ask again at once
            await asyncio.wait_for(watch.read(), 0.1)
        await client.hear(FINISHED)
        assert len({event.index for event in client.tokens}) == 2000


async def test_client_that_reads_late_still_gets_the_last_words_of_a_worker_that_left() -> None:
    async with running() as (worker, server), Client(worker) as client:
        client.assign(BOTH, worker, worker, max_tokens=300)
        while not client.tokens:
            client.tokens += heard((await client.link.receive()).tokens)
        server.stop()
        await until(lambda: client.channel.get_state() is not grpc.ChannelConnectivity.READY)
        await client.hear(FINISHED)
        assert len({event.index for event in client.tokens}) == 300
        with pytest.raises(LinkBrokenError, match="closed by peer"):
            await client.link.receive()
