"""A router on the network: two doors for clients (gRPC, HTTP), one for workers, one for operators;
health, reflection, metrics.

Health of the inference service (and of "", the whole) is SERVING only while some model can be
served; a load balancer that reads it sends clients elsewhere meanwhile.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import Counter
from contextlib import AsyncExitStack
from functools import partial
from types import TracebackType

import grpc
from grpc_health.v1 import health_pb2

from twolane.router.background import Background
from twolane.router.config import RouterConfig, ServerConfig
from twolane.router.doors.admin_door import ADMIN, AdminDoor, listen_at
from twolane.router.doors.gates import Gates
from twolane.router.doors.grpc_door import INFERENCE, Door
from twolane.router.doors.http.app import make_app
from twolane.router.doors.http.server import HttpServer
from twolane.router.doors.metrics import RouterMetrics
from twolane.router.doors.scrape_targets import TARGETS, scrape_targets
from twolane.router.doors.worker_door import WorkerDoor
from twolane.router.members.session import WorkerDialer
from twolane.router.router import Router
from twolane.router.store import Store
from twolane.router.tenants.accounts import no_limits
from twolane.router.text.codec import TextCodec
from twolane.rpc.call_gate import CallGate
from twolane.rpc.listen import (
    IN_USE,
    ListenError,
    bare,
    bind_port,
    is_unspecified,
    join,
    try_listen,
)
from twolane.rpc.metrics_http import Headers, MetricsEndpoint
from twolane.rpc.options import INTERNAL_SERVER_OPTIONS
from twolane.rpc.shared_port import SharedPort
from twolane.rpc.standard_services import Health, standard_handlers
from twolane.security.access import METRICS_ROLES
from twolane.security.key_file import KeyFile
from twolane.v1 import cluster_pb2

PUBLISH_S = 0.5  # health and metrics lag behind by this much


class RouterServer:
    """Use as an async context manager: serving inside, stopped with grace at the end.

    async with (
        GrpcDialer(server_config.credentials) as dialer,
        RouterServer(config, server_config, dialer, text) as s,
    ):
        print(s.address, s.http_address, s.worker_address, s.metrics_port)
        await s.wait_stopped()
    """

    def __init__(
        self,
        config: RouterConfig,
        server_config: ServerConfig,
        dialer: WorkerDialer,
        text: TextCodec | None = None,
        *,
        keys: KeyFile | None = None,
        store: Store | None = None,
    ) -> None:
        """`store` is what other routers share with this one. `keys` tells whose an API key is, and
        is read again when it changes. Without it, clients beyond this machine show certificates.
        Raises `ListenError` for a listener that must not be opened."""
        self.metrics = RouterMetrics()
        limits_of = no_limits if keys is None else keys.limits
        self.router = Router(
            config, dialer, text, observer=self.metrics, limits_of=limits_of, store=store
        )
        self._keys = keys
        self.port = 0
        self.worker_port = 0
        self.metrics_port = 0
        self.http_port = 0
        self._config = server_config
        self.gates = Gates(server_config, None if keys is None else keys.identity)
        self._health = Health()
        self._stop_wanted = asyncio.Event()
        self._calls = CallGate(server_config.grpc.calls)
        self._http_refused: Counter[str] = Counter()  # the HTTP door's own
        self.metrics.watch(self._look)

    @property
    def address(self) -> str:
        """host:port of the door for clients."""
        return join(self._config.host, self.port)

    @property
    def worker_address(self) -> str:
        """host:port of the door for workers and the launcher."""
        return join(self._config.advertise_host or self._config.bind_host, self.worker_port)

    @property
    def http_address(self) -> str:
        """host:port of the HTTP door; empty if there is none."""
        return join(self._config.host, self.http_port) if self.http_port else ""

    @property
    def metrics_address(self) -> str:
        """host:port of the metrics; empty if there are none."""
        return join(self._config.host, self.metrics_port) if self.metrics_port else ""

    @property
    def admin_address(self) -> str:
        """unix:PATH of the door for operators; empty if there is none."""
        return f"unix:{self._config.admin_socket}" if self._config.admin_socket else ""

    async def __aenter__(self) -> RouterServer:
        async with AsyncExitStack() as stack:
            if self._config.metrics_port is not None:
                metrics = MetricsEndpoint(
                    self.metrics.registry,
                    pages={TARGETS: self._targets},
                    admit=partial(self.gates.metrics.admit_http, "metrics", METRICS_ROLES),
                    tls=self._config.credentials.ssl_context(self._config.host, "--host"),
                )
                stack.push_async_callback(metrics.close)
                self.metrics_port = _bind(metrics, self._config)
                await metrics.start()
            await stack.enter_async_context(self.router)
            worker_door = self._open_worker_door(stack)
            server = self._make_door()
            http = self._open_http()
            door, gate = Door(self.router, self.gates.clients), self._calls
            stack.push_async_callback(self._stop_doors, server, door, http)
            server.add_handlers(door.handlers(gate))
            server.add_handlers(standard_handlers(self._health, (INFERENCE,), gate))
            config = self._config
            self.port = config.credentials.bind(
                server,
                config.host,
                config.port,
                "--port",
                ports=config.ports,
                certificate=ssl.CERT_OPTIONAL if self.gates.has_keys else ssl.CERT_REQUIRED,
            )
            await self._open_admin_door(stack)
            self._tell_address()
            await worker_door.start()  # sessions say where the other doors are
            await self._publish()
            await server.start()
            background = await stack.enter_async_context(Background())
            background.start(self._publish_forever(), name="publish")
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()
        self.router.stop_accepting()
        await self._stack.__aexit__(kind, error, trace)

    def stop(self) -> None:
        """Make `wait_stopped` return. May be called from a signal handler, and twice."""
        self._stop_wanted.set()

    async def wait_stopped(self) -> None:
        await self._stop_wanted.wait()

    def _make_door(self) -> SharedPort:
        return SharedPort(
            message_bytes=self.router.config.limits.message_bytes,
            connections=self._config.grpc.connections,
            idle_s=self._config.grpc.idle_s,
            interceptors=[self.gates.clients],
        )

    def _tell_address(self) -> None:
        """To the other routers, for their clients."""
        config, address = self._config, self.router.address
        host = config.host
        if is_unspecified(bare(host)):
            host = config.advertise_host or config.bind_host
        address.workers_endpoint = self.worker_address
        address.grpc_endpoint = join(host, self.port)
        address.http_endpoint = join(host, self.http_port) if self.http_port else ""

    def _open_worker_door(self, stack: AsyncExitStack) -> grpc.aio.Server:
        gate, config = self.gates.workers, self._config
        server = grpc.aio.server(interceptors=[gate], options=INTERNAL_SERVER_OPTIONS)
        stack.push_async_callback(server.stop, None)
        server.add_generic_rpc_handlers((WorkerDoor(self.router, gate).handler(),))
        self.worker_port = config.credentials.bind(
            server, config.bind_host, config.worker_port, "--worker-port", ports=config.ports
        )
        return server

    async def _open_admin_door(self, stack: AsyncExitStack) -> None:
        path = self._config.admin_socket
        if not path:
            return
        server = grpc.aio.server(
            interceptors=[self.gates.operators], options=INTERNAL_SERVER_OPTIONS
        )
        stack.push_async_callback(server.stop, None)
        door = AdminDoor(
            self.router,
            http_endpoint=self.http_address,
            metrics_endpoint=self.metrics_address,
            insecure_listeners=self.gates.insecure_listeners(),
        )
        server.add_generic_rpc_handlers((door.handler(),))
        server.add_generic_rpc_handlers(standard_handlers(self._health, (ADMIN,), self._calls))
        try:
            listen_at(server, path)
        except (RuntimeError, OSError) as error:
            raise ListenError(f"cannot listen on {path} (--admin-socket): {error}") from error
        await server.start()

    def _open_http(self) -> HttpServer | None:
        config = self._config
        if config.http is None:
            return None
        app = make_app(self.router, config.http)
        max_bytes = self.router.config.limits.message_bytes
        may = ssl.CERT_OPTIONAL  # a client may show a key instead
        tls = config.credentials.ssl_context(config.host, "--host", certificate=may)
        http = HttpServer(app, config.http, self.gates.clients, max_bytes=max_bytes, tls=tls)
        self._http_refused = http.refused
        self.http_port = bind_port(
            lambda port: http.open(bare(config.host), port),
            config.host, config.http.port, "--http-port", config.ports,
        )  # fmt: skip
        return http

    async def _stop_doors(self, server: SharedPort, door: Door, http: HttpServer | None) -> None:
        """New calls are refused; running ones go on at other routers, or get the grace, at both
        doors the same one."""
        await self._health.enter_graceful_shutdown()
        door.end_streams()
        grace_s = self._config.stop_grace_s

        async def stop_grpc() -> None:
            begun = asyncio.get_running_loop().time()
            await self.router.hand_over(grace_s)
            took_s = asyncio.get_running_loop().time() - begun
            await server.stop(max(0.0, grace_s - took_s))

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(stop_grpc())
            if http is not None:
                tasks.create_task(http.stop(grace_s, self.router.end_answers))

    def _look(self) -> cluster_pb2.GetClusterStatusResponse:
        """For the metrics: everything but single requests."""
        status = self.router.status(with_requests=False)
        status.metrics_endpoint = self.metrics_address
        for reason, n in self.gates.refused().items():
            status.counters[reason] += n
        for refused in (self._calls.refused, self._http_refused):
            for reason, n in refused.items():
                status.counters[f"refused.{reason}"] += n
        return status

    def _targets(self, headers: Headers) -> tuple[bytes, str]:
        return scrape_targets(self._look(), headers.get("host", "")), "application/json"

    async def _publish_forever(self) -> None:
        while True:
            await asyncio.sleep(PUBLISH_S)
            if self._keys is not None:
                ended = await asyncio.to_thread(self._keys.refresh)
                self.router.end_of_keys(ended)
            await self._publish()

    async def _publish(self) -> None:
        serving, not_serving = (
            health_pb2.HealthCheckResponse.SERVING,
            health_pb2.HealthCheckResponse.NOT_SERVING,
        )
        for name in ("", INFERENCE):
            await self._health.set(name, serving if self.router.can_serve() else not_serving)


def _bind(metrics: MetricsEndpoint, config: ServerConfig) -> int:
    """Returns the port: the one asked for, or another if that is in use. Scrapers find it by the
    router's targets and its status, and a router that serves is worth more than its page's port."""
    assert config.metrics_port is not None
    host = bare(config.host)
    is_taken = config.metrics_port and try_listen(host, config.metrics_port) == IN_USE
    return bind_port(
        lambda port: metrics.bind(host, port),
        host, 0 if is_taken else config.metrics_port, "--metrics-port", config.ports,
    )  # fmt: skip
