"""A router, a worker and an agent in this process, all their listeners at one address."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from tests.deploy.clusters import model_with
from tests.pki import Pki
from twolane.config import CONTROLLER_SOCKET_NAME
from twolane.deploy.agent.config import AgentConfig
from twolane.deploy.agent.made_hosts import MadeHosts
from twolane.deploy.agent.server import AgentServer
from twolane.deploy.bundled import model_path
from twolane.deploy.kubernetes.keda import ExternalScaler, serve
from twolane.deploy.launch.controller_door import ControllerDoor, open_controller_door
from twolane.deploy.process.serving import Where, serving
from twolane.deploy.spec.settings import RouterSettings, TimingSpec
from twolane.deploy.spec.specs import RouterSpec, WorkerSpec
from twolane.rpc.listen import join
from twolane.security.credentials import Credentials
from twolane.security.identity import Role

CONSOLE_PAGE = [
    f"/console{name}"
    for name in ("", "/console.css", "/console.js", "/chat.js", "/dom.js", "/scaler.js")
]
CONSOLE_API = {  # path: roles; nobody is in without a token, not even on the loopback
    "/console/api/look": "operator viewer",
    "/console/api/request": "operator viewer",
    "/console/api/chat": "operator",
}
SECRET = "a-secret-of-the-cluster"
TIMING = TimingSpec(heartbeat_s=0.05, suspicion_s=15, lease_s=30, grace_s=1.0, stop_grace_s=0.2)


@dataclass(frozen=True)
class Served:
    """The processes, and how each listener is reached."""

    router: Where
    worker: Where
    agent: str  # its endpoint
    controller: str  # the endpoint of the launcher
    keda: str  # of KEDA's scaler

    @property
    def listeners(self) -> dict[str, tuple[str, Role]]:
        """Without TLS there is no port for operators of other machines."""
        found = {
            "clients": (self.router.endpoint, Role.ROUTER),
            "workers": (self.router.worker_endpoint, Role.ROUTER),
            "operators": (self.router.admin_endpoint, Role.ROUTER),
            "operators' port": (self.router.admin_port_endpoint, Role.ROUTER),
            "worker": (self.worker.endpoint, Role.WORKER),
            "agent": (self.agent, Role.AGENT),
            "controller": (self.controller, Role.CONTROLLER),
            "keda": (self.keda, Role.CONTROLLER),
        }
        return {name: its for name, its in found.items() if its[0]}


@asynccontextmanager
async def cluster(
    folder: Path, host: str, pki: Pki | None, *, keys: Path | None = None
) -> AsyncIterator[Served]:
    """A router, a worker with both roles that it knows, and an agent. With `keys`, clients show
    API keys."""
    model = model_with(model_dir=model_path(), engine="fake", n_pages=64)
    router_spec = RouterSpec(
        router_id="router-0",
        model=model,
        settings=RouterSettings(
            host=host,
            port=0,
            http_port=0,
            admin_port=None if pki is None else 0,
            keys=None if keys is None else str(keys),
        ),
        secret=SECRET,
        bind_host=host,
        admin_socket=str(folder / "admin.sock"),
        timing=TIMING,
        tls=None if pki is None else pki.files("router/router-0"),
    )
    async with serving(router_spec) as router:
        spec = WorkerSpec(
            worker_id="w-0",
            epoch=7,
            roles=("prefill", "decode"),
            model=model,
            routers=(router.worker_endpoint,),
            secret=SECRET,
            bind_host=host,
            timing=TIMING,
            tls=None if pki is None else pki.files("worker/w-0"),
        )
        config = AgentConfig(
            host_name="host-0",
            state_dir=folder / "agent",
            log_dir=folder / "logs",
            credentials=Credentials(
                secret=SECRET, tls=None if pki is None else pki.files("agent/host-0")
            ),
            bind_host=host,
        )
        controllers = Credentials(
            secret=SECRET, tls=None if pki is None else pki.files("controller/controller")
        )
        door = ControllerDoor(cast(Any, None), lambda: None, lambda event: None)
        async with (
            serving(spec) as worker,
            AgentServer(config) as agent,
            open_controller_door(door, folder),
            serve(
                ExternalScaler(MadeHosts({}, {}), [], lambda: True), controllers, host, 0
            ) as keda,
        ):
            controller = f"unix:{folder / CONTROLLER_SOCKET_NAME}"
            yield Served(router, worker, agent.endpoint, controller, join(host, keda))
