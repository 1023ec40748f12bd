from twolane.v1 import acts_pb2 as _acts_pb2
from twolane.v1 import inference_pb2 as _inference_pb2
from twolane.v1 import sampling_pb2 as _sampling_pb2
from twolane.v1 import worker_pb2 as _worker_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class AnnounceRequest(_message.Message):
    __slots__ = ("worker", "roles", "model", "fingerprint", "n_pages", "page_tokens", "max_context_tokens", "vocab_size", "eos_token_ids", "decode_rows", "metrics_endpoint", "leaving", "layout", "makes_dtypes", "pool", "devices", "host", "host_identity", "routers", "insecure_listeners")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    ROLES_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    N_PAGES_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_CONTEXT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    VOCAB_SIZE_FIELD_NUMBER: _ClassVar[int]
    EOS_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    DECODE_ROWS_FIELD_NUMBER: _ClassVar[int]
    METRICS_ENDPOINT_FIELD_NUMBER: _ClassVar[int]
    LEAVING_FIELD_NUMBER: _ClassVar[int]
    LAYOUT_FIELD_NUMBER: _ClassVar[int]
    MAKES_DTYPES_FIELD_NUMBER: _ClassVar[int]
    POOL_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    HOST_IDENTITY_FIELD_NUMBER: _ClassVar[int]
    ROUTERS_FIELD_NUMBER: _ClassVar[int]
    INSECURE_LISTENERS_FIELD_NUMBER: _ClassVar[int]
    worker: _worker_pb2.WorkerAddress
    roles: _containers.RepeatedScalarFieldContainer[_worker_pb2.Role]
    model: str
    fingerprint: str
    n_pages: int
    page_tokens: int
    max_context_tokens: int
    vocab_size: int
    eos_token_ids: _containers.RepeatedScalarFieldContainer[int]
    decode_rows: int
    metrics_endpoint: str
    leaving: bool
    layout: str
    makes_dtypes: _containers.RepeatedScalarFieldContainer[str]
    pool: str
    devices: _containers.RepeatedScalarFieldContainer[str]
    host: str
    host_identity: str
    routers: _containers.RepeatedCompositeFieldContainer[_worker_pb2.RouterAddress]
    insecure_listeners: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, worker: _Optional[_Union[_worker_pb2.WorkerAddress, _Mapping]] = ..., roles: _Optional[_Iterable[_Union[_worker_pb2.Role, str]]] = ..., model: _Optional[str] = ..., fingerprint: _Optional[str] = ..., n_pages: _Optional[int] = ..., page_tokens: _Optional[int] = ..., max_context_tokens: _Optional[int] = ..., vocab_size: _Optional[int] = ..., eos_token_ids: _Optional[_Iterable[int]] = ..., decode_rows: _Optional[int] = ..., metrics_endpoint: _Optional[str] = ..., leaving: bool = ..., layout: _Optional[str] = ..., makes_dtypes: _Optional[_Iterable[str]] = ..., pool: _Optional[str] = ..., devices: _Optional[_Iterable[str]] = ..., host: _Optional[str] = ..., host_identity: _Optional[str] = ..., routers: _Optional[_Iterable[_Union[_worker_pb2.RouterAddress, _Mapping]]] = ..., insecure_listeners: _Optional[_Iterable[str]] = ...) -> None: ...

class AnnounceResponse(_message.Message):
    __slots__ = ("interval_ms", "routers")
    INTERVAL_MS_FIELD_NUMBER: _ClassVar[int]
    ROUTERS_FIELD_NUMBER: _ClassVar[int]
    interval_ms: int
    routers: _containers.RepeatedCompositeFieldContainer[_worker_pb2.RouterAddress]
    def __init__(self, interval_ms: _Optional[int] = ..., routers: _Optional[_Iterable[_Union[_worker_pb2.RouterAddress, _Mapping]]] = ...) -> None: ...

class LookRequest(_message.Message):
    __slots__ = ("method", "request")
    METHOD_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    method: str
    request: bytes
    def __init__(self, method: _Optional[str] = ..., request: _Optional[bytes] = ...) -> None: ...

class LookResponse(_message.Message):
    __slots__ = ("response",)
    RESPONSE_FIELD_NUMBER: _ClassVar[int]
    response: bytes
    def __init__(self, response: _Optional[bytes] = ...) -> None: ...

