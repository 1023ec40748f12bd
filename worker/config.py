"""Everything about a worker that can be set, composed, with units, checked when it is made."""

from __future__ import annotations

from dataclasses import dataclass, field

from twolane.security.credentials import Credentials


@dataclass(frozen=True, slots=True, kw_only=True)
class StepLimits:
    """What one forward pass may hold.

    `step_tokens` bounds all positions of a step: decode rows count one each and go first, prefill
    chunks share the rest.
    """

    step_tokens: int = 512
    decode_rows: int = 64

    def __post_init__(self) -> None:
        assert self.decode_rows >= 1
        assert self.step_tokens > self.decode_rows, "decode rows would leave prefill no tokens"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepWatchConfig:
    """When a step that has not ended is late: routers take the worker's requests elsewhere, and the
    launcher restarts it."""

    late_s: float = 5.0  # at the earliest
    late_factor: float = 20.0  # times the moving average of steps, if that is more
    first_late_s: float = 15.0  # the first step of its kind: memory is touched, kernels are built

    def __post_init__(self) -> None:
        assert 0 < self.late_s <= self.first_late_s
        assert self.late_factor >= 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionConfig:
    """How a worker treats its routers."""

    open_within_s: float = 5.0  # a stream that has not begun with Open by then is closed
    load_every_s: float = 1.0  # the longest silence on a stream: its load report is a heartbeat
    load_least_s: float = 0.1  # while steps run, no more than one load report in this time
    grace_s: float = 10.0  # rows outlive a lost router, and logs of ended rows are kept, so long
    tombstone_s: float = 6.0  # late messages of a cancelled attempt are refused for so long
    suspicion_s: float = 3.0  # a router unheard for so long gives way to another of its id

    def __post_init__(self) -> None:
        assert self.open_within_s > 0
        assert 0 < self.load_least_s <= self.load_every_s
        assert self.grace_s > 0
        assert self.tombstone_s > 0
        assert self.suspicion_s > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerConfig:
    """One worker process. `port` and `metrics_port` 0 let the system choose; None: no metrics."""

    worker_id: str
    pool: str = ""  # told to routers, as are the devices: for people
    devices: tuple[str, ...] = ()
    host: str = "127.0.0.1"
    port: int = 0
    advertise_host: str = ""  # what others dial; empty: `host`
    metrics_host: str = ""  # empty: `host`
    metrics_port: int | None = None
    routers: tuple[str, ...] = ()  # host:port of every router to announce to
    announce_every_s: float = 1.0
    drain_for_s: float = 30.0  # a stopping worker lets its rows finish for so long
    limits: StepLimits = field(default_factory=StepLimits)
    step_watch: StepWatchConfig = field(default_factory=StepWatchConfig)
    sessions: SessionConfig = field(default_factory=SessionConfig)
    credentials: Credentials = field(default_factory=Credentials)

    def __post_init__(self) -> None:
        assert self.worker_id, "a worker needs a name"
        assert self.announce_every_s > 0
        assert self.drain_for_s >= 0
