"""All settings of a worker: composed, with units, checked on construction."""

from __future__ import annotations

from dataclasses import dataclass, field

from twolane.security.credentials import Credentials


@dataclass(frozen=True, slots=True, kw_only=True)
class StepLimits:
    """Limits of one forward pass.

    `step_tokens` bounds the positions of a step: decode rows count one each and come first, prefill
    chunks share the rest. On GPUs the defaults are those of `compose_worker.GPU_STEP_LIMITS`.
    """

    step_tokens: int = 512
    decode_rows: int = 64

    def __post_init__(self) -> None:
        assert self.decode_rows >= 1
        assert self.step_tokens > self.decode_rows, "decode rows would leave prefill no tokens"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepWatchConfig:
    """When a step that has not ended is late: then routers move the worker's requests elsewhere,
    and the launcher restarts it."""

    late_s: float = 5.0  # at the earliest
    late_factor: float = 20.0  # times the moving average of steps, if that is more
    first_late_s: float = 15.0  # the first step of its kind: may touch memory and build kernels

    def __post_init__(self) -> None:
        assert 0 < self.late_s <= self.first_late_s
        assert self.late_factor >= 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionConfig:
    """Settings of the sessions with routers."""

    open_within_s: float = 5.0  # a stream without Open by then is closed
    # The longest silence on a stream: its load report is a heartbeat. Clusters: --heartbeat-s.
    load_every_s: float = 1.0
    load_least_s: float = 0.1  # while steps run, at most one load report in this time
    grace_s: float = 10.0  # rows outlive a lost router, and logs outlive their row, for this long
    tombstone_s: float = 6.0  # how long late messages of a cancelled attempt are refused
    fence_s: float = 600.0  # how long a paused router is kept from what another has had
    suspicion_s: float = 3.0  # after this silence another router of the same id may replace one

    def __post_init__(self) -> None:
        assert self.open_within_s > 0
        assert 0 < self.load_least_s <= self.load_every_s
        assert self.grace_s > 0
        assert self.tombstone_s > 0
        assert self.fence_s > 0
        assert self.suspicion_s > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerConfig:
    """One worker process. `port` and `metrics_port` 0: the system chooses; None: no metrics."""

    worker_id: str
    pool: str = ""  # sent to routers with the devices and the host's name, for display only
    devices: tuple[str, ...] = ()
    host_name: str = ""
    bind_host: str = "127.0.0.1"
    advertise_host: str = ""  # what others dial; empty: `bind_host`
    ports: str = ""  # 7300-7399: where ports that are 0 are taken from; empty: any
    port: int = 0
    metrics_host: str = ""  # empty: `bind_host`
    metrics_port: int | None = None
    metrics_ports: str = ""  # where a `metrics_port` that is 0 is taken from; empty: `ports`
    routers: tuple[str, ...] = ()  # host:port of every router to announce to
    announce_every_s: float = 1.0
    drain_for_s: float = 30.0  # how long a stopping worker lets its rows finish
    limits: StepLimits = field(default_factory=StepLimits)
    step_watch: StepWatchConfig = field(default_factory=StepWatchConfig)
    sessions: SessionConfig = field(default_factory=SessionConfig)
    credentials: Credentials = field(default_factory=Credentials)
    insecure_listeners: tuple[str, ...] = ()  # in words, for display only

    def __post_init__(self) -> None:
        assert self.worker_id, "a worker needs a name"
        assert self.announce_every_s > 0
        assert self.drain_for_s >= 0
