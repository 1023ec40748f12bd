"""What `status()` returns: a snapshot of the cluster, as the router sees it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from types import MappingProxyType

from twolane.v1 import cluster_pb2, drain_pb2, worker_pb2

BLOCKER_TEXTS = {  # of one, and of several
    "rows": ("request", "requests"),
    "step": ("step under way", "steps under way"),
    "incoming": ("transfer of pages from another", "transfers of pages from others"),
    "outgoing": ("transfer of pages to another", "transfers of pages to others"),
    "routers": (
        "router that has not confirmed that it drains",
        "routers that have not confirmed that it drains",
    ),
    "unheard": (
        "answer whose last tokens no router has confirmed",
        "answers whose last tokens no router has confirmed",
    ),
}
ROLE_NAMES = {worker_pb2.ROLE_PREFILL: "prefill", worker_pb2.ROLE_DECODE: "decode"}


@dataclass(frozen=True, slots=True)
class Pages:
    """A worker's KV pages by state; each page counts once."""

    quarantined: int = 0
    used: int = 0
    pinned: int = 0
    cached: int = 0
    free: int = 0

    @property
    def total(self) -> int:
        return self.quarantined + self.used + self.pinned + self.cached + self.free


@dataclass(frozen=True, slots=True)
class PeerTransport:
    """The transport of pages between a worker and one of its peers. `instead_of` says why better
    transports failed, as the sender saw it; empty if none did."""

    peer: str
    transport: str
    instead_of: str = ""