class PrepareConfigRequest(_message.Message):
    __slots__ = ("revision", "values", "who", "reason", "reload")
    class ValuesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    REVISION_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    WHO_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    RELOAD_FIELD_NUMBER: _ClassVar[int]
    revision: int
    values: _containers.ScalarMap[str, str]
    who: str
    reason: str
    reload: bool
    def __init__(self, revision: _Optional[int] = ..., values: _Optional[_Mapping[str, str]] = ..., who: _Optional[str] = ..., reason: _Optional[str] = ..., reload: bool = ...) -> None: ...

class PrepareConfigResponse(_message.Message):
    __slots__ = ("revision",)
    REVISION_FIELD_NUMBER: _ClassVar[int]
    revision: int
    def __init__(self, revision: _Optional[int] = ...) -> None: ...

class ApplyConfigRequest(_message.Message):
    __slots__ = ("revision", "forget")
    REVISION_FIELD_NUMBER: _ClassVar[int]
    FORGET_FIELD_NUMBER: _ClassVar[int]
    revision: int
    forget: bool
    def __init__(self, revision: _Optional[int] = ..., forget: bool = ...) -> None: ...

class ApplyConfigResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ClusterEvent(_message.Message):
    __slots__ = ("id", "at", "source", "kind", "subject", "text", "audit")
    ID_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    SUBJECT_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    AUDIT_FIELD_NUMBER: _ClassVar[int]
    id: str
    at: float
    source: str
    kind: str
    subject: str
    text: str
    audit: Audit
    def __init__(self, id: _Optional[str] = ..., at: _Optional[float] = ..., source: _Optional[str] = ..., kind: _Optional[str] = ..., subject: _Optional[str] = ..., text: _Optional[str] = ..., audit: _Optional[_Union[Audit, _Mapping]] = ...) -> None: ...

class Audit(_message.Message):
    __slots__ = ("who", "what", "before", "after", "reason", "request_id", "refused")
    WHO_FIELD_NUMBER: _ClassVar[int]
    WHAT_FIELD_NUMBER: _ClassVar[int]
    BEFORE_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    who: str
    what: str
    before: str
    after: str
    reason: str
    request_id: str
    refused: bool
    def __init__(self, who: _Optional[str] = ..., what: _Optional[str] = ..., before: _Optional[str] = ..., after: _Optional[str] = ..., reason: _Optional[str] = ..., request_id: _Optional[str] = ..., refused: bool = ...) -> None: ...

class FindSubmissionsRequest(_message.Message):
    __slots__ = ("tenant", "submission_ids")
    TENANT_FIELD_NUMBER: _ClassVar[int]
    SUBMISSION_IDS_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    submission_ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, tenant: _Optional[str] = ..., submission_ids: _Optional[_Iterable[str]] = ...) -> None: ...

class FindSubmissionsResponse(_message.Message):
    __slots__ = ("submissions",)
    SUBMISSIONS_FIELD_NUMBER: _ClassVar[int]
    submissions: _containers.RepeatedCompositeFieldContainer[_inference_pb2.SubmissionStatus]
    def __init__(self, submissions: _Optional[_Iterable[_Union[_inference_pb2.SubmissionStatus, _Mapping]]] = ...) -> None: ...

class GetClusterStatusRequest(_message.Message):
    __slots__ = ("without_requests",)
    WITHOUT_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    without_requests: bool
    def __init__(self, without_requests: bool = ...) -> None: ...

