"""A `RouterServer` and its scripted workers, each behind a real gRPC server on loopback."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import grpc

from twolane.router.config import MembershipConfig, RouterConfig, ServerConfig
from twolane.router.doors.server import RouterServer
from twolane.router.members.dialer import GrpcDialer
from twolane.router.requests.traces import NO_TRACES, Traces
from twolane.router.store import Store
from twolane.router.testing.cluster import ScriptedCluster
from twolane.router.testing.worker import ScriptedWorker
from twolane.router.text.codec import TextCodec
from twolane.rpc.channel_options import INTERNAL_SERVER_OPTIONS
from twolane.rpc.link import GrpcLink
from twolane.security.key_file import KeyFile
from twolane.v1 import worker_pb2, worker_pb2_grpc

# All workers have announced themselves before a client calls: none waits two seconds for others.
SETTLED = MembershipConfig(announce_interval_s=0.05)


class _Servicer(worker_pb2_grpc.WorkerServiceServicer):
    def __init__(self) -> None:
        self.worker: ScriptedWorker | None = None

    async def Session(self, request_iterator: Any, context: Any) -> None:
        assert self.worker is not None
        link: GrpcLink[worker_pb2.SessionResponse, worker_pb2.SessionRequest] = GrpcLink(context)
        await self.worker.serve(link)


@asynccontextmanager
async def serve_cluster(
    *worker_ids: str,
    config: RouterConfig | None = None,
    server_config: ServerConfig | None = None,
    text: TextCodec | None = None,
    keys: KeyFile | None = None,
    store: Store | None = None,
    traces: Traces = NO_TRACES,
    **knobs: Any,
) -> AsyncIterator[tuple[RouterServer, ScriptedCluster]]:
    """Serve a router and its workers on this event loop, each at its own port."""
    cluster = ScriptedCluster()
    config = config or RouterConfig(membership=SETTLED)
    server_config = server_config or ServerConfig(stop_grace_s=0.2, metrics_port=None)
    async with AsyncExitStack() as stack:
        dialer = await stack.enter_async_context(GrpcDialer(server_config.credentials))
        router_server = await stack.enter_async_context(
            RouterServer(config, server_config, dialer, text, keys=keys, store=store, traces=traces)
        )
        cluster.router_announce = router_server.router.announce
        for worker_id in worker_ids:
            gate = server_config.credentials.gate(worker_id, "127.0.0.1", "--host")
            server = grpc.aio.server(interceptors=[gate], options=INTERNAL_SERVER_OPTIONS)
            stack.push_async_callback(server.stop, None)
            servicer = _Servicer()
            worker_pb2_grpc.add_WorkerServiceServicer_to_server(servicer, server)
            port = server_config.credentials.bind(server, "127.0.0.1", 0, "--port")
            endpoint = f"127.0.0.1:{port}"
            await server.start()
            servicer.worker = cluster.start_worker(worker_id, endpoint=endpoint, **knobs)
            stack.callback(servicer.worker.kill)
        yield router_server, cluster
