"""What to run, as frozen values: a cluster, and each process of it.

They travel to other processes as JSON (`twolane.deploy.spec.spec_json`), so every field is plain
data; never on a command line, which every user of a machine can read: they hold the cluster's
secret.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field, replace
from pathlib import Path

from twolane.engine.config import EngineConfig
from twolane.options import option
from twolane.rpc.secret import new_secret
from twolane.security.tls import TlsFiles

MAX_PORT = 65535
MAX_SOCKETS = 64  # from a sender to a receiver
_HTTP_ABOVE = 2  # between them, workers come in where a router is started alone
PREFILL, DECODE = "prefill", "decode"
TRANSPORTS = ("cuda_ipc", "shm", "unix", "nixl", "tcp")  # best first; see kvtransfer
AUTO, NONE = "auto", "none"  # whose generation_config.json: the model's, nobody's
BUNDLED = "bundled"  # the model that comes with us
OVER_NETWORKS = frozenset({"nixl", "tcp"})  # of them; pages are always summed there


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSettings:
    """Options of a whole cluster."""

    model: str = option(BUNDLED, "What to serve.", metavar="DIR_OR_HUB_ID")
    launcher: str = option("ray", "", choices=("ray", "process"))
    share_gpus: bool = option(False, "Several workers on a GPU, where there is not one for each.")
    log_level: str = option("info", "", choices=("debug", "info", "warning", "error"))
    tls_ca: str = option("", "PEM file of the authorities to trust.", metavar="FILE")
    tls_cert: str = option(
        "",
        "PEM file of a process's certificate; {name} in the path is the process's name.",
        metavar="FILE",
    )
    tls_key: str = option("", "PEM file of that certificate's key.", metavar="FILE")
    insecure: bool = option(
        False, "Allow listeners that other machines reach without TLS: the network must be private."
    )


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
class TimingSpec:
    """Times of the failure rules (shortened in tests), and of a clean end. Raises ValueError for
    times under which everybody would be taken for dead."""

    heartbeat_s: float = option(1.0, "How often everybody shows signs of life.", above=0)
    suspicion_s: float = option(3.0, "Silence after which requests go elsewhere.", above=0)
    lease_s: float = option(6.0, "How long pages are held for a silent peer.", above=0)
    grace_s: float = option(10.0, "How long answers outlive a lost router.", above=0)
    stop_grace_s: float = option(5.0, "How long running answers get at a stop.", above=0)

    def __post_init__(self) -> None:
        for name in ("suspicion_s", "lease_s"):
            if getattr(self, name) <= self.heartbeat_s:
                raise ValueError(
                    f"{name} is {getattr(self, name):g}; it must be more than heartbeat_s, "
                    f"which is {self.heartbeat_s:g}"
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings:
    """Options of a worker beside those of its engine. None leaves the default of whoever enforces
    it. What `checksums` and `sockets` mean: see `twolane.kvtransfer.transports.registry`."""

    step_tokens: int | None = option(
        None, "Most tokens of a step; longer prompts are split.", least=1
    )
    decode_rows: int | None = option(None, "Most answers that one worker decodes.", least=1)
    prefill_window_s: float | None = option(
        None, "The longest that a prompt of a burst waits for others.", least=0
    )
    prefill_watermark_rows: int | None = option(
        None, "More waiting prompts than so many are a burst.", least=0
    )
    holding_cap_share: float | None = option(
        None,
        "Share of a pool that may wait for decode workers before prefills stop.",
        above=0,
        most=1,
    )
    transports: tuple[str, ...] = option(
        TRANSPORTS,
        "How pages travel; may be repeated, best first.  [default: the best that works]",
        choices=TRANSPORTS,
        flag="--transport",
    )
    checksums: bool | None = option(
        None,
        "Compare a checksum of each page on both sides. Over networks (nixl, tcp) always: "
        "--no-checksums is for a --transport of one host.  [default: all but cuda_ipc]",
    )
    sockets: int | None = option(
        None,
        "Sockets from each sender to each receiver, for unix and tcp.  [default: 1]",
        least=1,
        most=MAX_SOCKETS,
    )
    worker_metrics_port: int = option(
        0,
        "Port of the first worker's metrics; the others take the next ports.  [default: any]",
        least=0,
        most=MAX_PORT,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterSettings:
    """Options of a router: where clients come in, where workers do, what is refused, and what
    requests take that leave it open. Port 0 is any free one. None leaves the default of whoever
    enforces it."""

    host: str = option("127.0.0.1", "Where clients connect.")
    port: int = option(7200, "", least=0, most=MAX_PORT)
    worker_port: int = option(
        0, "Port where workers connect.  [default: any]", least=0, most=MAX_PORT
    )
    metrics_port: int = option(
        0, "Port of the router's metrics.  [default: any]", least=0, most=MAX_PORT
    )
    http_port: int | None = option(
        None,
        "Port of the OpenAI-style HTTP API, at --host.  [default: --port + 2]",
        least=0,
        most=MAX_PORT,
    )
    no_http: bool = option(False, "Serve no HTTP.")
    generation_config: str = option(
        AUTO,
        "Whose generation_config.json tells what requests take that set no temperature, "
        "top_k, top_p, min_p, repetition_penalty or max_tokens; auto: the model's.",
        metavar="auto|none|DIR",
    )
    keys: str | None = option(
        None, "Ask clients for API keys: the file that `twolane auth` writes.", metavar="FILE"
    )
    max_prompt_tokens: int | None = option(None, "Longer prompts are refused.", least=1)
    max_output_tokens: int | None = option(
        None, "Longest answer; more max_tokens are refused.", least=1
    )
    max_queued: int | None = option(None, "Requests that may wait at the router.", least=1)
    growth_tokens: int | None = option(None, "Tokens that each answer reserves.", least=1)

    def __post_init__(self) -> None:
        if self.http_port is not None and self.no_http:
            raise ValueError(
                "http_port says where the HTTP door is, no_http that there is none: give one"
            )

    @property
    def http_door(self) -> int | None:
        """Its port: if nobody says, two above gRPC's, or any free one where that is any or the
        last. None: there is no such door."""
        if self.no_http or self.http_port is not None:
            return self.http_port
        above = self.port + _HTTP_ABOVE
        return above if self.port and above <= MAX_PORT else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterSpec:
    """One router process. `settings.host` is for clients, `worker_host` for workers and the
    launcher, who show the `secret`."""

    router_id: str
    model: ModelSpec
    settings: RouterSettings = field(default_factory=RouterSettings)
    secret: str = field(default_factory=new_secret, repr=False)
    worker_host: str = "127.0.0.1"
    admin_socket: str = ""  # the path of the operators' door; empty: none
    log_level: str = "info"
    timing: TimingSpec = field(default_factory=TimingSpec)
    tls: TlsFiles | None = None
    insecure: bool = False  # listeners beyond the loopback may be without TLS

    @property
    def name(self) -> str:
        return self.router_id

    @property
    def epoch(self) -> int:
        return 0  # nobody writes into pages on a router's behalf: it needs no fencing


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSpec:
    """One incarnation of a worker: `worker_id` survives a restart, `epoch` never does.

    The roles are `prefill`, `decode`, or both (colocated). `devices` are the GPUs that it may see,
    as CUDA_VISIBLE_DEVICES names them; empty: those that its launcher sees. Its metrics are at
    `metrics_port`; the settings' is its pool's.
    """

    worker_id: str
    epoch: int
    roles: tuple[str, ...]
    model: ModelSpec
    routers: tuple[str, ...]
    settings: WorkerSettings = field(default_factory=WorkerSettings)
    secret: str = field(default_factory=new_secret, repr=False)
    pool: str = ""
    host: str = "127.0.0.1"
    port: int = 0
    metrics_host: str = ""  # empty: `host`
    metrics_port: int = 0
    log_level: str = "info"
    timing: TimingSpec = field(default_factory=TimingSpec)
    devices: tuple[str, ...] = ()
    tls: TlsFiles | None = None
    insecure: bool = False  # listeners beyond the loopback may be without TLS

    @property
    def name(self) -> str:
        return self.worker_id

    def reborn(self) -> WorkerSpec:
        """The same worker as another incarnation."""
        return replace(self, epoch=new_epoch())


ProcessSpec = RouterSpec | WorkerSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSpec:
    """Workers that are alike, called `<name>-0`, `<name>-1`, …

    `devices` are the GPUs of each (`twolane.deploy.spec.devices`); empty: all see those that their
    launcher sees. Their metrics are at `settings.worker_metrics_port` and the ports above; 0: any
    free ones.
    """

    name: str
    roles: tuple[str, ...]
    model: ModelSpec
    n_workers: int = 1
    settings: WorkerSettings = field(default_factory=WorkerSettings)
    devices: tuple[tuple[str, ...], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSpec:
    """One router and its pools of workers, on this machine. Workers are reached over the loopback
    alone."""

    model: ModelSpec  # as the router sees it: its name, and where its tokenizer is
    pools: tuple[PoolSpec, ...]
    settings: RouterSettings = field(default_factory=RouterSettings)
    admin_socket: str = ""
    log_level: str = "info"
    timing: TimingSpec = field(default_factory=TimingSpec)
    secret: str = field(default_factory=new_secret, repr=False, compare=False)
    tls: TlsFiles | None = None  # the paths may contain {name}: see `tls_of`
    insecure: bool = False

    def tls_of(self, name: str) -> TlsFiles | None:
        """The files of the process with that name."""
        return None if self.tls is None else self.tls.of(name)

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
                metrics_host=self.settings.host,
                metrics_port=port + i if (port := pool.settings.worker_metrics_port) else 0,
                log_level=self.log_level,
                timing=self.timing,
                devices=pool.devices[i] if pool.devices else (),
                tls=self.tls_of(f"{pool.name}-{i}"),
                insecure=self.insecure,
            )
            for pool in self.pools
            for i in range(pool.n_workers)
        ]


def unsummed(transports: tuple[str, ...], checksums: bool | None) -> str:
    """Why pages may not go without sums by these; empty: they may, or are summed."""
    far = ", ".join(name for name in transports if name in OVER_NETWORKS)
    if checksums is not False or not far:
        return ""
    return (
        f"pages are always summed over networks ({far}): leave checksums on, or pin transports "
        "of one host (cuda_ipc, shm, unix)"
    )


def new_epoch() -> int:
    """A random non-zero 63-bit number: never met again."""
    return secrets.randbits(63) or 1