class GetClusterStatusResponse(_message.Message):
    __slots__ = ("router_id", "uptime_s", "workers", "requests", "requests_by_state", "counters", "http_endpoint", "metrics_endpoint", "hosts", "insecure_listeners", "tenants", "store", "routers", "pools", "controllers", "http_tls", "scaler", "rollout", "controller_counters")
    class RequestsByStateEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class CountersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class ControllerCountersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    ROUTER_ID_FIELD_NUMBER: _ClassVar[int]
    UPTIME_S_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_BY_STATE_FIELD_NUMBER: _ClassVar[int]
    COUNTERS_FIELD_NUMBER: _ClassVar[int]
    HTTP_ENDPOINT_FIELD_NUMBER: _ClassVar[int]
    METRICS_ENDPOINT_FIELD_NUMBER: _ClassVar[int]
    HOSTS_FIELD_NUMBER: _ClassVar[int]
    INSECURE_LISTENERS_FIELD_NUMBER: _ClassVar[int]
    TENANTS_FIELD_NUMBER: _ClassVar[int]
    STORE_FIELD_NUMBER: _ClassVar[int]
    ROUTERS_FIELD_NUMBER: _ClassVar[int]
    POOLS_FIELD_NUMBER: _ClassVar[int]
    CONTROLLERS_FIELD_NUMBER: _ClassVar[int]
    HTTP_TLS_FIELD_NUMBER: _ClassVar[int]
    SCALER_FIELD_NUMBER: _ClassVar[int]
    ROLLOUT_FIELD_NUMBER: _ClassVar[int]
    CONTROLLER_COUNTERS_FIELD_NUMBER: _ClassVar[int]
    router_id: str
    uptime_s: float
    workers: _containers.RepeatedCompositeFieldContainer[WorkerStatus]
    requests: _containers.RepeatedCompositeFieldContainer[RequestStatus]
    requests_by_state: _containers.ScalarMap[str, int]
    counters: _containers.ScalarMap[str, int]
    http_endpoint: str
    metrics_endpoint: str
    hosts: _containers.RepeatedCompositeFieldContainer[HostStatus]
    insecure_listeners: _containers.RepeatedScalarFieldContainer[str]
    tenants: _containers.RepeatedCompositeFieldContainer[TenantStatus]
    store: StoreStatus
    routers: _containers.RepeatedCompositeFieldContainer[RouterStatus]
    pools: _containers.RepeatedCompositeFieldContainer[PoolStatus]
    controllers: _containers.RepeatedCompositeFieldContainer[ControllerStatus]
    http_tls: bool
    scaler: ScalerStatus
    rollout: RolloutStatus
    controller_counters: _containers.ScalarMap[str, int]
    def __init__(self, router_id: _Optional[str] = ..., uptime_s: _Optional[float] = ..., workers: _Optional[_Iterable[_Union[WorkerStatus, _Mapping]]] = ..., requests: _Optional[_Iterable[_Union[RequestStatus, _Mapping]]] = ..., requests_by_state: _Optional[_Mapping[str, int]] = ..., counters: _Optional[_Mapping[str, int]] = ..., http_endpoint: _Optional[str] = ..., metrics_endpoint: _Optional[str] = ..., hosts: _Optional[_Iterable[_Union[HostStatus, _Mapping]]] = ..., insecure_listeners: _Optional[_Iterable[str]] = ..., tenants: _Optional[_Iterable[_Union[TenantStatus, _Mapping]]] = ..., store: _Optional[_Union[StoreStatus, _Mapping]] = ..., routers: _Optional[_Iterable[_Union[RouterStatus, _Mapping]]] = ..., pools: _Optional[_Iterable[_Union[PoolStatus, _Mapping]]] = ..., controllers: _Optional[_Iterable[_Union[ControllerStatus, _Mapping]]] = ..., http_tls: bool = ..., scaler: _Optional[_Union[ScalerStatus, _Mapping]] = ..., rollout: _Optional[_Union[RolloutStatus, _Mapping]] = ..., controller_counters: _Optional[_Mapping[str, int]] = ...) -> None: ...

class RouterStatus(_message.Message):
    __slots__ = ("address", "uptime_s", "requests", "metrics_endpoint", "unreached")
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    UPTIME_S_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    METRICS_ENDPOINT_FIELD_NUMBER: _ClassVar[int]
    UNREACHED_FIELD_NUMBER: _ClassVar[int]
    address: _worker_pb2.RouterAddress
    uptime_s: float
    requests: int
    metrics_endpoint: str
    unreached: str
    def __init__(self, address: _Optional[_Union[_worker_pb2.RouterAddress, _Mapping]] = ..., uptime_s: _Optional[float] = ..., requests: _Optional[int] = ..., metrics_endpoint: _Optional[str] = ..., unreached: _Optional[str] = ...) -> None: ...

class ControllerStatus(_message.Message):
    __slots__ = ("controller_id", "term", "last_heard_s")
    CONTROLLER_ID_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    LAST_HEARD_S_FIELD_NUMBER: _ClassVar[int]
    controller_id: str
    term: int
    last_heard_s: float
    def __init__(self, controller_id: _Optional[str] = ..., term: _Optional[int] = ..., last_heard_s: _Optional[float] = ...) -> None: ...

