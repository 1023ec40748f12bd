from twolane.v1 import acts_pb2 as _acts_pb2
from twolane.v1 import cluster_pb2 as _cluster_pb2
from twolane.v1 import drain_pb2 as _drain_pb2
from twolane.v1 import facts_pb2 as _facts_pb2
from twolane.v1 import sampling_pb2 as _sampling_pb2
from twolane.v1 import worker_pb2 as _worker_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ListRequestsRequest(_message.Message):
    __slots__ = ("states", "tenant", "worker_id", "older_than_s", "model", "ended", "page_size", "page_token", "with_ledgers")
    STATES_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    OLDER_THAN_S_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    WITH_LEDGERS_FIELD_NUMBER: _ClassVar[int]
    states: _containers.RepeatedScalarFieldContainer[str]
    tenant: str
    worker_id: str
    older_than_s: float
    model: str
    ended: bool
    page_size: int
    page_token: str
    with_ledgers: bool
    def __init__(self, states: _Optional[_Iterable[str]] = ..., tenant: _Optional[str] = ..., worker_id: _Optional[str] = ..., older_than_s: _Optional[float] = ..., model: _Optional[str] = ..., ended: bool = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ..., with_ledgers: bool = ...) -> None: ...

class ListRequestsResponse(_message.Message):
    __slots__ = ("requests", "next_page_token", "total", "unreached")
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    UNREACHED_FIELD_NUMBER: _ClassVar[int]
    requests: _containers.RepeatedCompositeFieldContainer[_cluster_pb2.RequestStatus]
    next_page_token: str
    total: int
    unreached: _containers.RepeatedCompositeFieldContainer[_cluster_pb2.RouterStatus]
    def __init__(self, requests: _Optional[_Iterable[_Union[_cluster_pb2.RequestStatus, _Mapping]]] = ..., next_page_token: _Optional[str] = ..., total: _Optional[int] = ..., unreached: _Optional[_Iterable[_Union[_cluster_pb2.RouterStatus, _Mapping]]] = ...) -> None: ...

class GetRequestRequest(_message.Message):
    __slots__ = ("id", "tenant")
    ID_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    id: str
    tenant: str
    def __init__(self, id: _Optional[str] = ..., tenant: _Optional[str] = ...) -> None: ...

class GetRequestResponse(_message.Message):
    __slots__ = ("trace", "unreached", "others")
    TRACE_FIELD_NUMBER: _ClassVar[int]
    UNREACHED_FIELD_NUMBER: _ClassVar[int]
    OTHERS_FIELD_NUMBER: _ClassVar[int]
    trace: RequestTrace
    unreached: _containers.RepeatedCompositeFieldContainer[_cluster_pb2.RouterStatus]
    others: _containers.RepeatedCompositeFieldContainer[_cluster_pb2.RequestStatus]
    def __init__(self, trace: _Optional[_Union[RequestTrace, _Mapping]] = ..., unreached: _Optional[_Iterable[_Union[_cluster_pb2.RouterStatus, _Mapping]]] = ..., others: _Optional[_Iterable[_Union[_cluster_pb2.RequestStatus, _Mapping]]] = ...) -> None: ...

