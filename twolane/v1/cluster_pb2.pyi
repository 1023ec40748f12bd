from twolane.v1 import inference_pb2 as _inference_pb2
from twolane.v1 import worker_pb2 as _worker_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class AnnounceRequest(_message.Message):
    __slots__ = ("worker", "roles", "model", "fingerprint", "n_pages", "page_tokens", "max_context_tokens", "vocab_size", "eos_token_ids", "decode_rows", "metrics_endpoint", "leaving", "layout", "makes_dtypes", "pool", "devices", "host", "host_identity", "routers")
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
    def __init__(self, worker: _Optional[_Union[_worker_pb2.WorkerAddress, _Mapping]] = ..., roles: _Optional[_Iterable[_Union[_worker_pb2.Role, str]]] = ..., model: _Optional[str] = ..., fingerprint: _Optional[str] = ..., n_pages: _Optional[int] = ..., page_tokens: _Optional[int] = ..., max_context_tokens: _Optional[int] = ..., vocab_size: _Optional[int] = ..., eos_token_ids: _Optional[_Iterable[int]] = ..., decode_rows: _Optional[int] = ..., metrics_endpoint: _Optional[str] = ..., leaving: bool = ..., layout: _Optional[str] = ..., makes_dtypes: _Optional[_Iterable[str]] = ..., pool: _Optional[str] = ..., devices: _Optional[_Iterable[str]] = ..., host: _Optional[str] = ..., host_identity: _Optional[str] = ..., routers: _Optional[_Iterable[_Union[_worker_pb2.RouterAddress, _Mapping]]] = ...) -> None: ...

class AnnounceResponse(_message.Message):
    __slots__ = ("interval_ms", "routers")
    INTERVAL_MS_FIELD_NUMBER: _ClassVar[int]
    ROUTERS_FIELD_NUMBER: _ClassVar[int]
    interval_ms: int
    routers: _containers.RepeatedCompositeFieldContainer[_worker_pb2.RouterAddress]
    def __init__(self, interval_ms: _Optional[int] = ..., routers: _Optional[_Iterable[_Union[_worker_pb2.RouterAddress, _Mapping]]] = ...) -> None: ...

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
    __slots__ = ()
    def __init__(self) -> None: ...

class GetClusterStatusResponse(_message.Message):
    __slots__ = ("router_id", "uptime_s", "workers", "requests", "requests_by_state", "counters", "http_endpoint", "metrics_endpoint", "hosts", "insecure_listeners", "tenants", "store", "routers")
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
    def __init__(self, router_id: _Optional[str] = ..., uptime_s: _Optional[float] = ..., workers: _Optional[_Iterable[_Union[WorkerStatus, _Mapping]]] = ..., requests: _Optional[_Iterable[_Union[RequestStatus, _Mapping]]] = ..., requests_by_state: _Optional[_Mapping[str, int]] = ..., counters: _Optional[_Mapping[str, int]] = ..., http_endpoint: _Optional[str] = ..., metrics_endpoint: _Optional[str] = ..., hosts: _Optional[_Iterable[_Union[HostStatus, _Mapping]]] = ..., insecure_listeners: _Optional[_Iterable[str]] = ..., tenants: _Optional[_Iterable[_Union[TenantStatus, _Mapping]]] = ..., store: _Optional[_Union[StoreStatus, _Mapping]] = ..., routers: _Optional[_Iterable[_Union[RouterStatus, _Mapping]]] = ...) -> None: ...

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