@dataclass(frozen=True, slots=True)
class DrainBlocker:
    """One thing that keeps a draining worker from being killed without loss."""

    kind: str  # rows, step, incoming, outgoing, unheard: see worker.proto
    count: int
    names: tuple[str, ...] = ()  # some of them: request ids, or epochs of peers

    def __str__(self) -> str:
        one, several = BLOCKER_TEXTS.get(self.kind, (self.kind, self.kind))
        text = f"{self.count} {one if self.count == 1 else several}"
        more = ", …" * (len(self.names) < self.count)
        return f"{text} ({', '.join(self.names)}{more})" if self.names else text


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainInfo:
    """The progress of a worker's drain. Once it has the ticket, the worker may be killed at any
    time without loss of a token or a page."""

    number: int  # identifies the ticket, together with the worker's epoch
    blockers: tuple[DrainBlocker, ...]
    has_ticket: bool
    is_taken: bool  # the ticket has been taken: the drain cannot be undone
    hands_over: bool
    eta_s: float  # if every answer gets its maximum length; 0: unknown
    quarantined_pages: int

    @classmethod
    def from_proto(cls, message: drain_pb2.DrainReport) -> DrainInfo:
        parts = {f.name: getattr(message, f.name) for f in fields(cls)}
        parts["blockers"] = tuple(
            DrainBlocker(blocker.kind, blocker.count, tuple(blocker.names))
            for blocker in message.blockers
        )
        return cls(**parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerInfo:
    """One worker. `epoch` names this incarnation of it: a restarted worker has another."""

    worker_id: str
    epoch: int
    endpoint: str
    roles: tuple[str, ...]
    state: str  # joining, alive, suspect, draining, gone
    model: str
    fingerprint: str
    pages: Pages
    prefill_queue: int
    decode_queue: int
    rows: int
    requests: int
    step_s: float
    step_age_s: float  # of the running step
    step_bound_s: float  # an older step is late: the engine seems to hang
    drained: bool
    last_heard_s: float
    pool: str = ""
    devices: tuple[str, ...] = ()  # one for each rank: cpu, or a GPU as in CUDA_VISIBLE_DEVICES
    host: str = ""  # the name of the host that it runs on
    transports: tuple[PeerTransport, ...] = ()
    metrics_endpoint: str = ""  # host:port of its Prometheus page, if it has one
    drain: DrainInfo | None = None  # while it drains

    @property
    def is_here(self) -> bool:
        """Whether this incarnation may still run."""
        return self.state != "gone"

    @property
    def is_stuck(self) -> bool:
        """Whether the running step takes far longer than the worker's steps usually do."""
        return self.step_age_s > self.step_bound_s > 0

    @classmethod
    def from_proto(cls, message: cluster_pb2.WorkerStatus) -> WorkerInfo:
        load = message.load
        return cls(
            worker_id=message.worker.worker_id,
            epoch=message.worker.epoch,
            endpoint=message.worker.endpoint,
            roles=tuple(ROLE_NAMES.get(role, str(role)) for role in message.roles),
            state=message.state,
            model=message.model,
            fingerprint=message.fingerprint,
            pages=Pages(**{f.name: getattr(load.pages, f.name) for f in fields(Pages)}),
            prefill_queue=load.prefill_queue,
            decode_queue=load.decode_queue,
            rows=load.rows,
            requests=message.requests,
            step_s=load.step_s,
            step_age_s=load.step_age_s,
            step_bound_s=load.step_bound_s,
            drained=load.drained,
            last_heard_s=message.last_heard_s,
            pool=message.pool,
            devices=tuple(message.devices),
            host=message.host,
            metrics_endpoint=message.metrics_endpoint,
            drain=DrainInfo.from_proto(load.drain) if load.HasField("drain") else None,
            transports=tuple(
                PeerTransport(peer.worker_id, peer.transport, peer.instead_of)
                for peer in load.transports
            ),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestInfo:
    """One request that the router holds."""

    request_id: str  # the client's label
    submission_id: str  # its id at workers
    state: str
    attempt: int
    prefill_worker: str
    decode_worker: str
    prompt_tokens: int
    output_tokens: int
    age_s: float
    priority: int
    tenant: str = ""

    @classmethod
    def from_proto(cls, message: cluster_pb2.RequestStatus) -> RequestInfo:
        return cls(**{f.name: getattr(message, f.name) for f in fields(cls)})


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantInfo:
    """One tenant that has sent requests since the router started."""

    tenant: str  # empty: clients without a key or certificate
    label: str  # its name in metrics
    weight: float
    live: int  # requests that wait or run
    requests: int
    refused: int  # by its quotas
    prompt_tokens: int
    output_tokens: int

    @classmethod
    def from_proto(cls, message: cluster_pb2.TenantStatus) -> TenantInfo:
        return cls(**{f.name: getattr(message, f.name) for f in fields(cls)})


@dataclass(frozen=True, slots=True, kw_only=True)
class HostInfo:
    """A host of the cluster, as its controller sees it. The places of a silent host stay occupied
    until its workers are proven dead."""

    name: str
    state: str  # up, silent, off
    for_s: float  # how long it has been in this state
    workers: tuple[str, ...]  # those placed on this host
    gpus: int  # used by these workers; 0: they run on the CPU
    note: str = ""  # what could prove that its workers have ended
    cordoned: bool = False  # it gets no new workers
    lost: tuple[str, ...] = ()  # workers of earlier pods of its name, whose end is not proven

    @classmethod
    def from_proto(cls, message: cluster_pb2.HostStatus) -> HostInfo:
        return cls(
            name=message.name,
            state=message.state,
            for_s=message.for_s,
            workers=tuple(message.workers),
            gpus=message.gpus,
            note=message.note,
            cordoned=message.cordoned,
            lost=tuple(message.lost),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreInfo:
    """The routers' shared store, as the router that answers sees it. Routers work without it,
    too."""

    address: str  # without secrets
    up: bool
    note: str = ""  # why it is down
    dropped: int = 0  # writes dropped because the queue was full

    @classmethod
    def from_proto(cls, message: cluster_pb2.StoreStatus) -> StoreInfo:
        return cls(**{f.name: getattr(message, f.name) for f in fields(cls)})


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterInfo:
    """One router process. If `unreached` is set, the router could not be asked, for that reason,
    and only its addresses are known."""

    router_id: str
    endpoint: str
    http_endpoint: str
    uptime_s: float
    requests: int  # that wait or run
    metrics_endpoint: str = ""
    unreached: str = ""

    @classmethod
    def from_proto(cls, message: cluster_pb2.RouterStatus) -> RouterInfo:
        return cls(
            router_id=message.address.router_id,
            endpoint=message.address.grpc_endpoint,
            http_endpoint=message.address.http_endpoint,
            uptime_s=message.uptime_s,
            requests=message.requests,
            metrics_endpoint=message.metrics_endpoint,
            unreached=message.unreached,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterStatus:
    """The router, its workers, its requests, and its counters since it started."""

    router_id: str
    uptime_s: float
    workers: tuple[WorkerInfo, ...]
    requests: tuple[RequestInfo, ...]
    requests_by_state: Mapping[str, int]
    counters: Mapping[str, int]
    http_endpoint: str = ""  # host:port of the router's HTTP door, if it has one
    metrics_endpoint: str = ""  # host:port of its Prometheus page, if it has one
    # Those without TLS that other machines can reach, as text.
    insecure_listeners: tuple[str, ...] = ()
    tenants: tuple[TenantInfo, ...] = ()
    hosts: tuple[HostInfo, ...] = ()  # only if agents run the processes
    routers: tuple[RouterInfo, ...] = ()  # all of the cluster; the one that answers comes first
    store: StoreInfo | None = None  # None: the cluster has no store
    http_tls: bool = False  # the router's HTTP door speaks TLS

    @property
    def http_url(self) -> str:
        """The router's HTTP door as a URL, without a path; empty if it has none."""
        scheme = "https" if self.http_tls else "http"
        return f"{scheme}://{self.http_endpoint}" if self.http_endpoint else ""

    @classmethod
    def from_proto(cls, message: cluster_pb2.GetClusterStatusResponse) -> ClusterStatus:
        return cls(
            router_id=message.router_id,
            uptime_s=message.uptime_s,
            workers=tuple(WorkerInfo.from_proto(worker) for worker in message.workers),
            requests=tuple(RequestInfo.from_proto(request) for request in message.requests),
            requests_by_state=MappingProxyType(dict(message.requests_by_state)),
            counters=MappingProxyType(dict(message.counters)),
            http_endpoint=message.http_endpoint,
            http_tls=message.http_tls,
            insecure_listeners=tuple(message.insecure_listeners),
            metrics_endpoint=message.metrics_endpoint,
            tenants=tuple(TenantInfo.from_proto(tenant) for tenant in message.tenants),
            hosts=tuple(HostInfo.from_proto(host) for host in message.hosts),
            routers=tuple(RouterInfo.from_proto(router) for router in message.routers),
            store=StoreInfo.from_proto(message.store) if message.HasField("store") else None,
        )
