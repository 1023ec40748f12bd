"""A router and workers on fake hosts, each started by its own command, with TLS everywhere."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.hosts.certificates import FLAGS, files_of, give_certificates
from tests.hosts.fake_hosts import Host
from twolane.admin import AdminClient
from twolane.config import ClientConfig
from twolane.errors import TwolaneError
from twolane.rpc.listen import host_of
from twolane.rpc.secret import new_secret
from twolane.security.credentials import Credentials
from twolane.security.identity import Role
from twolane.status import ClusterStatus
from twolane.v1 import worker_pb2, worker_pb2_grpc

_PORT, _WORKER_PORT = 7200, 7201
_PYTHON = f"{sys.executable} -P -m twolane.deploy"


class ByHand:
    """Processes of one cluster, with fake engines. What they print goes to `log_dir`."""

    def __init__(self, hosts: Sequence[Host], log_dir: Path) -> None:
        self.endpoint = ""
        self._log_dir = log_dir
        self._secret = new_secret()  # means nothing beyond the loopback
        self._router: Host | None = None
        names = [f"{role}-{host.name}" for host in hosts for role in ("prefill", "decode")]
        give_certificates(hosts, names)
        self._operator = Credentials(secret="", tls=files_of(hosts[0], "operator"))
        its = files_of(hosts[0], "client")
        self.client_config = ClientConfig(ca=its.ca, cert=its.cert, key=its.key)

    def router(self, host: Host) -> None:
        self.endpoint, self._router = f"{host.ip}:{_PORT}", host
        self._start(
            host,
            "router",
            f"router --router-id router-0 --host {host.ip} --port {_PORT} "
            f"--worker-port {_WORKER_PORT} --admin-socket /tmp/admin.sock",
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

    async def until_alive(self, n_workers: int, within_s: float = 180.0) -> ClusterStatus:
        async with asyncio.timeout(within_s):
            while True:
                try:
                    status = self.status()
                except TwolaneError:  # it does not serve yet
                    status = None
                if status and sum(w.state == "alive" for w in status.workers) == n_workers:
                    return status
                await asyncio.sleep(0.1)

    async def looks(self, hosts: Sequence[Host] = ()) -> dict[str, worker_pb2.InspectResponse]:
        """Inside every worker, or those of some hosts, by name: the tests reach each of them,
        whatever is cut."""
        at = [host.ip for host in hosts]
        workers = {
            worker.worker_id: worker.endpoint
            for worker in self.status().workers
            if not at or host_of(worker.endpoint) in at
        }
        found = await asyncio.gather(*(self._look(endpoint) for endpoint in workers.values()))
        return dict(zip(workers, found, strict=True))

    async def _look(self, endpoint: str) -> worker_pb2.InspectResponse:
        async with self._operator.channel(endpoint, Role.WORKER) as channel:
            stub = worker_pb2_grpc.WorkerServiceStub(channel)
            response: worker_pb2.InspectResponse
            response = await stub.Inspect(worker_pb2.InspectRequest())
            return response

    def _start(self, host: Host, name: str, arguments: str) -> None:
        (host.root / "tmp/secret").write_text(self._secret)
        host.bg(
            f"exec {_PYTHON} {arguments} --bind-host {host.ip} --ports 7300-7399 "
            f"--secret-file /tmp/secret {FLAGS}",
            self._log_dir / f"{name}.log",
        )
