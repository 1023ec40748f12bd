"""Somebody else's process on this machine reaches every port of a cluster, and knows all that its
status tells operators. Without the cluster's secret it ends, steals and reads nothing."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

import grpc
import psutil
import pytest

from twolane.aclient import AsyncClient
from twolane.deploy.process.descriptors import raise_limit
from twolane.kvtransfer.page_lane import PageLane
from twolane.kvtransfer.transports.common.frames import Hello, Pages
from twolane.kvtransfer.transports.common.listener import MOST_CONNECTIONS
from twolane.rpc.secret import shown
from twolane.status import ClusterStatus, WorkerInfo
from twolane.testing import LocalCluster, start_local
from twolane.v1 import (
    admin_pb2_grpc,
    cluster_pb2,
    cluster_pb2_grpc,
    drain_pb2,
    inference_pb2,
    inference_pb2_grpc,
    transfer_pb2_grpc,
    worker_pb2,
    worker_pb2_grpc,
)

CODE = grpc.StatusCode
Metadata = tuple[tuple[str, str], ...]
GUESSES: dict[str, Metadata] = {
    "nothing": (),
    "another cluster's secret": shown("0" * 64),
    "an empty secret": shown(""),
    "an API key": (("authorization", "Bearer tl_a_b"),),
}
N_VICTIMS, N_TOKENS = 4, 400


@dataclass(frozen=True)
class Site:
    cluster: LocalCluster
    router_ports: tuple[int, ...]  # all that it listens at

    def status(self) -> ClusterStatus:
        return self.cluster.status()


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with start_local(engine="fake", transport="tcp") as cluster:
        router = psutil.Process(cluster.pid("router-0"))
        ports = [c.laddr.port for c in router.net_connections("tcp") if c.status == "LISTEN"]
        yield Site(cluster, tuple(sorted(ports)))


class _EndedError(Exception):
    """A stream is over."""

    def __init__(self, code: grpc.StatusCode) -> None:
        super().__init__(code)
        self.code = code


@dataclass(frozen=True)
class Attack:
    """One try of an intruder, who shows `metadata`."""

    channel: grpc.aio.Channel
    metadata: Metadata
    worker: WorkerInfo
    submission_id: str

    async def session(self, *commands: worker_pb2.SessionRequest) -> None:
        """As the router, or another one, to a worker."""
        stub = worker_pb2_grpc.WorkerServiceStub(self.channel)
        call = stub.Session(metadata=self.metadata)
        opening = worker_pb2.Open(
            router_id="router-0", worker_epoch=self.worker.epoch, router_epoch=5
        )
        try:
            await call.write(worker_pb2.SessionRequest(open=opening))
            for command in commands:
                await call.write(command)
            assert await call.read() is grpc.aio.EOF, "something was heard"
        except (asyncio.InvalidStateError, grpc.aio.AioRpcError):
            pass  # a write that fails says only that it is over
        raise _EndedError(await call.code())

    def key(self) -> worker_pb2.AttemptKey:
        return worker_pb2.AttemptKey(submission_id=self.submission_id, attempt=1)

    async def steal(self) -> None:
        attach = worker_pb2.Attach(key=self.key(), from_index=0)
        await self.session(worker_pb2.SessionRequest(attach=attach))

    async def cancel(self) -> None:
        await self.session(worker_pb2.SessionRequest(cancel=worker_pb2.Cancel(keys=[self.key()])))

    async def drain(self) -> None:
        await self.session(worker_pb2.SessionRequest(drain=drain_pb2.Drain(enabled=True)))

    async def tell_proof_of_death(self) -> None:
        gone = worker_pb2.PeerGone(epoch=self.worker.epoch)
        await self.session(worker_pb2.SessionRequest(peer_gone=gone))

    async def read_a_workers_state(self) -> None:
        stub = worker_pb2_grpc.WorkerServiceStub(self.channel)
        await stub.Inspect(worker_pb2.InspectRequest(), metadata=self.metadata)

    async def send_pages(self) -> None:
        stub = transfer_pb2_grpc.TransferServiceStub(self.channel)
        call = stub.Connect(metadata=self.metadata)
        with suppress(grpc.aio.AioRpcError):
            assert await call.read() is grpc.aio.EOF, "something was heard"
        raise _EndedError(await call.code())

    async def announce(self, *, leaving: bool, epoch: int) -> None:
        stub = cluster_pb2_grpc.MembershipServiceStub(self.channel)
        address = worker_pb2.WorkerAddress(
            worker_id=self.worker.worker_id, epoch=epoch, endpoint="127.0.0.1:9"
        )
        request = cluster_pb2.AnnounceRequest(
            worker=address,
            roles=[worker_pb2.ROLE_DECODE],
            model=self.worker.model,
            fingerprint=self.worker.fingerprint,
            n_pages=9,
            page_tokens=16,
            max_context_tokens=99,
            vocab_size=99,
            decode_rows=9,
            leaving=leaving,
        )
        await stub.Announce(request, metadata=self.metadata)

    async def take_a_workers_name(self) -> None:
        await self.announce(leaving=False, epoch=7)

    async def say_farewell_for_a_worker(self) -> None:
        await self.announce(leaving=True, epoch=self.worker.epoch)

    async def report_a_living_worker_gone(self) -> None:
        stub = cluster_pb2_grpc.MembershipServiceStub(self.channel)
        request = cluster_pb2.ReportGoneRequest(epoch=self.worker.epoch)
        await stub.ReportGone(request, metadata=self.metadata)

    async def drain_as_an_operator(self) -> None:
        stub = admin_pb2_grpc.AdminServiceStub(self.channel)
        request = cluster_pb2.DrainWorkerRequest(worker_id=self.worker.worker_id)
        await stub.DrainWorker(request, metadata=self.metadata)

    async def read_as_an_operator(self) -> None:
        stub = admin_pb2_grpc.AdminServiceStub(self.channel)
        await stub.GetClusterStatus(cluster_pb2.GetClusterStatusRequest(), metadata=self.metadata)


AT_WORKERS = [
    Attack.steal,
    Attack.cancel,
    Attack.drain,
    Attack.tell_proof_of_death,
    Attack.read_a_workers_state,
    Attack.send_pages,
]
AT_ROUTERS = [
    Attack.take_a_workers_name,
    Attack.say_farewell_for_a_worker,
    Attack.report_a_living_worker_gone,
    Attack.drain_as_an_operator,
    Attack.read_as_an_operator,
]
# What gRPC itself says now and then of a write that meets the refusal on its way.
MET_REFUSAL = CODE.INTERNAL
REFUSED = {CODE.UNAUTHENTICATED, CODE.PERMISSION_DENIED}
# At ports of the router where there is no such service, or no gRPC at all.
NOT_THERE = {CODE.UNIMPLEMENTED, CODE.UNAVAILABLE, CODE.DEADLINE_EXCEEDED}


async def code_of(attack: Callable[[], Awaitable[None]]) -> grpc.StatusCode:
    try:
        async with asyncio.timeout(10.0):
            await attack()
    except _EndedError as ended:
        return ended.code
    except grpc.aio.AioRpcError as error:
        return error.code()
    except TimeoutError:
        return CODE.DEADLINE_EXCEEDED
    return CODE.OK


async def answer_all(client: AsyncClient, n: int) -> list[list[int]]:
    asked = [
        client.generate(token_ids=[at, 7], max_tokens=N_TOKENS, seed=3, ignore_eos=True)
        for at in range(n)
    ]
    return [list(answer.token_ids) for answer in await asyncio.gather(*asked)]


@pytest.mark.timeout(300)
async def test_intruder_without_the_secret_ends_steals_and_reads_nothing(site: Site) -> None:
    async with site.cluster.aclient() as client:
        expected = await answer_all(client, N_VICTIMS)
        attacked = asyncio.Event()
        victims = asyncio.create_task(answer_until(attacked, client, expected))
        before = await asyncio.to_thread(site.status)
        while not before.requests:  # the intruder knows what runs
            before = await asyncio.to_thread(site.status)
        codes: dict[tuple[str, str, str], grpc.StatusCode] = {}
        for worker in before.workers:
            await attack_at(worker.endpoint, worker, before, AT_WORKERS, codes)
        router_codes: dict[tuple[str, str, str], grpc.StatusCode] = {}
        for port in site.router_ports:
            worker = before.workers[-1]
            await attack_at(f"127.0.0.1:{port}", worker, before, AT_ROUTERS, router_codes)
        attacked.set()
        await victims
        assert set(codes.values()) <= {CODE.UNAUTHENTICATED, MET_REFUSAL}, codes
        assert not [c for c in router_codes.values() if c not in REFUSED | NOT_THERE], router_codes
        for name in ("take_a_workers_name", "report_a_living_worker_gone"):
            at_the_worker_door = {c for (_, what, _), c in router_codes.items() if what == name}
            assert CODE.UNAUTHENTICATED in at_the_worker_door, "its port was tried"
        after = await calm(site)
        assert [(w.worker_id, w.epoch, w.state) for w in after.workers] == [
            (w.worker_id, w.epoch, "alive") for w in before.workers
        ]
        assert await answer_all(client, N_VICTIMS) == expected


async def calm(site: Site) -> ClusterStatus:
    """On a busy machine a worker may be suspected for a moment."""
    async with asyncio.timeout(60.0):
        while True:
            status = await asyncio.to_thread(site.status)
            if "suspect" not in {w.state for w in status.workers}:
                return status
            await asyncio.sleep(0.05)


async def attack_at(
    endpoint: str,
    worker: WorkerInfo,
    status: ClusterStatus,
    attacks: Sequence[Callable[[Attack], Awaitable[None]]],
    codes: dict[tuple[str, str, str], grpc.StatusCode],
) -> None:
    running = status.requests[0].submission_id
    options = [("grpc.enable_retries", 0)]
    async with grpc.aio.insecure_channel(endpoint, options=options) as channel:
        for guess, metadata in GUESSES.items():
            intruder = Attack(channel, metadata, worker, running)
            for attack in attacks:
                code = await code_of(lambda a=attack, i=intruder: a(i))  # type: ignore[misc]
                codes[endpoint, attack.__name__, guess] = code


async def answer_until(
    attacked: asyncio.Event, client: AsyncClient, expected: list[list[int]]
) -> None:
    """Ask on and on; every answer must be whole and right."""
    while not attacked.is_set():
        assert await answer_all(client, len(expected)) == expected


async def guesses_at(port: int, frames: bytes) -> int:
    """Bytes that somebody gets who sends these first, until the other side hangs up."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    n = 0
    with suppress(ConnectionError):
        writer.write(frames)
        await writer.drain()
        async with asyncio.timeout(60.0):
            while part := await reader.read(4096):
                n += len(part)
    writer.transport.abort()
    return n