class RequestTrace(_message.Message):
    __slots__ = ("request", "ledger", "spans", "marks", "dropped_marks", "error", "reason")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    LEDGER_FIELD_NUMBER: _ClassVar[int]
    SPANS_FIELD_NUMBER: _ClassVar[int]
    MARKS_FIELD_NUMBER: _ClassVar[int]
    DROPPED_MARKS_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    request: _cluster_pb2.RequestStatus
    ledger: _sampling_pb2.Ledger
    spans: _containers.RepeatedCompositeFieldContainer[TraceSpan]
    marks: _containers.RepeatedCompositeFieldContainer[TraceMark]
    dropped_marks: int
    error: str
    reason: str
    def __init__(self, request: _Optional[_Union[_cluster_pb2.RequestStatus, _Mapping]] = ..., ledger: _Optional[_Union[_sampling_pb2.Ledger, _Mapping]] = ..., spans: _Optional[_Iterable[_Union[TraceSpan, _Mapping]]] = ..., marks: _Optional[_Iterable[_Union[TraceMark, _Mapping]]] = ..., dropped_marks: _Optional[int] = ..., error: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class TraceSpan(_message.Message):
    __slots__ = ("name", "attempt", "where", "start_s", "end_s", "open")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    WHERE_FIELD_NUMBER: _ClassVar[int]
    START_S_FIELD_NUMBER: _ClassVar[int]
    END_S_FIELD_NUMBER: _ClassVar[int]
    OPEN_FIELD_NUMBER: _ClassVar[int]
    name: str
    attempt: int
    where: str
    start_s: float
    end_s: float
    open: bool
    def __init__(self, name: _Optional[str] = ..., attempt: _Optional[int] = ..., where: _Optional[str] = ..., start_s: _Optional[float] = ..., end_s: _Optional[float] = ..., open: bool = ...) -> None: ...

class TraceMark(_message.Message):
    __slots__ = ("at_s", "what", "attempt", "where", "note")
    AT_S_FIELD_NUMBER: _ClassVar[int]
    WHAT_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    WHERE_FIELD_NUMBER: _ClassVar[int]
    NOTE_FIELD_NUMBER: _ClassVar[int]
    at_s: float
    what: str
    attempt: int
    where: str
    note: str
    def __init__(self, at_s: _Optional[float] = ..., what: _Optional[str] = ..., attempt: _Optional[int] = ..., where: _Optional[str] = ..., note: _Optional[str] = ...) -> None: ...

class GetPagesRequest(_message.Message):
    __slots__ = ("worker_id", "check", "rows")
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    CHECK_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    worker_id: str
    check: bool
    rows: int
    def __init__(self, worker_id: _Optional[str] = ..., check: bool = ..., rows: _Optional[int] = ...) -> None: ...

class GetPagesResponse(_message.Message):
    __slots__ = ("workers", "routers", "unreached")
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    ROUTERS_FIELD_NUMBER: _ClassVar[int]
    UNREACHED_FIELD_NUMBER: _ClassVar[int]
    workers: _containers.RepeatedCompositeFieldContainer[WorkerPages]
    routers: _containers.RepeatedCompositeFieldContainer[IntegrityResult]
    unreached: _containers.RepeatedCompositeFieldContainer[_cluster_pb2.RouterStatus]
    def __init__(self, workers: _Optional[_Iterable[_Union[WorkerPages, _Mapping]]] = ..., routers: _Optional[_Iterable[_Union[IntegrityResult, _Mapping]]] = ..., unreached: _Optional[_Iterable[_Union[_cluster_pb2.RouterStatus, _Mapping]]] = ...) -> None: ...

class WorkerPages(_message.Message):
    __slots__ = ("worker", "pages", "total", "rows", "rows_left_out", "integrity_error", "checked", "unreached")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    PAGES_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    ROWS_LEFT_OUT_FIELD_NUMBER: _ClassVar[int]
    INTEGRITY_ERROR_FIELD_NUMBER: _ClassVar[int]
    CHECKED_FIELD_NUMBER: _ClassVar[int]
    UNREACHED_FIELD_NUMBER: _ClassVar[int]
    worker: _worker_pb2.WorkerAddress
    pages: _worker_pb2.PageCounts
    total: int
    rows: _containers.RepeatedCompositeFieldContainer[PagesOfRow]
    rows_left_out: int
    integrity_error: str
    checked: bool
    unreached: str
    def __init__(self, worker: _Optional[_Union[_worker_pb2.WorkerAddress, _Mapping]] = ..., pages: _Optional[_Union[_worker_pb2.PageCounts, _Mapping]] = ..., total: _Optional[int] = ..., rows: _Optional[_Iterable[_Union[PagesOfRow, _Mapping]]] = ..., rows_left_out: _Optional[int] = ..., integrity_error: _Optional[str] = ..., checked: bool = ..., unreached: _Optional[str] = ...) -> None: ...

class PagesOfRow(_message.Message):
    __slots__ = ("submission_id", "request_id", "attempt", "state", "tokens", "pages")
    SUBMISSION_ID_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    PAGES_FIELD_NUMBER: _ClassVar[int]
    submission_id: str
    request_id: str
    attempt: int
    state: str
    tokens: int
    pages: int
    def __init__(self, submission_id: _Optional[str] = ..., request_id: _Optional[str] = ..., attempt: _Optional[int] = ..., state: _Optional[str] = ..., tokens: _Optional[int] = ..., pages: _Optional[int] = ...) -> None: ...

class IntegrityResult(_message.Message):
    __slots__ = ("router_id", "error")
    ROUTER_ID_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    router_id: str
    error: str
    def __init__(self, router_id: _Optional[str] = ..., error: _Optional[str] = ...) -> None: ...

class ListEventsRequest(_message.Message):
    __slots__ = ("since_s", "kinds", "subject", "page_size", "audit")
    SINCE_S_FIELD_NUMBER: _ClassVar[int]
    KINDS_FIELD_NUMBER: _ClassVar[int]
    SUBJECT_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    AUDIT_FIELD_NUMBER: _ClassVar[int]
    since_s: float
    kinds: _containers.RepeatedScalarFieldContainer[str]
    subject: str
    page_size: int
    audit: bool
    def __init__(self, since_s: _Optional[float] = ..., kinds: _Optional[_Iterable[str]] = ..., subject: _Optional[str] = ..., page_size: _Optional[int] = ..., audit: bool = ...) -> None: ...

class ListEventsResponse(_message.Message):
    __slots__ = ("events", "left_out", "remembered_since", "unreached")
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    LEFT_OUT_FIELD_NUMBER: _ClassVar[int]
    REMEMBERED_SINCE_FIELD_NUMBER: _ClassVar[int]
    UNREACHED_FIELD_NUMBER: _ClassVar[int]
    events: _containers.RepeatedCompositeFieldContainer[_cluster_pb2.ClusterEvent]
    left_out: int
    remembered_since: float
    unreached: _containers.RepeatedCompositeFieldContainer[_cluster_pb2.RouterStatus]
    def __init__(self, events: _Optional[_Iterable[_Union[_cluster_pb2.ClusterEvent, _Mapping]]] = ..., left_out: _Optional[int] = ..., remembered_since: _Optional[float] = ..., unreached: _Optional[_Iterable[_Union[_cluster_pb2.RouterStatus, _Mapping]]] = ...) -> None: ...

class WatchEventsRequest(_message.Message):
    __slots__ = ("past",)
    PAST_FIELD_NUMBER: _ClassVar[int]
    past: ListEventsRequest
    def __init__(self, past: _Optional[_Union[ListEventsRequest, _Mapping]] = ...) -> None: ...

class WatchEventsResponse(_message.Message):
    __slots__ = ("events", "unreached")
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    UNREACHED_FIELD_NUMBER: _ClassVar[int]
    events: _containers.RepeatedCompositeFieldContainer[_cluster_pb2.ClusterEvent]
    unreached: _containers.RepeatedCompositeFieldContainer[_cluster_pb2.RouterStatus]
    def __init__(self, events: _Optional[_Iterable[_Union[_cluster_pb2.ClusterEvent, _Mapping]]] = ..., unreached: _Optional[_Iterable[_Union[_cluster_pb2.RouterStatus, _Mapping]]] = ...) -> None: ...

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
    drain: _drain_pb2.DrainReport
    def __init__(self, worker: _Optional[_Union[_worker_pb2.WorkerAddress, _Mapping]] = ..., state: _Optional[str] = ..., drain: _Optional[_Union[_drain_pb2.DrainReport, _Mapping]] = ...) -> None: ...

class CancelRequestRequest(_message.Message):
    __slots__ = ("act", "submission_id")
    ACT_FIELD_NUMBER: _ClassVar[int]
    SUBMISSION_ID_FIELD_NUMBER: _ClassVar[int]
    act: _acts_pb2.Act
    submission_id: str
    def __init__(self, act: _Optional[_Union[_acts_pb2.Act, _Mapping]] = ..., submission_id: _Optional[str] = ...) -> None: ...

class GetConfigRequest(_message.Message):
    __slots__ = ("names",)
    NAMES_FIELD_NUMBER: _ClassVar[int]
    names: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, names: _Optional[_Iterable[str]] = ...) -> None: ...

