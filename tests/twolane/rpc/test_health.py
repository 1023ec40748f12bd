"""The health service, with watchers that read and one that does not."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable

import grpc
from grpc_health.v1 import health_pb2

from tests import h2
from tests.until import until
from twolane.router.config import ServerConfig
from twolane.router.testing.served import serve_cluster
from twolane.rpc.call_gate import CallGate, CallGateConfig, Context
from twolane.rpc.standard_services import Health, standard_handlers

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
UNKNOWN = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
STOPS_WITHIN_S = 20.0  # of its own accord; its grace is longer


class _Watcher:
    """A gRPC context that hears statuses while it reads."""

    def __init__(self, *, reads: bool = True) -> None:
        self.heard: list[int] = []
        self.reads = asyncio.Event()
        if reads:
            self.reads.set()

    async def write(self, response: health_pb2.HealthCheckResponse) -> None:
        await self.reads.wait()
        self.heard.append(response.status)


async def test_watchers_hear_each_change_once_and_are_let_go_at_the_end() -> None:
    health, ours, other = Health(), _Watcher(), _Watcher()
    async with asyncio.timeout(20), asyncio.TaskGroup() as tasks:
        tasks.create_task(health.watch(health_pb2.HealthCheckRequest(service="a"), ours))
        tasks.create_task(health.watch(health_pb2.HealthCheckRequest(service="b"), other))
        for serving in (True, True, False, True):
            await asyncio.sleep(0.01)
            health.set("a", serving=serving)
        await asyncio.sleep(0.01)
        health.end()
        health.set("a", serving=True)
    assert ours.heard == [UNKNOWN, SERVING, NOT_SERVING, SERVING, NOT_SERVING]
    assert other.heard == [UNKNOWN]


async def test_a_watcher_that_reads_late_hears_the_latest_status_and_keeps_nobody_waiting() -> None:
    health, late, ours = Health(), _Watcher(reads=False), _Watcher()
    async with asyncio.timeout(20), asyncio.TaskGroup() as tasks:
        for watcher in (late, ours):
            tasks.create_task(health.watch(health_pb2.HealthCheckRequest(), watcher))
        await until(lambda: ours.heard == [SERVING])
        health.set("", serving=False)
        await until(lambda: ours.heard == [SERVING, NOT_SERVING])
        health.end()
        late.reads.set()
    assert late.heard == [SERVING, NOT_SERVING]


async def test_a_server_that_drains_is_not_asked_again_and_again() -> None:
    """gRPC's clients begin a watch that has ended at once again, thousands of times a second."""
    n_watches, health, server = 0, Health(), grpc.aio.server()
    watch = health.watch

    def count(request: health_pb2.HealthCheckRequest, context: Context) -> Awaitable[None]:
        nonlocal n_watches
        n_watches += 1
        return watch(request, context)

    health.watch = count  # type: ignore[method-assign, assignment]
    server.add_generic_rpc_handlers(standard_handlers(health, (), CallGate(CallGateConfig())))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    by_health = {
        "healthCheckConfig": {"serviceName": ""},
        "loadBalancingConfig": [{"round_robin": {}}],
    }
    options = [("grpc.service_config", json.dumps(by_health))]
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=options) as channel:
        async with asyncio.timeout(20):
            await channel.channel_ready()
            health.leave()
            while channel.get_state() is grpc.ChannelConnectivity.READY:
                await asyncio.sleep(0.01)
        await asyncio.sleep(0.2)
        assert n_watches == 1
        health.end()
        await server.stop(None)


async def test_a_watch_that_is_not_read_keeps_no_router_from_stopping() -> None:
    config = ServerConfig(stop_grace_s=0.5, metrics_port=None, http=None)
    async with serve_cluster("p0", "d0", server_config=config) as (server, _):
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(h2.hello(window=0) + h2.call("/grpc.health.v1.Health/Watch", 1))
        writer.write(h2.message(b"", 1))
        pings = asyncio.create_task(h2.answer_pings(reader, writer))
        await until(lambda: server._calls._open.total())
        async with asyncio.timeout(STOPS_WITHIN_S):
            await server.__aexit__(None, None, None)
        writer.close()
        await pings
