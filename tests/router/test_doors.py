"""Who may tell the router what: workers and the launcher at their own door, operators at home."""

from typing import Any

import grpc
import pytest

from router.door import is_loopback
from router.testing.client import message
from router.testing.served import serve_cluster
from twolane.aclient import AsyncClient
from twolane.errors import PermissionDeniedError
from twolane.v1 import cluster_pb2, cluster_pb2_grpc, inference_pb2_grpc

CODE = grpc.StatusCode


async def raw_call(channel: Any, method: str, raw: bytes) -> Any:
    return await channel.unary_unary(method)(raw)


async def test_announce_of_nonsense_is_refused_and_a_good_one_is_told_the_interval() -> None:
    async with (
        serve_cluster() as (server, cluster),
        grpc.aio.insecure_channel(server.address) as channel,
        grpc.aio.insecure_channel(server.worker_address) as worker_channel,
    ):
        stub = cluster_pb2_grpc.MembershipServiceStub(worker_channel)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.Announce(cluster_pb2.AnnounceRequest(model="m"))
        assert caught.value.code() is CODE.INVALID_ARGUMENT
        good = cluster.start_worker("p0", endpoint="127.0.0.1:1").announce()
        bad = cluster_pb2.AnnounceRequest()
        bad.CopyFrom(good)
        bad.page_tokens = 0
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.Announce(bad)
        assert "page_tokens is 0" in str(caught.value.details())
        assert (await stub.Announce(good)).interval_ms == 1000
        admin = cluster_pb2_grpc.AdminServiceStub(channel)
        (worker,) = (await admin.GetStatus(cluster_pb2.GetStatusRequest())).workers
        assert worker.state == "joining"
        await admin.DrainWorker(cluster_pb2.DrainWorkerRequest(worker_id="p0"))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await admin.DrainWorker(cluster_pb2.DrainWorkerRequest(worker_id="?"))
        assert caught.value.code() is CODE.INVALID_ARGUMENT
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.ReportGone(cluster_pb2.ReportGoneRequest())
        assert caught.value.code() is CODE.INVALID_ARGUMENT
        await stub.ReportGone(cluster_pb2.ReportGoneRequest(epoch=worker.worker.epoch))
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
        assert caught.value.code() is CODE.UNIMPLEMENTED


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