class StoreStatus(_message.Message):
    __slots__ = ("address", "up", "note", "dropped", "clock_off_s")
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    UP_FIELD_NUMBER: _ClassVar[int]
    NOTE_FIELD_NUMBER: _ClassVar[int]
    DROPPED_FIELD_NUMBER: _ClassVar[int]
    CLOCK_OFF_S_FIELD_NUMBER: _ClassVar[int]
    address: str
    up: bool
    note: str
    dropped: int
    clock_off_s: float
    def __init__(self, address: _Optional[str] = ..., up: bool = ..., note: _Optional[str] = ..., dropped: _Optional[int] = ..., clock_off_s: _Optional[float] = ...) -> None: ...

class TenantStatus(_message.Message):
    __slots__ = ("tenant", "label", "weight", "live", "requests", "refused", "prompt_tokens", "output_tokens")
    TENANT_FIELD_NUMBER: _ClassVar[int]
    LABEL_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    LIVE_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    label: str
    weight: float
    live: int
    requests: int
    refused: int
    prompt_tokens: int
    output_tokens: int
    def __init__(self, tenant: _Optional[str] = ..., label: _Optional[str] = ..., weight: _Optional[float] = ..., live: _Optional[int] = ..., requests: _Optional[int] = ..., refused: _Optional[int] = ..., prompt_tokens: _Optional[int] = ..., output_tokens: _Optional[int] = ...) -> None: ...

class WorkerStatus(_message.Message):
    __slots__ = ("worker", "roles", "state", "model", "fingerprint", "load", "last_heard_s", "requests", "pool", "devices", "metrics_endpoint", "host")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    ROLES_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    LOAD_FIELD_NUMBER: _ClassVar[int]
    LAST_HEARD_S_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    POOL_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    METRICS_ENDPOINT_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    worker: _worker_pb2.WorkerAddress
    roles: _containers.RepeatedScalarFieldContainer[_worker_pb2.Role]
    state: str
    model: str
    fingerprint: str
    load: _worker_pb2.LoadReport
    last_heard_s: float
    requests: int
    pool: str
    devices: _containers.RepeatedScalarFieldContainer[str]
    metrics_endpoint: str
    host: str
    def __init__(self, worker: _Optional[_Union[_worker_pb2.WorkerAddress, _Mapping]] = ..., roles: _Optional[_Iterable[_Union[_worker_pb2.Role, str]]] = ..., state: _Optional[str] = ..., model: _Optional[str] = ..., fingerprint: _Optional[str] = ..., load: _Optional[_Union[_worker_pb2.LoadReport, _Mapping]] = ..., last_heard_s: _Optional[float] = ..., requests: _Optional[int] = ..., pool: _Optional[str] = ..., devices: _Optional[_Iterable[str]] = ..., metrics_endpoint: _Optional[str] = ..., host: _Optional[str] = ...) -> None: ...

class RequestStatus(_message.Message):
    __slots__ = ("request_id", "state", "attempt", "prefill_worker", "decode_worker", "prompt_tokens", "output_tokens", "age_s", "priority", "submission_id", "tenant", "model", "router_id", "arrived_at", "ttft_s", "silent_s", "finish", "ledger")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    PREFILL_WORKER_FIELD_NUMBER: _ClassVar[int]
    DECODE_WORKER_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    AGE_S_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    SUBMISSION_ID_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    ROUTER_ID_FIELD_NUMBER: _ClassVar[int]
    ARRIVED_AT_FIELD_NUMBER: _ClassVar[int]
    TTFT_S_FIELD_NUMBER: _ClassVar[int]
    SILENT_S_FIELD_NUMBER: _ClassVar[int]
    FINISH_FIELD_NUMBER: _ClassVar[int]
    LEDGER_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    state: str
    attempt: int
    prefill_worker: str
    decode_worker: str
    prompt_tokens: int
    output_tokens: int
    age_s: float
    priority: int
    submission_id: str
    tenant: str
    model: str
    router_id: str
    arrived_at: float
    ttft_s: float
    silent_s: float
    finish: str
    ledger: _sampling_pb2.Ledger
    def __init__(self, request_id: _Optional[str] = ..., state: _Optional[str] = ..., attempt: _Optional[int] = ..., prefill_worker: _Optional[str] = ..., decode_worker: _Optional[str] = ..., prompt_tokens: _Optional[int] = ..., output_tokens: _Optional[int] = ..., age_s: _Optional[float] = ..., priority: _Optional[int] = ..., submission_id: _Optional[str] = ..., tenant: _Optional[str] = ..., model: _Optional[str] = ..., router_id: _Optional[str] = ..., arrived_at: _Optional[float] = ..., ttft_s: _Optional[float] = ..., silent_s: _Optional[float] = ..., finish: _Optional[str] = ..., ledger: _Optional[_Union[_sampling_pb2.Ledger, _Mapping]] = ...) -> None: ...

