"""Everything that can be set about a router. Frozen, composed, units in the names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from twolane.params import MAX_STOP_STRINGS
from twolane.router.text.model_defaults import ModelDefaults
from twolane.rpc.call_gate import CallGateConfig
from twolane.security.credentials import Credentials


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitsConfig:
    """The operator's caps, below those of the model. `default_max_tokens` is for requests that
    leave max_tokens unset, as far as the context has so much room."""

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
    """How workers are followed."""

    announce_interval_s: float = 1.0  # told to workers
    heartbeat_s: float = 1.0  # ours to them, on the session
    suspicion_s: float = 3.0  # silence after which a worker's requests go elsewhere
    gone_after_s: float = 30.0  # silence after which it is no member any more
    forget_after_s: float = 60.0  # how long a member that is gone stays visible in the status
    most_members: int = 20_000  # those that are gone too; more are refused
    open_timeout_s: float = 2.0  # dial to first message of a session
    redial_min_s: float = 0.1
    redial_max_s: float = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionConfig:
    """How many requests may wait, how long, and how much is put on a worker at once."""

    max_queued: int = 1024
    growth_reserve_tokens: int = 64  # room for this much answer is reserved on the decode worker
    extra_rows: int = 8  # requests on a decode worker beyond its rows: those still in prefill
    max_prefill_backlog_tokens: int = 32_768  # a prefill worker with more gets nothing new
    max_wait_s: float = 30.0  # what is expected to wait longer is refused at once
    queue_timeout_s: float = 120.0  # then OverloadedError
    unavailable_after_s: float = 10.0  # no worker could serve it for so long: UnavailableError
    lost_workers_wait_s: float = 60.0  # the same for a request that lost its workers
    retry_after_min_s: float = 0.1
    retry_after_max_s: float = 30.0
    # refuse at once if wait and answer, of which the estimate has a margin for what it was off
    # lately, would take so many times the time left
    hopeless_factor: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DispatchConfig:
    """How failures of workers are met."""

    max_failures: int = 8  # of one request; then UnavailableError
    judge_wait_s: float = 1.0  # for the decode worker's verdict on a lost prefill worker
    retarget_wait_s: float = 1.0  # for the prefill worker's RETARGETED or GONE
    move_pause_s: float = 0.5  # between two searches for another place of an unplaced transfer
    attach_wait_s: float = 1.0  # for events that went missing
    find_wait_s: float = 0.5  # for workers' word on an answer that another router has begun
    ledger_wait_s: float = 0.25  # after the last token, for the workers' figures
    stall_s: float = 300.0  # no news at all of an attempt for so long: it has failed
    retry_delay_s: float = 0.05  # before the second retry; doubles with each, the first is at once
    retry_delay_max_s: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadersConfig:
    """How far behind its answer a client may be."""

    unread_bytes: int = 256 << 10  # of one answer, in the router
    pause_s: float = 1.0  # a write that takes less is never judged by bytes
    unread_s: float = 30.0  # that one write may take


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterConfig:
    """One router. `models` names models that may appear later: requests wait for their workers.
    `defaults`, by name, are what requests take that say nothing else."""

    router_id: str = "router-0"
    epoch: int = 0  # of this process, among all of its router_id; 0: drawn
    models: tuple[str, ...] = ()
    defaults: Mapping[str, ModelDefaults] = field(default_factory=dict)
    tick_s: float = 0.05
    inline_text_chars: int = 8_192  # longer prompts are tokenized off the event loop
    limits: LimitsConfig = field(default_factory=LimitsConfig)
    membership: MembershipConfig = field(default_factory=MembershipConfig)
    admission: AdmissionConfig = field(default_factory=AdmissionConfig)
    dispatch: DispatchConfig = field(default_factory=DispatchConfig)
    readers: ReadersConfig = field(default_factory=ReadersConfig)


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpConfig:
    """The OpenAI-style door. Its bounds besides the limits of every door."""

    port: int = 0
    requests: int = 1024  # that run at once; more are answered 503 with `retry_after_s`
    retry_after_s: float = 1.0
    connections: int = 8192  # then the one that waits longest is closed for the one that comes
    connections_per_peer: int = 1024  # of an address (IPv6: a /64); the loopback may be a proxy
    bodies_bytes: int = 64 << 20  # of all unfinished bodies; then the oldest is refused
    head_bytes: int = 65_536
    head_timeout_s: float = 10.0  # from the connection, or the first byte, to the end of a head
    body_timeout_s: float = 30.0  # from a request's head to the end of its body
    prompts: int = 128  # of one request; each is a request of its own at the router
    keep_alive_s: float = 75.0  # idle connections are closed after so long


@dataclass(frozen=True, slots=True, kw_only=True)
class GrpcDoorConfig:
    """The gRPC door's bounds besides the limits of every door."""

    connections: int = 8192  # more are closed at once
    idle_s: float = 300.0  # connections without a call are closed after so long
    calls: CallGateConfig = field(default_factory=CallGateConfig)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """Where a router listens. Port 0 takes any free one; no metrics port: no endpoint; no `http`:
    no such door, else it is at `host`, too; no `admin_socket`, a path: no door for operators.

    `host` is for clients. Workers and the launcher come to `bind_host`; workers dial it as
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
    grpc: GrpcDoorConfig = field(default_factory=GrpcDoorConfig)
    http: HttpConfig | None = field(default_factory=HttpConfig)
    stop_grace_s: float = 5.0  # running answers get this long when the router stops
    credentials: Credentials = field(default_factory=Credentials)
