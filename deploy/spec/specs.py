"""What to run, as frozen values: a cluster, and each process of it.

They are sent to other processes as JSON (`twolane.deploy.spec.spec_json`), so every field is plain
data. They are never put on a command line, which every user of a machine can read, because they
hold the cluster's secret.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field, replace
from pathlib import Path

from twolane.deploy.spec.settings import (
    DECODE,
    PREFILL,
    RouterSettings,
    TimingSpec,
    WorkerSettings,
)
from twolane.engine.config import EngineConfig
from twolane.options import option
from twolane.rpc.secret import new_secret
from twolane.security.credentials import Credentials
from twolane.security.tls import TlsFiles


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """A model and the engine that runs it: `model`, which `config` configures, or `fake`, a test
    double that needs no torch and generates nonsense quickly. Raises ValueError for a fake engine
    with several ranks.
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

    @property
    def has_weights(self) -> bool:
        """Whether its engine reads weights."""
        return self.engine == "model" and self.config.load_format == "safetensors"

    def at(self, model_dir: str) -> ModelSpec:
        """The same with another revision's weights."""
        return replace(self, config=replace(self.config, model_dir=Path(model_dir)))


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterSpec:
    """One router process. It listens for clients at `settings.host`. It listens for workers and the
    launcher, which present the `secret`, at `bind_host`; workers dial `advertise_host` (empty:
    `bind_host`). Ports that are 0 are taken from the range `ports`; empty: any. `host_name`,
    `state_dir`: see `WorkerSpec`."""

    router_id: str
    model: ModelSpec
    settings: RouterSettings = field(default_factory=RouterSettings)
    secret: str = field(default_factory=new_secret, repr=False)
    bind_host: str = "127.0.0.1"
    advertise_host: str = ""
    ports: str = ""
    admin_socket: str = ""  # the path of the operators' door; empty: none
    shares_ports: bool = False  # of its doors for clients, with other routers of its host
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
        return 0  # a router writes into no pages: it needs no fencing


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSpec:
    """One incarnation of a worker: `worker_id` survives a restart, `epoch` never does.

    The roles are `prefill`, `decode`, or both (colocated). One that `flips` is ready to take the
    other role while it runs. `devices` are the GPUs that it may see,
    as CUDA_VISIBLE_DEVICES names them; empty: those that its launcher sees. Its metrics are at
    `metrics_port`; the port in the settings is its pool's base port.

    It listens at `bind_host`; routers and peers dial `advertise_host` (empty: `bind_host`). Ports
    that are 0 are taken from the range `ports`; empty: any.

    `fingerprint`: of the model's files, as its host must have them; empty: of any.

    `host_name` is the name of its host; empty: the system's hostname. With a `state_dir` it writes
    its evidence there (`twolane.deploy.process.evidence`) and outlives its launcher.
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
    flips: bool = False
    fingerprint: str = ""

    @property
    def able(self) -> tuple[str, ...]:
        """The roles that it has or may take."""
        return (PREFILL, DECODE) if self.flips else self.roles

    @property
    def name(self) -> str:
        return self.worker_id

    @property
    def credentials(self) -> Credentials:
        return Credentials(secret=self.secret, tls=self.tls, insecure=self.insecure)

    def reborn(self) -> WorkerSpec:
        """The spec of the same worker's next incarnation, with a new epoch."""
        return replace(self, epoch=new_epoch())


ProcessSpec = RouterSpec | WorkerSpec


def new_epoch() -> int:
    """A random non-zero 63-bit number, which in practice is never drawn twice."""
    return secrets.randbits(63) or 1