class DrainWorkerRequest(_message.Message):
    __slots__ = ("worker_id", "undo", "hand_over", "take_ticket", "expect_epoch", "act", "forget")
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    UNDO_FIELD_NUMBER: _ClassVar[int]
    HAND_OVER_FIELD_NUMBER: _ClassVar[int]
    TAKE_TICKET_FIELD_NUMBER: _ClassVar[int]
    EXPECT_EPOCH_FIELD_NUMBER: _ClassVar[int]
    ACT_FIELD_NUMBER: _ClassVar[int]
    FORGET_FIELD_NUMBER: _ClassVar[int]
    worker_id: str
    undo: bool
    hand_over: bool
    take_ticket: int
    expect_epoch: int
    act: _acts_pb2.Act
    forget: bool
    def __init__(self, worker_id: _Optional[str] = ..., undo: bool = ..., hand_over: bool = ..., take_ticket: _Optional[int] = ..., expect_epoch: _Optional[int] = ..., act: _Optional[_Union[_acts_pb2.Act, _Mapping]] = ..., forget: bool = ...) -> None: ...

class DrainWorkerResponse(_message.Message):
    __slots__ = ("response",)
    RESPONSE_FIELD_NUMBER: _ClassVar[int]
    response: _acts_pb2.ActResponse
    def __init__(self, response: _Optional[_Union[_acts_pb2.ActResponse, _Mapping]] = ...) -> None: ...

class ReportGoneRequest(_message.Message):
    __slots__ = ("epoch", "host", "proof_class")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    PROOF_CLASS_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    host: str
    proof_class: str
    def __init__(self, epoch: _Optional[int] = ..., host: _Optional[str] = ..., proof_class: _Optional[str] = ...) -> None: ...

class ReportGoneResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class SuperviseRequest(_message.Message):
    __slots__ = ("hosts", "routers", "results", "events", "pools", "controller_id", "term", "counters", "lost", "scaler", "roles", "config", "rollout")
    class CountersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    HOSTS_FIELD_NUMBER: _ClassVar[int]
    ROUTERS_FIELD_NUMBER: _ClassVar[int]
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    POOLS_FIELD_NUMBER: _ClassVar[int]
    CONTROLLER_ID_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    COUNTERS_FIELD_NUMBER: _ClassVar[int]
    LOST_FIELD_NUMBER: _ClassVar[int]
    SCALER_FIELD_NUMBER: _ClassVar[int]
    ROLES_FIELD_NUMBER: _ClassVar[int]
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    ROLLOUT_FIELD_NUMBER: _ClassVar[int]
    hosts: _containers.RepeatedCompositeFieldContainer[HostStatus]
    routers: _containers.RepeatedCompositeFieldContainer[_worker_pb2.RouterAddress]
    results: _containers.RepeatedCompositeFieldContainer[_acts_pb2.ControllerActResult]
    events: _containers.RepeatedCompositeFieldContainer[ClusterEvent]
    pools: _containers.RepeatedCompositeFieldContainer[PoolStatus]
    controller_id: str
    term: int
    counters: _containers.ScalarMap[str, int]
    lost: _containers.RepeatedScalarFieldContainer[int]
    scaler: ScalerStatus
    roles: _containers.RepeatedCompositeFieldContainer[RoleWish]
    config: ConfigState
    rollout: RolloutStatus
    def __init__(self, hosts: _Optional[_Iterable[_Union[HostStatus, _Mapping]]] = ..., routers: _Optional[_Iterable[_Union[_worker_pb2.RouterAddress, _Mapping]]] = ..., results: _Optional[_Iterable[_Union[_acts_pb2.ControllerActResult, _Mapping]]] = ..., events: _Optional[_Iterable[_Union[ClusterEvent, _Mapping]]] = ..., pools: _Optional[_Iterable[_Union[PoolStatus, _Mapping]]] = ..., controller_id: _Optional[str] = ..., term: _Optional[int] = ..., counters: _Optional[_Mapping[str, int]] = ..., lost: _Optional[_Iterable[int]] = ..., scaler: _Optional[_Union[ScalerStatus, _Mapping]] = ..., roles: _Optional[_Iterable[_Union[RoleWish, _Mapping]]] = ..., config: _Optional[_Union[ConfigState, _Mapping]] = ..., rollout: _Optional[_Union[RolloutStatus, _Mapping]] = ...) -> None: ...