class StoreStatus(_message.Message):
    __slots__ = ("address", "up", "note", "dropped")
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    UP_FIELD_NUMBER: _ClassVar[int]
    NOTE_FIELD_NUMBER: _ClassVar[int]
    DROPPED_FIELD_NUMBER: _ClassVar[int]
    address: str
    up: bool
    note: str
    dropped: int
    def __init__(self, address: _Optional[str] = ..., up: bool = ..., note: _Optional[str] = ..., dropped: _Optional[int] = ...) -> None: ...

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
    __slots__ = ("request_id", "state", "attempt", "prefill_worker", "decode_worker", "prompt_tokens", "output_tokens", "age_s", "priority", "submission_id", "tenant")
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
    def __init__(self, request_id: _Optional[str] = ..., state: _Optional[str] = ..., attempt: _Optional[int] = ..., prefill_worker: _Optional[str] = ..., decode_worker: _Optional[str] = ..., prompt_tokens: _Optional[int] = ..., output_tokens: _Optional[int] = ..., age_s: _Optional[float] = ..., priority: _Optional[int] = ..., submission_id: _Optional[str] = ..., tenant: _Optional[str] = ...) -> None: ...

class DrainWorkerRequest(_message.Message):
    __slots__ = ("worker_id", "undo", "hand_over", "take_ticket", "expect_epoch")
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    UNDO_FIELD_NUMBER: _ClassVar[int]
    HAND_OVER_FIELD_NUMBER: _ClassVar[int]
    TAKE_TICKET_FIELD_NUMBER: _ClassVar[int]
    EXPECT_EPOCH_FIELD_NUMBER: _ClassVar[int]
    worker_id: str
    undo: bool
    hand_over: bool
    take_ticket: int
    expect_epoch: int
    def __init__(self, worker_id: _Optional[str] = ..., undo: bool = ..., hand_over: bool = ..., take_ticket: _Optional[int] = ..., expect_epoch: _Optional[int] = ...) -> None: ...

class DrainWorkerResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class WatchDrainRequest(_message.Message):
    __slots__ = ("worker_id", "expect_epoch")
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    EXPECT_EPOCH_FIELD_NUMBER: _ClassVar[int]
    worker_id: str
    expect_epoch: int
    def __init__(self, worker_id: _Optional[str] = ..., expect_epoch: _Optional[int] = ...) -> None: ...

class WatchDrainResponse(_message.Message):
    __slots__ = ("worker", "state", "drain")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    DRAIN_FIELD_NUMBER: _ClassVar[int]
    worker: _worker_pb2.WorkerAddress
    state: str
    drain: _worker_pb2.DrainReport
    def __init__(self, worker: _Optional[_Union[_worker_pb2.WorkerAddress, _Mapping]] = ..., state: _Optional[str] = ..., drain: _Optional[_Union[_worker_pb2.DrainReport, _Mapping]] = ...) -> None: ...

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
    __slots__ = ("hosts", "routers")
    HOSTS_FIELD_NUMBER: _ClassVar[int]
    ROUTERS_FIELD_NUMBER: _ClassVar[int]
    hosts: _containers.RepeatedCompositeFieldContainer[HostStatus]
    routers: _containers.RepeatedCompositeFieldContainer[_worker_pb2.RouterAddress]
    def __init__(self, hosts: _Optional[_Iterable[_Union[HostStatus, _Mapping]]] = ..., routers: _Optional[_Iterable[_Union[_worker_pb2.RouterAddress, _Mapping]]] = ...) -> None: ...

class SuperviseResponse(_message.Message):
    __slots__ = ("workers",)
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    workers: _containers.RepeatedCompositeFieldContainer[WorkerStatus]
    def __init__(self, workers: _Optional[_Iterable[_Union[WorkerStatus, _Mapping]]] = ...) -> None: ...

class HostStatus(_message.Message):
    __slots__ = ("name", "state", "for_s", "workers", "gpus", "note")
    NAME_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    FOR_S_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    GPUS_FIELD_NUMBER: _ClassVar[int]
    NOTE_FIELD_NUMBER: _ClassVar[int]
    name: str
    state: str
    for_s: float
    workers: _containers.RepeatedScalarFieldContainer[str]
    gpus: int
    note: str
    def __init__(self, name: _Optional[str] = ..., state: _Optional[str] = ..., for_s: _Optional[float] = ..., workers: _Optional[_Iterable[str]] = ..., gpus: _Optional[int] = ..., note: _Optional[str] = ...) -> None: ...