class GetConfigResponse(_message.Message):
    __slots__ = ("fields", "revision", "unreached", "router_id", "without_controllers")
    FIELDS_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    UNREACHED_FIELD_NUMBER: _ClassVar[int]
    ROUTER_ID_FIELD_NUMBER: _ClassVar[int]
    WITHOUT_CONTROLLERS_FIELD_NUMBER: _ClassVar[int]
    fields: _containers.RepeatedCompositeFieldContainer[_cluster_pb2.ConfigField]
    revision: int
    unreached: _containers.RepeatedCompositeFieldContainer[_cluster_pb2.RouterStatus]
    router_id: str
    without_controllers: bool
    def __init__(self, fields: _Optional[_Iterable[_Union[_cluster_pb2.ConfigField, _Mapping]]] = ..., revision: _Optional[int] = ..., unreached: _Optional[_Iterable[_Union[_cluster_pb2.RouterStatus, _Mapping]]] = ..., router_id: _Optional[str] = ..., without_controllers: bool = ...) -> None: ...

class SetConfigRequest(_message.Message):
    __slots__ = ("act", "values", "expect_revision")
    class ValuesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    ACT_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    EXPECT_REVISION_FIELD_NUMBER: _ClassVar[int]
    act: _acts_pb2.Act
    values: _containers.ScalarMap[str, str]
    expect_revision: int
    def __init__(self, act: _Optional[_Union[_acts_pb2.Act, _Mapping]] = ..., values: _Optional[_Mapping[str, str]] = ..., expect_revision: _Optional[int] = ...) -> None: ...