class RolloutStatus(_message.Message):
    __slots__ = ("state", "from_dir", "to_dir", "workers", "waits_for", "canary_share", "settled", "waits_s")
    STATE_FIELD_NUMBER: _ClassVar[int]
    FROM_DIR_FIELD_NUMBER: _ClassVar[int]
    TO_DIR_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    WAITS_FOR_FIELD_NUMBER: _ClassVar[int]
    CANARY_SHARE_FIELD_NUMBER: _ClassVar[int]
    SETTLED_FIELD_NUMBER: _ClassVar[int]
    WAITS_S_FIELD_NUMBER: _ClassVar[int]
    state: str
    from_dir: str
    to_dir: str
    workers: _containers.RepeatedCompositeFieldContainer[RolloutWorker]
    waits_for: str
    canary_share: float
    settled: _containers.RepeatedScalarFieldContainer[str]
    waits_s: float
    def __init__(self, state: _Optional[str] = ..., from_dir: _Optional[str] = ..., to_dir: _Optional[str] = ..., workers: _Optional[_Iterable[_Union[RolloutWorker, _Mapping]]] = ..., waits_for: _Optional[str] = ..., canary_share: _Optional[float] = ..., settled: _Optional[_Iterable[str]] = ..., waits_s: _Optional[float] = ...) -> None: ...

class RolloutWorker(_message.Message):
    __slots__ = ("name", "is_new", "now", "requests")
    NAME_FIELD_NUMBER: _ClassVar[int]
    IS_NEW_FIELD_NUMBER: _ClassVar[int]
    NOW_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    name: str
    is_new: bool
    now: str
    requests: int
    def __init__(self, name: _Optional[str] = ..., is_new: bool = ..., now: _Optional[str] = ..., requests: _Optional[int] = ...) -> None: ...

class ConfigState(_message.Message):
    __slots__ = ("revision", "values", "controllers")
    class ValuesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    REVISION_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    CONTROLLERS_FIELD_NUMBER: _ClassVar[int]
    revision: int
    values: _containers.ScalarMap[str, str]
    controllers: _containers.RepeatedCompositeFieldContainer[ConfigField]
    def __init__(self, revision: _Optional[int] = ..., values: _Optional[_Mapping[str, str]] = ..., controllers: _Optional[_Iterable[_Union[ConfigField, _Mapping]]] = ...) -> None: ...

class ConfigField(_message.Message):
    __slots__ = ("name", "value", "default", "live", "source", "differs")
    class DiffersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    DEFAULT_FIELD_NUMBER: _ClassVar[int]
    LIVE_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    DIFFERS_FIELD_NUMBER: _ClassVar[int]
    name: str
    value: str
    default: str
    live: bool
    source: str
    differs: _containers.ScalarMap[str, str]
    def __init__(self, name: _Optional[str] = ..., value: _Optional[str] = ..., default: _Optional[str] = ..., live: bool = ..., source: _Optional[str] = ..., differs: _Optional[_Mapping[str, str]] = ...) -> None: ...

class RoleWish(_message.Message):
    __slots__ = ("epoch", "roles")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    ROLES_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    roles: _containers.RepeatedScalarFieldContainer[_worker_pb2.Role]
    def __init__(self, epoch: _Optional[int] = ..., roles: _Optional[_Iterable[_Union[_worker_pb2.Role, str]]] = ...) -> None: ...

