"""What to run, as frozen values: a cluster, and each process of it.

They travel to other processes as JSON (`twolane.deploy.spec.spec_json`), so every field is plain
data; never on a command line, which every user of a machine can read: they hold the cluster's
secret.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field, replace
from pathlib import Path

from twolane.deploy.spec.settings import (
    LAUNCHER,
    RouterSettings,
    TimingSpec,
    WorkerSettings,
)
from twolane.engine.config import EngineConfig
from twolane.options import option
from twolane.rpc.listen import is_loopback
from twolane.rpc.secret import new_secret
from twolane.security.credentials import Credentials
from twolane.security.tls import TlsFiles


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """A model and the engine that runs it: `model`, which `config` is for, or `fake`: the double
    that needs no torch and answers nonsense quickly. Raises ValueError for a fake one with ranks.
    """

    config: EngineConfig
    engine: str = option(
        "model", "`fake` answers nonsense without computing.", choices=("model", "fake")
    )

    def __post_init__(self) -> None:
        if self.engine == "fake" and self.config.tensor_parallel > 1:
            raise ValueError("a fake engine has no ranks: leave tensor_parallel out")

    @property
    def name(self) -> str:
        return self.config.model_name

    @property
    def model_dir(self) -> Path:
        return self.config.model_dir


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterSpec:
    """One router process. Clients come to `settings.host`; workers and the launcher, who show the
    `secret`, to `bind_host`, which workers dial as `advertise_host` (empty: `bind_host`). Ports
    that are 0 are taken from the range `ports`; empty: any. `host_name`, `state_dir`: see
    `WorkerSpec`."""

    router_id: str
    model: ModelSpec
    settings: RouterSettings = field(default_factory=RouterSettings)
    secret: str = field(default_factory=new_secret, repr=False)
    bind_host: str = "127.0.0.1"
    advertise_host: str = ""
    ports: str = ""
    admin_socket: str = ""  # the path of the operators' door; empty: none
    log_level: str = "info"
    timing: TimingSpec = field(default_factory=TimingSpec)
    tls: TlsFiles | None = None
    insecure: bool = False  # listeners beyond the loopback may be without TLS
    host_name: str = ""
    state_dir: str = ""

    @property
    def name(self) -> str:
        return self.router_id

    @property
    def credentials(self) -> Credentials:
        return Credentials(secret=self.secret, tls=self.tls, insecure=self.insecure)

    @property
    def epoch(self) -> int:
        return 0  # nobody writes into pages on a router's behalf: it needs no fencing


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSpec:
    """One incarnation of a worker: `worker_id` survives a restart, `epoch` never does.

    The roles are `prefill`, `decode`, or both (colocated). `devices` are the GPUs that it may see,
    as CUDA_VISIBLE_DEVICES names them; empty: those that its launcher sees. Its metrics are at
    `metrics_port`; the settings' is its pool's.

    It listens at `bind_host`; routers and peers dial `advertise_host` (empty: `bind_host`). Ports
    that are 0 are taken from the range `ports`; empty: any.

    `host_name` is that of the host that it runs on; empty: as the system has it. With a `state_dir`
    it leaves its evidence there (`twolane.deploy.process.evidence`) and outlives its launcher.
    """

    worker_id: str
    epoch: int
    roles: tuple[str, ...]
    model: ModelSpec
    routers: tuple[str, ...]
    settings: WorkerSettings = field(default_factory=WorkerSettings)
    secret: str = field(default_factory=new_secret, repr=False)
    pool: str = ""
    bind_host: str = "127.0.0.1"
    advertise_host: str = ""
    ports: str = ""
    port: int = 0
    metrics_host: str = ""  # empty: `bind_host`
    metrics_port: int = 0
    log_level: str = "info"
    timing: TimingSpec = field(default_factory=TimingSpec)
    devices: tuple[str, ...] = ()
    tls: TlsFiles | None = None
    insecure: bool = False  # listeners beyond the loopback may be without TLS
    host_name: str = ""
    state_dir: str = ""

    @property
    def name(self) -> str:
        return self.worker_id

    @property
    def credentials(self) -> Credentials:
        return Credentials(secret=self.secret, tls=self.tls, insecure=self.insecure)

    def reborn(self) -> WorkerSpec:
        """The same worker as another incarnation."""
        return replace(self, epoch=new_epoch())


ProcessSpec = RouterSpec | WorkerSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSpec:
    """Workers that are alike, called `<name>-0`, `<name>-1`, …

    `devices` are the GPUs of each (`twolane.deploy.spec.devices`); empty: all see those that their
    launcher sees. Their metrics are at `settings.worker_metrics_port` and the ports above; 0: any
    free ones. `host_names` are the hosts of each;
    empty: this machine.
    """

    name: str
    roles: tuple[str, ...]
    model: ModelSpec
    n_workers: int = 1
    settings: WorkerSettings = field(default_factory=WorkerSettings)
    devices: tuple[tuple[str, ...], ...] = ()
    host_names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSpec:
    """One router and its pools of workers. `bind_host`, `advertise_host` and `ports` are those of
    every process, see `WorkerSpec`."""

    model: ModelSpec  # as the router sees it: its name, and where its tokenizer is
    pools: tuple[PoolSpec, ...]
    settings: RouterSettings = field(default_factory=RouterSettings)
    admin_socket: str = ""
    bind_host: str = "127.0.0.1"
    advertise_host: str = ""
    ports: str = ""
    log_level: str = "info"
    timing: TimingSpec = field(default_factory=TimingSpec)
    secret: str = field(default_factory=new_secret, repr=False, compare=False)
    tls: TlsFiles | None = None  # the paths may contain {name}: see `tls_of`
    insecure: bool = False

    def tls_of(self, name: str) -> TlsFiles | None:
        """The files of the process with that name."""
        return None if self.tls is None else self.tls.of(name)

    @property
    def credentials(self) -> Credentials:
        """The launcher's."""
        return Credentials(secret=self.secret, tls=self.tls_of(LAUNCHER), insecure=self.insecure)

    @property
    def n_workers(self) -> int:
        return sum(pool.n_workers for pool in self.pools)

    @property
    def devices(self) -> list[str]:
        """The GPUs of every worker; more than once, where workers share one."""
        return [gpu for pool in self.pools for devices in pool.devices for gpu in devices]

    def router(self, router_id: str = "router-0") -> RouterSpec:
        return RouterSpec(
            router_id=router_id,
            model=self.model,
            settings=self.settings,
            admin_socket=self.admin_socket,
            bind_host=self.bind_host,
            advertise_host=self.advertise_host,
            ports=self.ports,
            log_level=self.log_level,
            timing=self.timing,
            secret=self.secret,
            tls=self.tls_of(router_id),
            insecure=self.insecure,
        )

    def workers(self, worker_endpoint: str) -> list[WorkerSpec]:
        """Every worker, each with a fresh epoch; they announce themselves to that endpoint."""
        return [
            WorkerSpec(
                worker_id=f"{pool.name}-{i}",
                epoch=new_epoch(),
                roles=pool.roles,
                model=pool.model,
                routers=(worker_endpoint,),
                settings=pool.settings,
                secret=self.secret,
                pool=pool.name,
                bind_host=self.bind_host,
                advertise_host=self.advertise_host,
                ports=self.ports,
                metrics_host=self.settings.host if is_loopback(self.bind_host) else "",
                metrics_port=port + i if (port := pool.settings.worker_metrics_port) else 0,
                log_level=self.log_level,
                timing=self.timing,
                devices=pool.devices[i] if pool.devices else (),
                tls=self.tls_of(f"{pool.name}-{i}"),
                insecure=self.insecure,
                host_name=pool.host_names[i] if pool.host_names else "",
            )
            for pool in self.pools
            for i in range(pool.n_workers)
        ]


def new_epoch() -> int:
    """A random non-zero 63-bit number: never met again."""
    return secrets.randbits(63) or 1