class ReloadConfigRequest(_message.Message):
    __slots__ = ("act",)
    ACT_FIELD_NUMBER: _ClassVar[int]
    act: _acts_pb2.Act
    def __init__(self, act: _Optional[_Union[_acts_pb2.Act, _Mapping]] = ...) -> None: ...

class DiagnoseRequest(_message.Message):
    __slots__ = ("checks",)
    CHECKS_FIELD_NUMBER: _ClassVar[int]
    checks: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, checks: _Optional[_Iterable[str]] = ...) -> None: ...

class DiagnoseResponse(_message.Message):
    __slots__ = ("findings", "checks", "unreached", "processes")
    FINDINGS_FIELD_NUMBER: _ClassVar[int]
    CHECKS_FIELD_NUMBER: _ClassVar[int]
    UNREACHED_FIELD_NUMBER: _ClassVar[int]
    PROCESSES_FIELD_NUMBER: _ClassVar[int]
    findings: _containers.RepeatedCompositeFieldContainer[Finding]
    checks: _containers.RepeatedScalarFieldContainer[str]
    unreached: _containers.RepeatedCompositeFieldContainer[_cluster_pb2.RouterStatus]
    processes: _containers.RepeatedCompositeFieldContainer[NamedFacts]
    def __init__(self, findings: _Optional[_Iterable[_Union[Finding, _Mapping]]] = ..., checks: _Optional[_Iterable[str]] = ..., unreached: _Optional[_Iterable[_Union[_cluster_pb2.RouterStatus, _Mapping]]] = ..., processes: _Optional[_Iterable[_Union[NamedFacts, _Mapping]]] = ...) -> None: ...

class OpenConsoleRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class OpenConsoleResponse(_message.Message):
    __slots__ = ("url", "token", "valid_until")
    URL_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    VALID_UNTIL_FIELD_NUMBER: _ClassVar[int]
    url: str
    token: str
    valid_until: float
    def __init__(self, url: _Optional[str] = ..., token: _Optional[str] = ..., valid_until: _Optional[float] = ...) -> None: ...

