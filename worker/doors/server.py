"""A worker as a process: gRPC services, announcements, metrics, clean shutdown.

start --> announce each second to every router --> stop: drain, announce "leaving", close
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial

import grpc

from twolane.rpc.call_gate import CallGate, CallGateConfig
from twolane.rpc.channel_options import INTERNAL_SERVER_OPTIONS
from twolane.rpc.listen import bare, bind_port, join
from twolane.rpc.metrics_http import MetricsEndpoint
from twolane.rpc.standard_services import Health, standard_handlers
from twolane.security.access import METRICS_ROLES
from twolane.security.identity import Identity, Role
from twolane.worker.doors.announcer import Announcer
from twolane.worker.doors.services import TRANSFER, WORKER, Services
from twolane.worker.metrics import WorkerMetrics
from twolane.worker.worker import Worker

log = logging.getLogger(__name__)

SERVICES = (WORKER, TRANSFER)
METRICS_HOST = "the metrics' --host"
_FLUSH_S = 5.0  # for peers to receive what their streams have queued


class WorkerServer:
    """Serves a `Worker` over sockets. Raises `ListenError` for one that must not be opened. `run`
    once."""

    def __init__(self, worker: Worker, metrics: WorkerMetrics) -> None:
        self._worker = worker
        self._metrics = metrics
        self._stop = asyncio.Event()
        self.started = asyncio.Event()  # set when it accepts connections
        self.metrics_port: int | None = None
        config = worker.config
        self.gate = config.credentials.gate(
            "the worker's port", config.bind_host, "--bind-host", advertised=config.advertise_host
        )
        self._metrics_gate = config.credentials.gate(
            "the metrics' page",
            config.metrics_host or config.bind_host,
            METRICS_HOST,
            takes_secret=False,
            anonymous=Identity(Role.VIEWER),
        )
        self._announcer: Announcer | None = None

    @property
    def metrics_endpoint(self) -> str:
        """host:port of the metrics; empty if there are none."""
        config = self._worker.config
        host = config.metrics_host or config.advertise_host or config.bind_host
        return join(host, self.metrics_port) if self.metrics_port else ""

    def heard_at(self) -> float | None:
        """When a router was last heard, in the event loop's time; None: none yet."""
        return None if self._announcer is None else self._announcer.heard_at

    def stop(self) -> None:
        """Shut down: finish running rows (up to `drain_for_s`), tell the routers, end `run`."""
        self._stop.set()

    async def run(self) -> None:
        """Serve until `stop`, or until the worker fails: then raises its error."""
        config = self._worker.config
        for router in config.routers:
            config.credentials.check_calls(router, "--router")
        server = grpc.aio.server(interceptors=[self.gate], options=INTERNAL_SERVER_OPTIONS)
        health = Health()
        services = Services(self._worker, self.gate, config.credentials.tls)
        server.add_generic_rpc_handlers(services.handlers())
        gate = CallGate(CallGateConfig())
        server.add_generic_rpc_handlers(standard_handlers(health, SERVICES, gate))
        port = config.credentials.bind(
            server, config.bind_host, config.port, "--port", ports=config.ports
        )
        self._worker.endpoint = join(config.advertise_host or config.bind_host, port)
        metrics_host = config.metrics_host or config.bind_host
        endpoint = MetricsEndpoint(
            self._metrics.registry,
            admit=partial(self._metrics_gate.admit_http, "metrics", METRICS_ROLES),
            tls=config.credentials.ssl_context(metrics_host, METRICS_HOST),
        )
        self._metrics.watch(self._worker, self.gate.refused)
        try:
            if config.metrics_port is not None:
                own = (config.metrics_ports, "--worker-metrics-ports")
                self.metrics_port = bind_port(
                    lambda port: endpoint.bind(bare(metrics_host), port),
                    metrics_host, config.metrics_port, "--metrics-port",
                    *(own if config.metrics_ports else (config.ports, "--ports")),
                )  # fmt: skip
                await endpoint.start()
            await server.start()
            for service in ("", *SERVICES):
                health.set(service, serving=True)
            log.info("worker %s serves on %s", config.worker_id, self._worker.endpoint)
            await self._serve(health, services)
        finally:
            health.end()
            await server.stop(grace=0.2)
            await endpoint.close()

    async def _serve(self, health: Health, services: Services) -> None:
        announcer = Announcer(self._worker, metrics_endpoint=self.metrics_endpoint)
        self._announcer = announcer
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(self._worker.run(), name="worker")
            announcing = tasks.create_task(announcer.run(), name="announcer")
            self.started.set()
            await self._stop.wait()
            health.leave()
            self._worker.drain()
            await self._wait_drained()
            announcing.cancel()
            await announcer.leave()
            await self._finish(services)
            running.cancel()

    async def _wait_drained(self) -> None:
        try:
            async with asyncio.timeout(self._worker.config.drain_for_s):
                await self._worker.wait_drained()
        except TimeoutError:
            log.warning("stopping with unfinished rows after %s s", self._worker.config.drain_for_s)

    async def _finish(self, services: Services) -> None:
        try:
            await services.finish(_FLUSH_S)
        except TimeoutError:
            log.warning("a peer did not read its last messages within %s s", _FLUSH_S)
