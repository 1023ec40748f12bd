"""Who may tell the router what: workers and the launcher at their door, operators at theirs."""

import asyncio
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest

from twolane.aclient import AsyncClient
from twolane.router.config import HttpConfig, RouterConfig, ServerConfig
from twolane.router.testing.client import ask, message
from twolane.router.testing.served import serve_cluster
from twolane.rpc.secret import shown
from twolane.v1 import (
    admin_pb2_grpc,
    cluster_pb2,
    cluster_pb2_grpc,
    inference_pb2,
    inference_pb2_grpc,
)

CODE = grpc.StatusCode


CONFIG = ServerConfig(stop_grace_s=0.2, metrics_port=None)


async def raw_call(channel: Any, method: str, raw: bytes) -> Any:
    return await channel.unary_unary(method)(raw)


async def test_announce_of_nonsense_is_refused_and_a_good_one_is_told_the_interval() -> None:
    async with (
        serve_cluster(config=RouterConfig(), server_config=CONFIG) as (server, cluster),
        grpc.aio.insecure_channel(server.worker_address) as worker_channel,
    ):
        metadata = shown(CONFIG.credentials.secret)
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
        (worker,) = server.router.status().workers
        assert worker.state == "joining"
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await membership.ReportGone(cluster_pb2.ReportGoneRequest(), metadata=metadata)
        assert caught.value.code() is CODE.INVALID_ARGUMENT
        epoch = worker.worker.epoch
        await membership.ReportGone(cluster_pb2.ReportGoneRequest(epoch=epoch), metadata=metadata)
        (worker,) = server.router.status().workers
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
        assert server.gates.refused() == {
            "unauthenticated.Announce": 2,
            "unauthenticated.ReportGone": 2,
        }
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
        async with asyncio.timeout(30.0):
            while not server.router.can_serve():
                await asyncio.sleep(0.01)
        stub = cluster_pb2_grpc.MembershipServiceStub(worker_channel)
        second = cluster.workers["d0"].announce()
        second.worker.epoch = 4711
        for _ in range(3):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await stub.Announce(second, metadata=shown(CONFIG.credentials.secret))
            assert caught.value.code() is CODE.ALREADY_EXISTS
            assert "choose another --worker-id" in str(caught.value.details())
        assert caplog.text.count("worker d0 is alive") == 1
        outcome = await ask(server.router, message([1, 2], max_tokens=3))
        assert len(outcome.tokens) == 3


async def test_operators_come_in_by_a_socket_of_their_own(tmp_path: Path) -> None:
    config = replace(CONFIG, admin_socket=str(tmp_path / "admin.sock"), http=HttpConfig())
    async with serve_cluster("p0", "d0", server_config=config) as (server, _):
        assert server.admin_address == f"unix:{config.admin_socket}"
        assert (tmp_path / "admin.sock").stat().st_mode & 0o777 == 0o600
        async with (
            grpc.aio.insecure_channel(server.admin_address) as channel,
            grpc.aio.insecure_channel(server.address) as clients,
        ):
            admin = admin_pb2_grpc.AdminServiceStub(channel)
            status = await admin.GetClusterStatus(cluster_pb2.GetClusterStatusRequest())
            assert {w.worker.worker_id for w in status.workers} == {"p0", "d0"}
            assert status.http_endpoint == server.http_address
            await admin.DrainWorker(cluster_pb2.DrainWorkerRequest(worker_id="d0"))
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await admin.DrainWorker(cluster_pb2.DrainWorkerRequest(worker_id="?"))
            assert caught.value.code() is CODE.INVALID_ARGUMENT
            for method in ("GetClusterStatus", "DrainWorker", "WatchDrain", "GetStatus"):
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await raw_call(clients, f"/twolane.v1.AdminService/{method}", b"")
                assert caught.value.code() is CODE.UNIMPLEMENTED


async def test_a_socket_that_a_killed_router_left_is_taken_over(tmp_path: Path) -> None:
    path = str(tmp_path / "admin.sock")
    with socket.socket(socket.AF_UNIX) as killed:
        killed.bind(path)
    config = replace(CONFIG, admin_socket=path)
    async with (
        serve_cluster(server_config=config) as (server, _),
        grpc.aio.insecure_channel(server.admin_address) as channel,
    ):
        admin = admin_pb2_grpc.AdminServiceStub(channel)
        await admin.GetClusterStatus(cluster_pb2.GetClusterStatusRequest())


async def test_a_client_hears_of_its_own_requests_and_of_nobody(tmp_path: Path) -> None:
    async with (
        serve_cluster("p0", "d0", server_config=CONFIG, step_s=0.05) as (server, cluster),
        AsyncClient(server.address) as client,
    ):
        assert (await client.generate(token_ids=[1, 2], max_tokens=3)).token_ids
        stream = client.stream(token_ids=[1, 2, 3], max_tokens=1900)
        await anext(stream)
        (mine,) = server.router.status().requests
        async with grpc.aio.insecure_channel(server.address) as channel:
            stub = inference_pb2_grpc.InferenceServiceStub(channel)
            for named in ([], ["another"], [mine.request_id]):
                status = await stub.GetStatus(inference_pb2.GetStatusRequest(submission_ids=named))
                assert not status.submissions
                told = status.SerializeToString()
                hidden = [
                    mine.request_id,
                    mine.submission_id,
                    cluster.workers["d0"].address.endpoint,
                    "d0",
                    "p0",
                ]
                assert not [text for text in hidden if text.encode() in told]
                assert status.serving
            status = await client.status([mine.submission_id, "another"])
            (shown,) = status.submissions
            assert (shown.state, shown.prompt_tokens) == ("running", 3)
            counts = {(count.role, count.state): count.workers for count in status.workers}
            assert counts == {("prefill", "alive"): 1, ("decode", "alive"): 1}
            many = inference_pb2.GetStatusRequest(submission_ids=["x"] * 1001)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await stub.GetStatus(many)
            assert caught.value.code() is CODE.INVALID_ARGUMENT
        stream.cancel()