@pytest.mark.timeout(300)
async def test_intruder_at_the_page_port_ends_steals_and_reads_nothing(site: Site) -> None:
    raise_limit()
    decode = next(w for w in site.status().workers if "decode" in w.roles)
    process = psutil.Process(site.cluster.pid("decode-0"))
    ports = {c.laddr.port for c in process.net_connections("tcp") if c.status == "LISTEN"}
    ports -= {int(at.rpartition(":")[2]) for at in (decode.endpoint, decode.metrics_endpoint)}
    (port,) = ports
    pages = Pages(generation=1, payload_bytes=256, first=0, n_pages=1).pack() + bytes(256)
    epochs = (0, 1, secrets.randbits(63), decode.epoch ^ 1)
    guesses = [pages, b"GET / HTTP/1.1\r\n\r\n", bytes(64)]
    guesses += [
        Hello(1, epoch, 256, lane=lane).pack() + bytes(32) + pages
        for epoch in epochs
        for lane in PageLane
    ]
    async with site.cluster.aclient() as client:
        expected = await answer_all(client, N_VICTIMS)
        attacked = asyncio.Event()
        victims = asyncio.create_task(answer_until(attacked, client, expected))
        idle = [
            await asyncio.open_connection("127.0.0.1", port) for _ in range(MOST_CONNECTIONS + 100)
        ]
        assert {await guesses_at(port, guess) for guess in guesses} == {0}
        assert await answer_all(client, N_VICTIMS) == expected
        attacked.set()
        await victims
        for _, writer in idle:
            writer.transport.abort()
        assert await answer_all(client, N_VICTIMS) == expected
    assert {w.state for w in (await calm(site)).workers} == {"alive"}


async def test_all_ports_are_of_the_loopback_and_what_clients_may_ask_names_no_worker(
    site: Site,
) -> None:
    for name in ("router-0", "prefill-0", "decode-0"):
        listening = [
            c.laddr.ip
            for c in psutil.Process(site.cluster.pid(name)).net_connections("inet")
            if c.status == "LISTEN"
        ]
        assert set(listening) <= {"127.0.0.1", "::1", "::ffff:127.0.0.1"}, (name, listening)
    async with grpc.aio.insecure_channel(site.cluster.endpoint) as channel:
        stub = inference_pb2_grpc.InferenceServiceStub(channel)
        status = await stub.GetStatus(inference_pb2.GetStatusRequest())
    assert not status.submissions
    text = str(status)
    for worker in site.status().workers:
        assert worker.worker_id not in text
        assert worker.endpoint not in text
        assert str(worker.epoch) not in text