class ScalerStatus(_message.Message):
    __slots__ = ("mode", "budget_gpus", "held_gpus", "ttft_s", "gap_s", "wakes", "pools", "actions", "reasons", "attainment", "has_attainment", "decisions", "deeds", "unit")
    MODE_FIELD_NUMBER: _ClassVar[int]
    BUDGET_GPUS_FIELD_NUMBER: _ClassVar[int]
    HELD_GPUS_FIELD_NUMBER: _ClassVar[int]
    TTFT_S_FIELD_NUMBER: _ClassVar[int]
    GAP_S_FIELD_NUMBER: _ClassVar[int]
    WAKES_FIELD_NUMBER: _ClassVar[int]
    POOLS_FIELD_NUMBER: _ClassVar[int]
    ACTIONS_FIELD_NUMBER: _ClassVar[int]
    REASONS_FIELD_NUMBER: _ClassVar[int]
    ATTAINMENT_FIELD_NUMBER: _ClassVar[int]
    HAS_ATTAINMENT_FIELD_NUMBER: _ClassVar[int]
    DECISIONS_FIELD_NUMBER: _ClassVar[int]
    DEEDS_FIELD_NUMBER: _ClassVar[int]
    UNIT_FIELD_NUMBER: _ClassVar[int]
    mode: str
    budget_gpus: int
    held_gpus: int
    ttft_s: float
    gap_s: float
    wakes: bool
    pools: _containers.RepeatedCompositeFieldContainer[ScaledPool]
    actions: _containers.RepeatedScalarFieldContainer[str]
    reasons: _containers.RepeatedScalarFieldContainer[str]
    attainment: float
    has_attainment: bool
    decisions: int
    deeds: _containers.RepeatedCompositeFieldContainer[ScalerDeed]
    unit: str
    def __init__(self, mode: _Optional[str] = ..., budget_gpus: _Optional[int] = ..., held_gpus: _Optional[int] = ..., ttft_s: _Optional[float] = ..., gap_s: _Optional[float] = ..., wakes: bool = ..., pools: _Optional[_Iterable[_Union[ScaledPool, _Mapping]]] = ..., actions: _Optional[_Iterable[str]] = ..., reasons: _Optional[_Iterable[str]] = ..., attainment: _Optional[float] = ..., has_attainment: bool = ..., decisions: _Optional[int] = ..., deeds: _Optional[_Iterable[_Union[ScalerDeed, _Mapping]]] = ..., unit: _Optional[str] = ...) -> None: ...

class ScaledPool(_message.Message):
    __slots__ = ("pool", "have", "target", "need", "least", "most", "load", "capacity_per_s", "forecast_per_s")
    POOL_FIELD_NUMBER: _ClassVar[int]
    HAVE_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    NEED_FIELD_NUMBER: _ClassVar[int]
    LEAST_FIELD_NUMBER: _ClassVar[int]
    MOST_FIELD_NUMBER: _ClassVar[int]
    LOAD_FIELD_NUMBER: _ClassVar[int]
    CAPACITY_PER_S_FIELD_NUMBER: _ClassVar[int]
    FORECAST_PER_S_FIELD_NUMBER: _ClassVar[int]
    pool: str
    have: int
    target: int
    need: int
    least: int
    most: int
    load: float
    capacity_per_s: float
    forecast_per_s: float
    def __init__(self, pool: _Optional[str] = ..., have: _Optional[int] = ..., target: _Optional[int] = ..., need: _Optional[int] = ..., least: _Optional[int] = ..., most: _Optional[int] = ..., load: _Optional[float] = ..., capacity_per_s: _Optional[float] = ..., forecast_per_s: _Optional[float] = ...) -> None: ...

class ScalerDeed(_message.Message):
    __slots__ = ("ago_s", "text")
    AGO_S_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    ago_s: float
    text: str
    def __init__(self, ago_s: _Optional[float] = ..., text: _Optional[str] = ...) -> None: ...

