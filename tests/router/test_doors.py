"""Who may tell the router what: workers and the launcher at their own door, operators at home."""

from typing import Any

import grpc
import pytest

from router.config import ServerConfig
from router.door import is_loopback
from router.testing.client import ask, message
from router.testing.served import serve_cluster
from twolane.aclient import AsyncClient
from twolane.errors import PermissionDeniedError
from twolane.rpc.secret import shown
from twolane.v1 import cluster_pb2, cluster_pb2_grpc, inference_pb2_grpc

CODE = grpc.StatusCode


CONFIG = ServerConfig(stop_grace_s=0.2, metrics_port=None)


async def raw_call(channel: Any, method: str, raw: bytes) -> Any:
    return await channel.unary_unary(method)(raw)


async def test_announce_of_nonsense_is_refused_and_a_good_one_is_told_the_interval() -> None:
    async with (
        serve_cluster(server_config=CONFIG) as (server, cluster),
        grpc.aio.insecure_channel(server.address) as channel,
        grpc.aio.insecure_channel(server.worker_address) as worker_channel,
    ):
        metadata = shown(CONFIG.secret)
        membership = cluster_pb2_grpc.MembershipServiceStub(worker_channel)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await membership.Announce(cluster_pb2.AnnounceRequest(model="m"), metadata=metadata)
        assert caught.value.code() is CODE.INVALID_ARGUMENT
        good = cluster.start_worker("p0", endpoint="127.0.0.1:1").announce()
        bad = cluster_pb2.AnnounceRequest()
        bad.CopyFrom(good)
        bad.page_tokens = 0
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await membership.Announce(bad, metadata=metadata)
        assert "page_tokens is 0" in str(caught.value.details())
        assert (await membership.Announce(good, metadata=metadata)).interval_ms == 1000
        admin = cluster_pb2_grpc.AdminServiceStub(channel)
        (worker,) = (await admin.GetStatus(cluster_pb2.GetStatusRequest())).workers
        assert worker.state == "joining"
        await admin.DrainWorker(cluster_pb2.DrainWorkerRequest(worker_id="p0"))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await admin.DrainWorker(cluster_pb2.DrainWorkerRequest(worker_id="?"))
        assert caught.value.code() is CODE.INVALID_ARGUMENT
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await membership.ReportGone(cluster_pb2.ReportGoneRequest(), metadata=metadata)
        assert caught.value.code() is CODE.INVALID_ARGUMENT
        epoch = worker.worker.epoch
        await membership.ReportGone(cluster_pb2.ReportGoneRequest(epoch=epoch), metadata=metadata)
        (worker,) = (await admin.GetStatus(cluster_pb2.GetStatusRequest())).workers
        assert worker.state == "gone"
        cluster.workers["p0"].kill()


async def test_who_is_at_the_clients_door_can_neither_take_traffic_nor_free_pages() -> None:
    async with (
        serve_cluster("p0", "d0") as (server, cluster),
        grpc.aio.insecure_channel(server.address) as channel,
    ):
        stub = cluster_pb2_grpc.MembershipServiceStub(channel)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.Announce(cluster.workers["p0"].announce())
        assert caught.value.code() is CODE.UNIMPLEMENTED
        epoch = cluster.workers["d0"].epoch
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.ReportGone(cluster_pb2.ReportGoneRequest(epoch=epoch))
        assert caught.value.code() is CODE.UNIMPLEMENTED
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await raw_call(channel, "/twolane.v1.AdminService/ReportGone", b"")
        assert caught.value.code() is CODE.UNIMPLEMENTED
        assert server.worker_address.startswith("127.0.0.1:")
        async with grpc.aio.insecure_channel(server.worker_address) as worker_channel:
            generate = inference_pb2_grpc.InferenceServiceStub(worker_channel).Generate
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await anext(aiter(generate(message([1, 2], max_tokens=3))))
        assert caught.value.code() is CODE.UNAUTHENTICATED


async def test_nobody_without_the_secret_brings_workers_frees_pages_or_floods_the_router() -> None:
    async with (
        serve_cluster("p0", "d0", server_config=CONFIG) as (server, cluster),
        grpc.aio.insecure_channel(server.worker_address) as worker_channel,
    ):
        stub = cluster_pb2_grpc.MembershipServiceStub(worker_channel)
        stranger = cluster.workers["d0"].announce()
        stranger.worker.epoch = 4711
        report = cluster_pb2.ReportGoneRequest(epoch=cluster.workers["d0"].epoch)
        for call, request in ((stub.Announce, stranger), (stub.ReportGone, report)):
            for metadata in ((), shown("0" * 64)):
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await call(request, metadata=metadata)
                assert caught.value.code() is CODE.UNAUTHENTICATED
        assert server.gate.refused == {"Announce": 2, "ReportGone": 2}
        states = {w.worker.epoch: w.state for w in server.router.status().workers}
        assert 4711 not in states
        assert states[report.epoch] != "gone"


async def test_a_second_worker_of_one_id_is_already_exists_and_both_logs_say_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with (
        serve_cluster("p0", "d0", server_config=CONFIG) as (server, cluster),
        grpc.aio.insecure_channel(server.worker_address) as worker_channel,
    ):
        stub = cluster_pb2_grpc.MembershipServiceStub(worker_channel)
        second = cluster.workers["d0"].announce()
        second.worker.epoch = 4711
        for _ in range(3):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await stub.Announce(second, metadata=shown(CONFIG.secret))
            assert caught.value.code() is CODE.ALREADY_EXISTS
            assert "choose another --worker-id" in str(caught.value.details())
        assert caplog.text.count("worker d0 is alive") == 1
        outcome = await ask(server.router, message([1, 2], max_tokens=3))
        assert len(outcome.tokens) == 3


async def test_drain_from_beyond_the_loopback_is_denied(monkeypatch: pytest.MonkeyPatch) -> None:
    request = cluster_pb2.DrainWorkerRequest(worker_id="d0")
    async with (
        serve_cluster("p0", "d0") as (server, _),
        grpc.aio.insecure_channel(server.address) as channel,
        AsyncClient(server.address) as client,
    ):
        stub = cluster_pb2_grpc.AdminServiceStub(channel)
        with monkeypatch.context() as elsewhere:
            elsewhere.setattr("router.door.is_loopback", lambda peer: False)
            with pytest.raises(PermissionDeniedError, match=r"loopback.*came from ipv4:"):
                await client.drain("d0")
            await client.status()
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await stub.DrainWorker(request)
        assert caught.value.code() is CODE.PERMISSION_DENIED
        assert "PERMISSION_DENIED" in str(caught.value.trailing_metadata())
        await stub.DrainWorker(request)


@pytest.mark.parametrize(
    ("peer", "expected"),
    [
        ("ipv4:127.0.0.1:50", True),
        ("ipv4:127.9.9.9:50", True),
        ("ipv6:%5B::1%5D:50", True),
        ("ipv6:[::1]:50", True),
        ("unix:/run/x", True),
        ("ipv4:10.0.0.7:50", False),
        ("ipv6:%5Bfe80::1%5D:50", False),
        ("ipv6:%5B::ffff:127.0.0.1%5D:50", True),
        ("ipv6:%5B::ffff:10.0.0.7%5D:50", False),
        ("vsock:2:5", False),
        ("", False),
    ],
)
def test_loopback_is_told_from_every_other_peer(peer: str, expected: bool) -> None:
    assert is_loopback(peer) is expected
