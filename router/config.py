"""The configuration of a router: frozen, composed, with units in the names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from twolane.params import MAX_STOP_STRINGS
from twolane.router.text.model_defaults import ModelDefaults
from twolane.rpc.call_gate import CallGateConfig
from twolane.security.credentials import Credentials

PIPELINED = 2  # prompts at a prefill worker: one is computed, the next one is there


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitsConfig:
    """The operator's limits, in addition to the model's. `default_max_tokens` applies to requests
    without max_tokens, as far as the context has room."""

    message_bytes: int = 4 * 1024 * 1024
    prompt_bytes: int = 1024 * 1024
    prompt_tokens: int = 131_072
    max_tokens: int = 131_072
    default_max_tokens: int = 32_768
    stop_strings: int = MAX_STOP_STRINGS
    chat_messages: int = 1024
    priority: int = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class MembershipConfig:
    """How the router tracks workers."""

    # In a cluster these three are set from `twolane.deploy.spec.settings.TimingSpec`.
    announce_interval_s: float = 1.0  # which workers are told to use
    heartbeat_s: float = 1.0  # from the router to workers, on sessions
    suspicion_s: float = 3.0  # silence after which a worker's requests are resumed elsewhere
    gone_after_s: float = 30.0  # silence after which a worker is not a member any more
    forget_after_s: float = 60.0  # how long a member that is gone stays visible in the status
    most_members: int = 20_000  # including those that are gone; more are refused
    open_timeout_s: float = 2.0  # from the dial to the first message of a session
    redial_min_s: float = 0.1
    redial_max_s: float = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionConfig:
    """How many requests may wait, for how long, and how much work a worker may have."""

    max_queued: int = 1024
    growth_reserve_tokens: int = 64  # room for this much answer is reserved on the decode worker
    extra_rows: int = 8  # requests on a decode worker beyond its rows: those still in prefill
    max_prefill_backlog_tokens: int = 32_768  # a prefill worker with more gets no new prompts
    # While a controller tells an SLO, neither does one with more of this router's, two prompts at
    # least: what waits at a worker lets nothing go first.
    slo_prefill_backlog_tokens: int = 8_192
    # Beside workers that only prefill, one with both roles takes prompts that cost its rows so much
    # time together, at the pace that was measured, and decodes them; 0: none; None: any prompt.
    beside_rows_s: float | None = 0.030
    max_wait_s: float = 30.0  # requests with a longer expected wait are refused at once
    queue_timeout_s: float = 120.0  # then OverloadedError
    unavailable_after_s: float = 10.0  # without a worker that could serve it: UnavailableError
    cold_start_s: float = 600.0  # the same, where a worker starts for it
    lost_workers_wait_s: float = 60.0  # the same, for a request that has lost its workers
    retry_after_min_s: float = 0.1
    retry_after_max_s: float = 30.0
    # Refuse at once if the estimate of wait and answer, with its margin, times this exceeds the
    # time left.
    hopeless_factor: float = 1.0

    def is_enough(self, n_prompts: int, n_tokens: int) -> bool:
        """Whether a prefill worker has so much of this router that more waits here, while an SLO is
        told. One long prompt is not enough: the worker would then have nothing to do."""
        has_next = n_prompts >= PIPELINED  # guard: one long prompt
        return has_next and n_tokens >= self.slo_prefill_backlog_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class DispatchConfig:
    """How the router handles failures of workers."""

    max_failures: int = 8  # of one request's attempts; then UnavailableError
    # For the decode worker's report on what has landed from a lost prefill worker.
    judge_wait_s: float = 1.0
    retarget_wait_s: float = 1.0  # for the prefill worker's RETARGETED or GONE
    # Between two searches for another decode worker of an unplaced transfer.
    move_pause_s: float = 0.5
    attach_wait_s: float = 1.0  # for missing events
    find_wait_s: float = 0.5  # for workers' reports on an answer that another router has begun
    ledger_wait_s: float = 0.25  # after the last token, for the workers' figures
    stall_s: float = 300.0  # an attempt without any news for this long has failed
    # Before the second retry, doubled at each further one; the first is immediate.
    retry_delay_s: float = 0.05
    retry_delay_max_s: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadersConfig:
    """How far a client may be behind in reading its answer."""

    unread_bytes: int = 256 << 10  # unread bytes of one answer in the router
    pause_s: float = 1.0  # bytes count only for writes that take longer
    unread_s: float = 30.0  # the longest time for one write


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterConfig:
    """The configuration of one router. `models` are models whose workers may appear later: requests
    wait for them. `defaults`, by model, are sampling defaults."""

    router_id: str = "router-0"
    epoch: int = 0  # of this process among all with its router_id; 0: drawn at random
    models: tuple[str, ...] = ()
    defaults: Mapping[str, ModelDefaults] = field(default_factory=dict)
    tick_s: float = 0.05
    ended_requests: int = 1_000  # remembered, without prompts and answers, for operators
    inline_text_chars: int = 8_192  # longer prompts are tokenized off the event loop
    limits: LimitsConfig = field(default_factory=LimitsConfig)
    membership: MembershipConfig = field(default_factory=MembershipConfig)
    admission: AdmissionConfig = field(default_factory=AdmissionConfig)
    dispatch: DispatchConfig = field(default_factory=DispatchConfig)
    readers: ReadersConfig = field(default_factory=ReadersConfig)


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpConfig:
    """The bounds of the HTTP door, besides the limits of every door."""

    port: int = 0
    requests: int = 1024  # running at once; more get 503 with `retry_after_s`
    retry_after_s: float = 1.0
    connections: int = 8192  # if there are more, the one that has waited longest is closed
    # Of an address (IPv6: a /64); the loopback, which may be a proxy, has no bound.
    connections_per_peer: int = 1024
    bodies_bytes: int = 64 << 20  # of all incomplete bodies; beyond that the oldest is refused
    head_bytes: int = 65_536
    head_timeout_s: float = 10.0  # from the connection or the first byte to the end of a head
    body_timeout_s: float = 30.0  # from a request's head to the end of its body
    prompts: int = 128  # of one HTTP request; each is a separate request at the router
    keep_alive_s: float = 75.0  # idle connections are closed after so long
    unread_s: float = 60.0  # after so long, to twice that, without a byte of its answer taken


@dataclass(frozen=True, slots=True, kw_only=True)
class GrpcDoorConfig:
    """The bounds of the gRPC door, besides the limits of every door."""

    connections: int = 8192  # more are closed at once
    connections_per_peer: int = 1024  # of one address (IPv6: a /64) other than the loopback
    idle_s: float = 300.0  # connections without a call are closed after so long
    calls: CallGateConfig = field(default_factory=CallGateConfig)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """Where a router listens. Port 0 means any free port. Without a metrics port there is no
    metrics endpoint; without `http` no HTTP door, which otherwise listens at `host`, too; without
    `admin_socket`, a path, no door for operators.

    Clients use `host`. Workers and the launcher use `bind_host`, which workers dial as
    `advertise_host` (empty: `bind_host`). Ports that are 0 are taken from the range `ports`, like
    7300-7399; empty: any.
    """

    host: str = "127.0.0.1"
    port: int = 0
    bind_host: str = "127.0.0.1"
    advertise_host: str = ""
    ports: str = ""
    worker_port: int = 0
    metrics_port: int | None = 0
    admin_socket: str = ""
    admin_port: int | None = None  # for operators on other machines; None: no such listener
    # Both doors for clients share their ports with other routers of this machine.
    shares_ports: bool = False
    grpc: GrpcDoorConfig = field(default_factory=GrpcDoorConfig)
    http: HttpConfig | None = field(default_factory=HttpConfig)
    stop_grace_s: float = 5.0  # running answers get this long when the router stops
    credentials: Credentials = field(default_factory=Credentials)