class Traffic(_message.Message):
    __slots__ = ("requests", "prompt_tokens", "cached_tokens", "answers", "answer_tokens", "held", "failed", "waiting", "waiting_tokens", "oldest_wait_s", "decode_is_full")
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    ANSWERS_FIELD_NUMBER: _ClassVar[int]
    ANSWER_TOKENS_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    WAITING_TOKENS_FIELD_NUMBER: _ClassVar[int]
    OLDEST_WAIT_S_FIELD_NUMBER: _ClassVar[int]
    DECODE_IS_FULL_FIELD_NUMBER: _ClassVar[int]
    requests: int
    prompt_tokens: int
    cached_tokens: int
    answers: int
    answer_tokens: int
    held: int
    failed: int
    waiting: int
    waiting_tokens: int
    oldest_wait_s: float
    decode_is_full: bool
    def __init__(self, requests: _Optional[int] = ..., prompt_tokens: _Optional[int] = ..., cached_tokens: _Optional[int] = ..., answers: _Optional[int] = ..., answer_tokens: _Optional[int] = ..., held: _Optional[int] = ..., failed: _Optional[int] = ..., waiting: _Optional[int] = ..., waiting_tokens: _Optional[int] = ..., oldest_wait_s: _Optional[float] = ..., decode_is_full: bool = ...) -> None: ...

class PoolStatus(_message.Message):
    __slots__ = ("pool", "workers", "alive", "starting", "draining", "gpus_a_worker", "pinned", "pinned_for_s", "least", "most", "names")
    POOL_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    ALIVE_FIELD_NUMBER: _ClassVar[int]
    STARTING_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    GPUS_A_WORKER_FIELD_NUMBER: _ClassVar[int]
    PINNED_FIELD_NUMBER: _ClassVar[int]
    PINNED_FOR_S_FIELD_NUMBER: _ClassVar[int]
    LEAST_FIELD_NUMBER: _ClassVar[int]
    MOST_FIELD_NUMBER: _ClassVar[int]
    NAMES_FIELD_NUMBER: _ClassVar[int]
    pool: str
    workers: int
    alive: int
    starting: int
    draining: int
    gpus_a_worker: int
    pinned: bool
    pinned_for_s: float
    least: int
    most: int
    names: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, pool: _Optional[str] = ..., workers: _Optional[int] = ..., alive: _Optional[int] = ..., starting: _Optional[int] = ..., draining: _Optional[int] = ..., gpus_a_worker: _Optional[int] = ..., pinned: bool = ..., pinned_for_s: _Optional[float] = ..., least: _Optional[int] = ..., most: _Optional[int] = ..., names: _Optional[_Iterable[str]] = ...) -> None: ...

class SuperviseResponse(_message.Message):
    __slots__ = ("workers", "acts", "proven", "traffic")
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    ACTS_FIELD_NUMBER: _ClassVar[int]
    PROVEN_FIELD_NUMBER: _ClassVar[int]
    TRAFFIC_FIELD_NUMBER: _ClassVar[int]
    workers: _containers.RepeatedCompositeFieldContainer[WorkerStatus]
    acts: _containers.RepeatedCompositeFieldContainer[_acts_pb2.ControllerAct]
    proven: _containers.RepeatedScalarFieldContainer[int]
    traffic: Traffic
    def __init__(self, workers: _Optional[_Iterable[_Union[WorkerStatus, _Mapping]]] = ..., acts: _Optional[_Iterable[_Union[_acts_pb2.ControllerAct, _Mapping]]] = ..., proven: _Optional[_Iterable[int]] = ..., traffic: _Optional[_Union[Traffic, _Mapping]] = ...) -> None: ...

class HostStatus(_message.Message):
    __slots__ = ("name", "state", "for_s", "workers", "gpus", "note", "cordoned", "insecure_listeners", "lost")
    NAME_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    FOR_S_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    GPUS_FIELD_NUMBER: _ClassVar[int]
    NOTE_FIELD_NUMBER: _ClassVar[int]
    CORDONED_FIELD_NUMBER: _ClassVar[int]
    INSECURE_LISTENERS_FIELD_NUMBER: _ClassVar[int]
    LOST_FIELD_NUMBER: _ClassVar[int]
    name: str
    state: str
    for_s: float
    workers: _containers.RepeatedScalarFieldContainer[str]
    gpus: int
    note: str
    cordoned: bool
    insecure_listeners: _containers.RepeatedScalarFieldContainer[str]
    lost: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, name: _Optional[str] = ..., state: _Optional[str] = ..., for_s: _Optional[float] = ..., workers: _Optional[_Iterable[str]] = ..., gpus: _Optional[int] = ..., note: _Optional[str] = ..., cordoned: bool = ..., insecure_listeners: _Optional[_Iterable[str]] = ..., lost: _Optional[_Iterable[str]] = ...) -> None: ...
