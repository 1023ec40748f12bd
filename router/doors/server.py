"""A router's network services: two doors for clients (gRPC, HTTP), one for workers, one for
operators; health, reflection, metrics.

The health of the inference service (and of "", the whole server) is SERVING only while some model
can be served, so that a load balancer sends clients elsewhere meanwhile.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import Counter
from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import partial
from types import TracebackType

import grpc

from twolane.router.background import Background
from twolane.router.config import RouterConfig, ServerConfig
from twolane.router.doors.admin.door import ADMIN, AdminDoor, listen_at
from twolane.router.doors.admin.looks import Looks
from twolane.router.doors.admin.own import OwnLooks
from twolane.router.doors.admin.pages import PagesOfWorkers
from twolane.router.doors.admin.worker_calls import WorkerCalls
from twolane.router.doors.console.routes import Console
from twolane.router.doors.gates import Gates
from twolane.router.doors.grpc_door import INFERENCE, Door
from twolane.router.doors.http.app import make_app
from twolane.router.doors.http.caller import HttpGates
from twolane.router.doors.http.server import HttpServer
from twolane.router.doors.metrics import RouterMetrics
from twolane.router.doors.peer_calls import PeerCalls
from twolane.router.doors.peer_door import PeerDoor
from twolane.router.doors.scrape_targets import TARGETS, scrape_targets
from twolane.router.doors.vllm_names import Live
from twolane.router.doors.worker_door import WorkerDoor
from twolane.router.members.session import WorkerDialer
from twolane.router.operators.configuration import Options
from twolane.router.requests.traces import NO_TRACES, Traces
from twolane.router.router import Router
from twolane.router.store import LocalStore, Store, to_record
from twolane.router.tenants.accounts import no_limits
from twolane.router.text.codec import TextCodec
from twolane.rpc.call_gate import CallGate
from twolane.rpc.channel_options import INTERNAL_SERVER_OPTIONS
from twolane.rpc.listen import (
    IN_USE,
    ListenError,
    bare,
    bind_port,
    is_local,
    is_unspecified,
    join,
    try_listen,
)
from twolane.rpc.metrics_http import Headers, MetricsEndpoint
from twolane.rpc.shared_port import SharedPort
from twolane.rpc.standard_services import Health, standard_handlers
from twolane.security.access import METRICS_ROLES
from twolane.security.console_tokens import ConsoleTokens
from twolane.security.credentials import Protection
from twolane.security.gate import Gate
from twolane.security.key_file import KeyFile
from twolane.v1 import cluster_pb2

PUBLISH_S = 0.5  # health and metrics lag behind by this much
NOT_SERVING_S = 0.05  # health, while there are too few workers


class RouterServer:
    """Use as an async context manager: it serves inside the block, and stops gracefully at the end.

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
        traces: Traces = NO_TRACES,
        options: Callable[[Callable[[RouterConfig], None]], Options] | None = None,
    ) -> None:
        """`options` makes the options that operators see and set, of what makes a config hold.
        `store` is the store shared with other routers. `keys` is the file of API keys, which is
        reread when it changes. Without it, clients on other machines must present certificates.
        Raises `ListenError` for a listener that must not be opened."""
        self.metrics = RouterMetrics()
        limits_of = no_limits if keys is None else keys.limits
        store = LocalStore() if store is None else store
        self.router = Router(
            config, dialer, text,
            observer=self.metrics, limits_of=limits_of, store=store, traces=traces,
        )  # fmt: skip
        self._keys = keys
        self._store = store
        self._options = options
        self.port = 0
        self.worker_port = 0
        self.admin_port = 0
        self.metrics_port = 0
        self.http_port = 0
        self._config = server_config
        self._console = ConsoleTokens(server_config.credentials.secret)
        self.gates = Gates(server_config, None if keys is None else keys.identity, self._console)
        self._health = Health()
        self._http: HttpServer | None = None
        self._admin_doors: list[AdminDoor] = []
        self._stop_wanted = asyncio.Event()
        self._calls = CallGate(server_config.grpc.calls)
        self._peers = PeerCalls(self.router, server_config.credentials)
        self._own = OwnLooks(self.router, server_config.credentials.tls)
        self._http_refused: Counter[str] = Counter()  # refused by the HTTP door itself
        self.metrics.watch(self._look, self._live)

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

    @property
    def admin_port_address(self) -> str:
        """host:port of the listener for operators and viewers; empty if there is none."""
        host = self._config.advertise_host or self._config.bind_host
        return join(host, self.admin_port) if self.admin_port else ""

    async def __aenter__(self) -> RouterServer:
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self.router)
            stack.push_async_callback(self._stop_acts)  # they may take as long as answers
            operations = self.router.operations
            if self._options is not None:  # before a controller can tell what is set
                operations.configuration.options = self._options(operations.configure)
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
            worker_door = self._open_worker_door(stack)
            server = self._door = self._make_door()
            self._http = self._open_http()
            door, gate = Door(self.router, self.gates.clients, self._peers), self._calls
            stack.push_async_callback(self._stop_doors, door)
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
            self._tell_address()
            await self._open_admin_doors(stack)
            await worker_door.start()  # later, because sessions announce the other doors
            self._publish()
            await server.start()
            background = await stack.enter_async_context(Background())
            background.start(self._publish_forever(), name="publish")
            most = config.grpc.connections_per_peer
            background.start(server.bound_peers(most), name="bound peers")
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()
        try:
            await self._door.leave_port()
            if self._http is not None and self._config.shares_ports:
                await self._http.leave_port()
        finally:
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
            with_others=self._config.shares_ports,
        )

    def _tell_address(self) -> None:
        """Announce this router's address to the other routers, for their clients."""
        config, address = self._config, self.router.address
        host = config.host
        if is_unspecified(bare(host)):
            host = config.advertise_host or config.bind_host
        address.workers_endpoint = self.worker_address
        address.grpc_endpoint = join(host, self.port)
        address.http_endpoint = join(host, self.http_port) if self.http_port else ""
        self._store.introduce(to_record(address))

    def _whole_look(self, with_requests: bool) -> cluster_pb2.GetClusterStatusResponse:
        """This router's complete status, for operators."""
        status = self.router.status(with_requests=with_requests)
        status.http_endpoint = self.http_address
        status.http_tls = self._http_scheme() == "https"
        status.metrics_endpoint = self.metrics_address
        status.insecure_listeners.extend(self.gates.insecure_listeners())
        return status

    def _open_worker_door(self, stack: AsyncExitStack) -> grpc.aio.Server:
        gate, config = self.gates.workers, self._config
        server = grpc.aio.server(interceptors=[gate], options=INTERNAL_SERVER_OPTIONS)
        stack.push_async_callback(server.stop, None)
        server.add_generic_rpc_handlers((WorkerDoor(self.router, gate).handler(),))
        server.add_generic_rpc_handlers(
            (PeerDoor(self.router, self._whole_look, self._own).handler(),)
        )
        self.worker_port = config.credentials.bind(
            server, config.bind_host, config.worker_port, "--worker-port", ports=config.ports
        )
        return server

    async def _open_admin_doors(self, stack: AsyncExitStack) -> None:
        """The socket, and the port, where they are wanted."""
        config = self._config
        if config.admin_socket:
            server = self._admin_server(stack, self.gates.operators)
            try:
                listen_at(server, config.admin_socket)
            except (RuntimeError, OSError) as error:
                where = f"{config.admin_socket} (--admin-socket)"
                raise ListenError(f"cannot listen on {where}: {error}") from error
            await server.start()
        if config.admin_port is not None:
            server = self._admin_server(stack, self.gates.admin_port)
            self.admin_port = config.credentials.bind(
                server, config.bind_host, config.admin_port, "--admin-port", ports=config.ports
            )
            await server.start()

    def _admin_server(self, stack: AsyncExitStack, gate: Gate) -> grpc.aio.Server:
        server = grpc.aio.server(interceptors=[gate], options=INTERNAL_SERVER_OPTIONS)
        stack.push_async_callback(server.stop, None)
        workers = WorkerCalls(self._config.credentials)
        look, peers, own = self._whole_look, self._peers, self._own
        url = f"{self._http_scheme()}://{self.router.address.http_endpoint}/console"
        door = AdminDoor(
            self.router, look, peers, own, workers, gate,
            console=self._console,
            console_url=url if self.http_port else "",
        )  # fmt: skip
        self._admin_doors.append(door)
        server.add_generic_rpc_handlers((door.handler(),))
        server.add_generic_rpc_handlers(standard_handlers(self._health, (ADMIN,), self._calls))
        return server

    async def _stop_acts(self) -> None:
        for door in self._admin_doors:
            await door.stop()

    def _open_http(self) -> HttpServer | None:
        config = self._config
        if config.http is None:
            return None
        pages = PagesOfWorkers(self.router, WorkerCalls(config.credentials))
        looks = Looks(self.router, self._whole_look, self._peers, self._own, pages)
        app = make_app(self.router, config.http, Console(looks).routes)
        is_open = is_local(config.host) and not self.gates.has_keys
        ours = {"0.0.0.0", "::", bare(config.advertise_host).lower()}  # the first two are dialled
        hosts = ours if is_open else None
        gates = HttpGates(self.gates.clients, self.gates.console, hosts)
        max_bytes = self.router.config.limits.message_bytes
        may = ssl.CERT_OPTIONAL  # a client may present an API key instead
        tls = config.credentials.ssl_context(config.host, "--host", certificate=may)
        http = HttpServer(app, config.http, gates, max_bytes=max_bytes, tls=tls)
        self._http_refused = http.refused
        self.http_port = bind_port(
            lambda port: http.open(bare(config.host), port, shares_port=config.shares_ports),
            config.host, config.http.port, "--http-port", config.ports,
        )  # fmt: skip
        return http

    def _http_scheme(self) -> str:
        config = self._config
        is_tls = config.credentials.protection(config.host, "--host") is Protection.TLS
        return "https" if is_tls else "http"

    async def _stop_doors(self, door: Door) -> None:
        """Let running calls continue at other routers, or within a grace period, which is the same
        at both doors."""
        self._health.end()
        door.end_streams()
        grace_s = self._config.stop_grace_s
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._door.stop(grace_s))
            tasks.create_task(self.router.hand_over(grace_s))
            if self._http is not None:
                tasks.create_task(self._http.stop(grace_s, self.router.end_answers))

    def _look(self) -> cluster_pb2.GetClusterStatusResponse:
        """The status without single requests, for the metrics."""
        status = self.router.status(with_requests=False)
        status.metrics_endpoint = self.metrics_address
        for reason, n in self.gates.refused().items():
            status.counters[reason] += n
        for refused in (self._calls.refused, self._http_refused):
            for reason, n in refused.items():
                status.counters[f"refused.{reason}"] += n
        return status

    def _live(self) -> dict[str, Live]:
        counts = self.router.operations.requests.n_by_model()
        return {model: Live(*count) for model, count in counts.items()}

    def _targets(self, headers: Headers) -> tuple[bytes, str]:
        return scrape_targets(self._look(), headers.get("host", "")), "application/json"

    async def _publish_forever(self) -> None:
        while True:
            await asyncio.sleep(PUBLISH_S if self.router.can_serve() else NOT_SERVING_S)
            if self._keys is not None:
                ended = await asyncio.to_thread(self._keys.refresh)
                self.router.operations.end_of_keys(ended)
            others = self.router.known.others(asyncio.get_running_loop().time())
            self.router.operations.changes.note_routers([its.router_id for its in others])
            self.router.operations.changes.note_store(self._store.health)
            self._publish()

    def _publish(self) -> None:
        for name in ("", INFERENCE):
            self._health.set(name, serving=self.router.can_serve())


def _bind(metrics: MetricsEndpoint, config: ServerConfig) -> int:
    """Bind the metrics endpoint, at another port if the configured one is in use, and return the
    port. A serving router matters more than the port of its metrics, which scrapers find through
    the router's targets and status."""
    assert config.metrics_port is not None
    host = bare(config.host)
    is_taken = config.metrics_port and try_listen(host, config.metrics_port) == IN_USE
    return bind_port(
        lambda port: metrics.bind(host, port),
        host, 0 if is_taken else config.metrics_port, "--metrics-port", config.ports,
    )  # fmt: skip
