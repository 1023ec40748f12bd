"""What to run, as frozen values: a cluster, and each process of it.

They travel to other processes as JSON (`deploy.spec_json`), so every field is plain data; never on
a command line, which every user of a machine can read: they hold the cluster's secret.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field, replace

from twolane.rpc.secret import new_secret

MAX_PORT = 65535
MAX_SOCKETS = 64  # from a sender to a receiver
_HTTP_ABOVE = 2  # between them, workers come in where a router is started alone
PREFILL, DECODE = "prefill", "decode"
TRANSPORTS = ("cuda_ipc", "shm", "unix", "nixl", "tcp")  # best first; see kvtransfer
AUTO, NONE = "auto", "none"  # whose generation_config.json: the model's, nobody's
OVER_NETWORKS = frozenset({"nixl", "tcp"})  # of them; pages are always summed there


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """A model and the engine that runs it. `n_pages` or `kv_bytes`, or neither (the default).

    `engine` is `model`, or `fake`: the double that needs no torch and answers nonsense quickly.
    `device` is `cpu`, `cuda`, or `auto`: a GPU where there is one. `dtype` is one of
    `engine.config.DTYPES`, or `auto`: bfloat16 on a GPU, float32 on a CPU. A worker computes on
    `tensor_parallel` GPUs, or processes of `threads` threads each.
    """

    model_dir: str
    name: str
    engine: str = "model"
    device: str = "auto"
    dtype: str = "auto"
    exact: bool = False
    n_pages: int | None = None
    kv_bytes: int | None = None
    page_tokens: int | None = None  # None: 16 on a CPU; on a GPU always 64
    threads: int = 1
    max_context_tokens: int | None = None
    load_format: str = "safetensors"
    weights: str = "auto"  # or `fp8`: rounded to it as they are loaded
    kv_dtype: str = "auto"  # or `fp8`
    tensor_parallel: int = 1
    share_gpus: bool = False  # ranks may, where there is not one for each


@dataclass(frozen=True, slots=True, kw_only=True)
class TimingSpec:
    """Times of the failure rules (shortened in tests), and of a clean end."""

    heartbeat_s: float = 1.0
    suspicion_s: float = 3.0
    lease_s: float = 6.0
    grace_s: float = 10.0  # rows outlive a lost router by this
    stop_grace_s: float = 5.0  # running answers get this long when a process is asked to stop

    def __post_init__(self) -> None:
        """Raises ValueError for times under which everybody would be taken for dead."""
        for name in ("suspicion_s", "lease_s"):
            if getattr(self, name) <= self.heartbeat_s:
                raise ValueError(
                    f"{name} is {getattr(self, name):g}; it must be more than heartbeat_s, "
                    f"which is {self.heartbeat_s:g}"
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitsSpec:
    """What an operator may cap. None leaves the default of whoever enforces it."""

    step_tokens: int | None = None  # most positions of one forward pass: the prefill chunk
    decode_rows: int | None = None  # most rows of a worker at once
    max_prompt_tokens: int | None = None
    max_output_tokens: int | None = None
    max_queued: int | None = None  # requests that may wait at the router
    growth_tokens: int | None = None  # room for an answer that admission reserves
    prefill_window_s: float | None = None  # longest that a prompt of a burst waits for others
    prefill_watermark_rows: int | None = None  # waiting prompts from which on it is a burst
    holding_cap_share: float | None = None  # of a pool that may wait for decode workers


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterSpec:
    """One router process. Port 0 takes any free one. `host` is for clients, `worker_host` for
    workers and the launcher, who show the `secret`. `generation_config` is `auto`, `none`, or a
    directory."""

    router_id: str
    model: ModelSpec
    generation_config: str = AUTO
    secret: str = field(default_factory=new_secret, repr=False)
    host: str = "127.0.0.1"
    port: int = 0
    worker_host: str = "127.0.0.1"
    worker_port: int = 0
    metrics_port: int = 0  # at `host`
    http_port: int | None = 0  # at `host`; None: no HTTP door
    admin_socket: str = ""  # the path of the operators' door; empty: none
    log_level: str = "info"
    timing: TimingSpec = field(default_factory=TimingSpec)
    limits: LimitsSpec = field(default_factory=LimitsSpec)

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
    as CUDA_VISIBLE_DEVICES names them; empty: those that its launcher sees. What `checksums` and
    `sockets` mean, and are where they are None: see `kvtransfer.transports.registry`.
    """

    worker_id: str
    epoch: int
    roles: tuple[str, ...]
    model: ModelSpec
    routers: tuple[str, ...]
    secret: str = field(default_factory=new_secret, repr=False)
    pool: str = ""
    host: str = "127.0.0.1"
    port: int = 0
    transports: tuple[str, ...] = TRANSPORTS
    checksums: bool | None = None
    sockets: int | None = None
    metrics_host: str = ""  # empty: `host`
    metrics_port: int = 0
    log_level: str = "info"
    timing: TimingSpec = field(default_factory=TimingSpec)
    limits: LimitsSpec = field(default_factory=LimitsSpec)
    devices: tuple[str, ...] = ()

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

    `devices` are the GPUs of each (`deploy.devices`); empty: all see those that their launcher
    sees. Their metrics are at `worker_metrics_port` and the ports above; 0: any free ones.
    """

    name: str
    roles: tuple[str, ...]
    model: ModelSpec
    n_workers: int = 1
    transports: tuple[str, ...] = TRANSPORTS
    checksums: bool | None = None
    sockets: int | None = None
    worker_metrics_port: int = 0
    limits: LimitsSpec = field(default_factory=LimitsSpec)
    devices: tuple[tuple[str, ...], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSpec:
    """One router and its pools of workers, on this machine. `host` is where clients come in;
    workers are reached over the loopback alone."""

    model: ModelSpec  # as the router sees it: its name, and where its tokenizer is
    pools: tuple[PoolSpec, ...]
    generation_config: str = AUTO  # as in RouterSpec
    host: str = "127.0.0.1"
    port: int = 7200
    worker_port: int = 0
    metrics_port: int = 0
    http_port: int | None = 7202  # None: no HTTP door
    admin_socket: str = ""
    log_level: str = "info"
    timing: TimingSpec = field(default_factory=TimingSpec)
    limits: LimitsSpec = field(default_factory=LimitsSpec)
    secret: str = field(default_factory=new_secret, repr=False, compare=False)

    @property
    def n_workers(self) -> int:
        return sum(pool.n_workers for pool in self.pools)

    @property
    def devices(self) -> list[str]:
        """The GPUs of every worker; more than once, where workers share one."""
        return [gpu for pool in self.pools for devices in pool.devices for gpu in devices]

    def router(self) -> RouterSpec:
        return RouterSpec(
            router_id="router-0",
            model=self.model,
            generation_config=self.generation_config,
            host=self.host,
            port=self.port,
            worker_port=self.worker_port,
            metrics_port=self.metrics_port,
            http_port=self.http_port,
            admin_socket=self.admin_socket,
            log_level=self.log_level,
            timing=self.timing,
            limits=self.limits,
            secret=self.secret,
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
                secret=self.secret,
                pool=pool.name,
                transports=pool.transports,
                checksums=pool.checksums,
                sockets=pool.sockets,
                metrics_host=self.host,
                metrics_port=pool.worker_metrics_port + i if pool.worker_metrics_port else 0,
                log_level=self.log_level,
                timing=self.timing,
                limits=pool.limits,
                devices=pool.devices[i] if pool.devices else (),
            )
            for pool in self.pools
            for i in range(pool.n_workers)
        ]


def http_port_above(port: int) -> int:
    """Where the HTTP door is, if nobody says: two above gRPC's port, or any free one (0) where that
    is any or the last."""
    above = port + _HTTP_ABOVE
    return above if port and above <= MAX_PORT else 0


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
