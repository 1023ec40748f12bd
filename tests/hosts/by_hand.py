"""A router and workers on fake hosts, each started by its own command."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import grpc

from tests.hosts.fake_hosts import Host
from twolane.admin import AdminClient
from twolane.errors import TwolaneError
from twolane.rpc.secret import new_secret, shown
from twolane.status import ClusterStatus
from twolane.v1 import worker_pb2, worker_pb2_grpc

_PORT, _WORKER_PORT = 7200, 7201
_PYTHON = f"{sys.executable} -P -m twolane.deploy"


class ByHand:
    """Processes of one cluster, with fake engines. What they print goes to `log_dir`."""

    def __init__(self, log_dir: Path, *options: str) -> None:
        self.endpoint = ""
        self._log_dir = log_dir
        self._secret = new_secret()
        self._options = " ".join(options)
        self._router: Host | None = None

    def router(self, host: Host) -> None:
        self.endpoint, self._router = f"{host.ip}:{_PORT}", host
        self._start(
            host,
            "router",
            f"router --host {host.ip} --port {_PORT} --worker-port {_WORKER_PORT} "
            "--admin-socket /tmp/admin.sock",
        )

    def worker(self, host: Host, role: str) -> None:
        assert self._router is not None
        name = f"{role}-{host.name}"
        self._start(
            host,
            name,
            f"worker --worker-id {name} --role {role} --engine fake "
            f"--router {self._router.ip}:{_WORKER_PORT}",
        )

    def status(self) -> ClusterStatus:
        assert self._router is not None
        with AdminClient(f"unix:{self._router.root}/tmp/admin.sock") as admin:
            return admin.status()

    async def until_alive(self, n_workers: int, within_s: float = 60.0) -> ClusterStatus:
        async with asyncio.timeout(within_s):
            while True:
                try:
                    status = self.status()
                except TwolaneError:  # it does not serve yet
                    status = None
                if status and sum(w.state == "alive" for w in status.workers) == n_workers:
                    return status
                await asyncio.sleep(0.1)

    async def looks(self) -> dict[str, worker_pb2.InspectResponse]:
        """Inside every worker, by name: the tests reach each of them, whatever is cut."""
        workers = {worker.worker_id: worker.endpoint for worker in self.status().workers}
        found = await asyncio.gather(*(self._look(endpoint) for endpoint in workers.values()))
        return dict(zip(workers, found, strict=True))

    async def _look(self, endpoint: str) -> worker_pb2.InspectResponse:
        async with grpc.aio.insecure_channel(endpoint) as channel:
            stub = worker_pb2_grpc.WorkerServiceStub(channel)
            response: worker_pb2.InspectResponse = await stub.Inspect(
                worker_pb2.InspectRequest(), metadata=shown(self._secret)
            )
            return response

    def _start(self, host: Host, name: str, arguments: str) -> None:
        (host.root / "tmp/secret").write_text(self._secret)
        host.bg(
            f"exec {_PYTHON} {arguments} --bind-host {host.ip} --ports 7300-7399 --insecure "
            f"--secret-file /tmp/secret {self._options}",
            self._log_dir / f"{name}.log",
        )