class NamedFacts(_message.Message):
    __slots__ = ("name", "facts", "unreached")
    NAME_FIELD_NUMBER: _ClassVar[int]
    FACTS_FIELD_NUMBER: _ClassVar[int]
    UNREACHED_FIELD_NUMBER: _ClassVar[int]
    name: str
    facts: _facts_pb2.ProcessFacts
    unreached: str
    def __init__(self, name: _Optional[str] = ..., facts: _Optional[_Union[_facts_pb2.ProcessFacts, _Mapping]] = ..., unreached: _Optional[str] = ...) -> None: ...

class Finding(_message.Message):
    __slots__ = ("check", "severity", "subject", "text", "mend")
    class Severity(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        SEVERITY_UNSPECIFIED: _ClassVar[Finding.Severity]
        SEVERITY_NOTE: _ClassVar[Finding.Severity]
        SEVERITY_WARNING: _ClassVar[Finding.Severity]
        SEVERITY_FAULT: _ClassVar[Finding.Severity]
    SEVERITY_UNSPECIFIED: Finding.Severity
    SEVERITY_NOTE: Finding.Severity
    SEVERITY_WARNING: Finding.Severity
    SEVERITY_FAULT: Finding.Severity
    CHECK_FIELD_NUMBER: _ClassVar[int]
    SEVERITY_FIELD_NUMBER: _ClassVar[int]
    SUBJECT_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    MEND_FIELD_NUMBER: _ClassVar[int]
    check: str
    severity: Finding.Severity
    subject: str
    text: str
    mend: str
    def __init__(self, check: _Optional[str] = ..., severity: _Optional[_Union[Finding.Severity, str]] = ..., subject: _Optional[str] = ..., text: _Optional[str] = ..., mend: _Optional[str] = ...) -> None: ...

class CheckClusterRequest(_message.Message):
    __slots__ = ("act", "model", "prompts", "max_tokens", "worker_ids")
    ACT_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    PROMPTS_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    WORKER_IDS_FIELD_NUMBER: _ClassVar[int]
    act: _acts_pb2.Act
    model: str
    prompts: int
    max_tokens: int
    worker_ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, act: _Optional[_Union[_acts_pb2.Act, _Mapping]] = ..., model: _Optional[str] = ..., prompts: _Optional[int] = ..., max_tokens: _Optional[int] = ..., worker_ids: _Optional[_Iterable[str]] = ...) -> None: ...

class CheckClusterResponse(_message.Message):
    __slots__ = ("prefill_worker", "decode_worker", "reference", "prompts", "tokens", "equal", "differs_at", "error", "exactness", "prompt_tokens", "difference", "left")
    PREFILL_WORKER_FIELD_NUMBER: _ClassVar[int]
    DECODE_WORKER_FIELD_NUMBER: _ClassVar[int]
    REFERENCE_FIELD_NUMBER: _ClassVar[int]
    PROMPTS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    EQUAL_FIELD_NUMBER: _ClassVar[int]
    DIFFERS_AT_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    EXACTNESS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    DIFFERENCE_FIELD_NUMBER: _ClassVar[int]
    LEFT_FIELD_NUMBER: _ClassVar[int]
    prefill_worker: str
    decode_worker: str
    reference: str
    prompts: int
    tokens: int
    equal: bool
    differs_at: int
    error: str
    exactness: str
    prompt_tokens: int
    difference: str
    left: int
    def __init__(self, prefill_worker: _Optional[str] = ..., decode_worker: _Optional[str] = ..., reference: _Optional[str] = ..., prompts: _Optional[int] = ..., tokens: _Optional[int] = ..., equal: bool = ..., differs_at: _Optional[int] = ..., error: _Optional[str] = ..., exactness: _Optional[str] = ..., prompt_tokens: _Optional[int] = ..., difference: _Optional[str] = ..., left: _Optional[int] = ...) -> None: ...
