from twolane.v1 import drain_pb2 as _drain_pb2
from twolane.v1 import facts_pb2 as _facts_pb2
from twolane.v1 import sampling_pb2 as _sampling_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Role(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ROLE_UNSPECIFIED: _ClassVar[Role]
    ROLE_PREFILL: _ClassVar[Role]
    ROLE_DECODE: _ClassVar[Role]
ROLE_UNSPECIFIED: Role
ROLE_PREFILL: Role
ROLE_DECODE: Role

class AttemptKey(_message.Message):
    __slots__ = ("submission_id", "attempt")
    SUBMISSION_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    submission_id: str
    attempt: int
    def __init__(self, submission_id: _Optional[str] = ..., attempt: _Optional[int] = ...) -> None: ...

class WorkerAddress(_message.Message):
    __slots__ = ("worker_id", "epoch", "endpoint")
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    ENDPOINT_FIELD_NUMBER: _ClassVar[int]
    worker_id: str
    epoch: int
    endpoint: str
    def __init__(self, worker_id: _Optional[str] = ..., epoch: _Optional[int] = ..., endpoint: _Optional[str] = ...) -> None: ...

class SessionRequest(_message.Message):
    __slots__ = ("open", "assign", "cancel", "retarget", "attach", "judge_peer", "peer_gone", "drain", "heartbeat", "find", "adopt", "set_roles")
    OPEN_FIELD_NUMBER: _ClassVar[int]
    ASSIGN_FIELD_NUMBER: _ClassVar[int]
    CANCEL_FIELD_NUMBER: _ClassVar[int]
    RETARGET_FIELD_NUMBER: _ClassVar[int]
    ATTACH_FIELD_NUMBER: _ClassVar[int]
    JUDGE_PEER_FIELD_NUMBER: _ClassVar[int]
    PEER_GONE_FIELD_NUMBER: _ClassVar[int]
    DRAIN_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    FIND_FIELD_NUMBER: _ClassVar[int]
    ADOPT_FIELD_NUMBER: _ClassVar[int]
    SET_ROLES_FIELD_NUMBER: _ClassVar[int]
    open: Open
    assign: Assign
    cancel: Cancel
    retarget: Retarget
    attach: Attach
    judge_peer: JudgePeer
    peer_gone: PeerGone
    drain: _drain_pb2.Drain
    heartbeat: Heartbeat
    find: Find
    adopt: Adopt
    set_roles: SetRoles
    def __init__(self, open: _Optional[_Union[Open, _Mapping]] = ..., assign: _Optional[_Union[Assign, _Mapping]] = ..., cancel: _Optional[_Union[Cancel, _Mapping]] = ..., retarget: _Optional[_Union[Retarget, _Mapping]] = ..., attach: _Optional[_Union[Attach, _Mapping]] = ..., judge_peer: _Optional[_Union[JudgePeer, _Mapping]] = ..., peer_gone: _Optional[_Union[PeerGone, _Mapping]] = ..., drain: _Optional[_Union[_drain_pb2.Drain, _Mapping]] = ..., heartbeat: _Optional[_Union[Heartbeat, _Mapping]] = ..., find: _Optional[_Union[Find, _Mapping]] = ..., adopt: _Optional[_Union[Adopt, _Mapping]] = ..., set_roles: _Optional[_Union[SetRoles, _Mapping]] = ...) -> None: ...

class Open(_message.Message):
    __slots__ = ("router_id", "worker_epoch", "router_epoch", "router")
    ROUTER_ID_FIELD_NUMBER: _ClassVar[int]
    WORKER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    ROUTER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    ROUTER_FIELD_NUMBER: _ClassVar[int]
    router_id: str
    worker_epoch: int
    router_epoch: int
    router: RouterAddress
    def __init__(self, router_id: _Optional[str] = ..., worker_epoch: _Optional[int] = ..., router_epoch: _Optional[int] = ..., router: _Optional[_Union[RouterAddress, _Mapping]] = ...) -> None: ...

class RouterAddress(_message.Message):
    __slots__ = ("router_id", "router_epoch", "workers_endpoint", "grpc_endpoint", "http_endpoint")
    ROUTER_ID_FIELD_NUMBER: _ClassVar[int]
    ROUTER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    WORKERS_ENDPOINT_FIELD_NUMBER: _ClassVar[int]
    GRPC_ENDPOINT_FIELD_NUMBER: _ClassVar[int]
    HTTP_ENDPOINT_FIELD_NUMBER: _ClassVar[int]
    router_id: str
    router_epoch: int
    workers_endpoint: str
    grpc_endpoint: str
    http_endpoint: str
    def __init__(self, router_id: _Optional[str] = ..., router_epoch: _Optional[int] = ..., workers_endpoint: _Optional[str] = ..., grpc_endpoint: _Optional[str] = ..., http_endpoint: _Optional[str] = ...) -> None: ...

class SetRoles(_message.Message):
    __slots__ = ("roles",)
    ROLES_FIELD_NUMBER: _ClassVar[int]
    roles: _containers.RepeatedScalarFieldContainer[Role]
    def __init__(self, roles: _Optional[_Iterable[_Union[Role, str]]] = ...) -> None: ...

class Assign(_message.Message):
    __slots__ = ("key", "roles", "token_ids", "n_prompt", "sampling", "priority", "time_left_ms", "prefill", "decode", "growth_tokens", "sample", "tenant", "adapter", "request_id", "claim", "fence", "resume_hash", "row")
    KEY_FIELD_NUMBER: _ClassVar[int]
    ROLES_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    N_PROMPT_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    TIME_LEFT_MS_FIELD_NUMBER: _ClassVar[int]
    PREFILL_FIELD_NUMBER: _ClassVar[int]
    DECODE_FIELD_NUMBER: _ClassVar[int]
    GROWTH_TOKENS_FIELD_NUMBER: _ClassVar[int]
    SAMPLE_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    ADAPTER_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    CLAIM_FIELD_NUMBER: _ClassVar[int]
    FENCE_FIELD_NUMBER: _ClassVar[int]
    RESUME_HASH_FIELD_NUMBER: _ClassVar[int]
    ROW_FIELD_NUMBER: _ClassVar[int]
    key: AttemptKey
    roles: _containers.RepeatedScalarFieldContainer[Role]
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    n_prompt: int
    sampling: _sampling_pb2.SamplingParams
    priority: int
    time_left_ms: int
    prefill: WorkerAddress
    decode: WorkerAddress
    growth_tokens: int
    sample: int
    tenant: str
    adapter: str
    request_id: str
    claim: int
    fence: int
    resume_hash: bytes
    row: int
    def __init__(self, key: _Optional[_Union[AttemptKey, _Mapping]] = ..., roles: _Optional[_Iterable[_Union[Role, str]]] = ..., token_ids: _Optional[_Iterable[int]] = ..., n_prompt: _Optional[int] = ..., sampling: _Optional[_Union[_sampling_pb2.SamplingParams, _Mapping]] = ..., priority: _Optional[int] = ..., time_left_ms: _Optional[int] = ..., prefill: _Optional[_Union[WorkerAddress, _Mapping]] = ..., decode: _Optional[_Union[WorkerAddress, _Mapping]] = ..., growth_tokens: _Optional[int] = ..., sample: _Optional[int] = ..., tenant: _Optional[str] = ..., adapter: _Optional[str] = ..., request_id: _Optional[str] = ..., claim: _Optional[int] = ..., fence: _Optional[int] = ..., resume_hash: _Optional[bytes] = ..., row: _Optional[int] = ...) -> None: ...

class Cancel(_message.Message):
    __slots__ = ("keys",)
    KEYS_FIELD_NUMBER: _ClassVar[int]
    keys: _containers.RepeatedCompositeFieldContainer[AttemptKey]
    def __init__(self, keys: _Optional[_Iterable[_Union[AttemptKey, _Mapping]]] = ...) -> None: ...

class Retarget(_message.Message):
    __slots__ = ("key", "next_attempt", "decode", "next_row")
    KEY_FIELD_NUMBER: _ClassVar[int]
    NEXT_ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    DECODE_FIELD_NUMBER: _ClassVar[int]
    NEXT_ROW_FIELD_NUMBER: _ClassVar[int]
    key: AttemptKey
    next_attempt: int
    decode: WorkerAddress
    next_row: int
    def __init__(self, key: _Optional[_Union[AttemptKey, _Mapping]] = ..., next_attempt: _Optional[int] = ..., decode: _Optional[_Union[WorkerAddress, _Mapping]] = ..., next_row: _Optional[int] = ...) -> None: ...

class Attach(_message.Message):
    __slots__ = ("key", "from_index", "row")
    KEY_FIELD_NUMBER: _ClassVar[int]
    FROM_INDEX_FIELD_NUMBER: _ClassVar[int]
    ROW_FIELD_NUMBER: _ClassVar[int]
    key: AttemptKey
    from_index: int
    row: int
    def __init__(self, key: _Optional[_Union[AttemptKey, _Mapping]] = ..., from_index: _Optional[int] = ..., row: _Optional[int] = ...) -> None: ...

class Find(_message.Message):
    __slots__ = ("submission_id", "tenant", "request_id")
    SUBMISSION_ID_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    submission_id: str
    tenant: str
    request_id: str
    def __init__(self, submission_id: _Optional[str] = ..., tenant: _Optional[str] = ..., request_id: _Optional[str] = ...) -> None: ...

class Found(_message.Message):
    __slots__ = ("find", "submission_id", "fence", "attempts")
    FIND_FIELD_NUMBER: _ClassVar[int]
    SUBMISSION_ID_FIELD_NUMBER: _ClassVar[int]
    FENCE_FIELD_NUMBER: _ClassVar[int]
    ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    find: Find
    submission_id: str
    fence: int
    attempts: _containers.RepeatedCompositeFieldContainer[FoundAttempt]
    def __init__(self, find: _Optional[_Union[Find, _Mapping]] = ..., submission_id: _Optional[str] = ..., fence: _Optional[int] = ..., attempts: _Optional[_Iterable[_Union[FoundAttempt, _Mapping]]] = ...) -> None: ...

class FoundAttempt(_message.Message):
    __slots__ = ("key", "has_ended", "prefill_epoch", "decode_epoch")
    KEY_FIELD_NUMBER: _ClassVar[int]
    HAS_ENDED_FIELD_NUMBER: _ClassVar[int]
    PREFILL_EPOCH_FIELD_NUMBER: _ClassVar[int]
    DECODE_EPOCH_FIELD_NUMBER: _ClassVar[int]
    key: AttemptKey
    has_ended: bool
    prefill_epoch: int
    decode_epoch: int
    def __init__(self, key: _Optional[_Union[AttemptKey, _Mapping]] = ..., has_ended: bool = ..., prefill_epoch: _Optional[int] = ..., decode_epoch: _Optional[int] = ...) -> None: ...

class Adopt(_message.Message):
    __slots__ = ("submission_id", "fence", "resume_hash", "tenant")
    SUBMISSION_ID_FIELD_NUMBER: _ClassVar[int]
    FENCE_FIELD_NUMBER: _ClassVar[int]
    RESUME_HASH_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    submission_id: str
    fence: int
    resume_hash: bytes
    tenant: str
    def __init__(self, submission_id: _Optional[str] = ..., fence: _Optional[int] = ..., resume_hash: _Optional[bytes] = ..., tenant: _Optional[str] = ...) -> None: ...

class Adopted(_message.Message):
    __slots__ = ("submission_id", "fence", "result", "attempts", "held_fence")
    class Result(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        RESULT_UNSPECIFIED: _ClassVar[Adopted.Result]
        RESULT_ADOPTED: _ClassVar[Adopted.Result]
        RESULT_GONE: _ClassVar[Adopted.Result]
        RESULT_TAKEN: _ClassVar[Adopted.Result]
    RESULT_UNSPECIFIED: Adopted.Result
    RESULT_ADOPTED: Adopted.Result
    RESULT_GONE: Adopted.Result
    RESULT_TAKEN: Adopted.Result
    SUBMISSION_ID_FIELD_NUMBER: _ClassVar[int]
    FENCE_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    HELD_FENCE_FIELD_NUMBER: _ClassVar[int]
    submission_id: str
    fence: int
    result: Adopted.Result
    attempts: _containers.RepeatedCompositeFieldContainer[AdoptedAttempt]
    held_fence: int
    def __init__(self, submission_id: _Optional[str] = ..., fence: _Optional[int] = ..., result: _Optional[_Union[Adopted.Result, str]] = ..., attempts: _Optional[_Iterable[_Union[AdoptedAttempt, _Mapping]]] = ..., held_fence: _Optional[int] = ...) -> None: ...

class AdoptedAttempt(_message.Message):
    __slots__ = ("key", "assign", "decode", "tokens", "events", "has_ended", "is_cancelled")
    KEY_FIELD_NUMBER: _ClassVar[int]
    ASSIGN_FIELD_NUMBER: _ClassVar[int]
    DECODE_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    HAS_ENDED_FIELD_NUMBER: _ClassVar[int]
    IS_CANCELLED_FIELD_NUMBER: _ClassVar[int]
    key: AttemptKey
    assign: Assign
    decode: WorkerAddress
    tokens: _containers.RepeatedCompositeFieldContainer[TokenColumns]
    events: _containers.RepeatedCompositeFieldContainer[RowEvent]
    has_ended: bool
    is_cancelled: bool
    def __init__(self, key: _Optional[_Union[AttemptKey, _Mapping]] = ..., assign: _Optional[_Union[Assign, _Mapping]] = ..., decode: _Optional[_Union[WorkerAddress, _Mapping]] = ..., tokens: _Optional[_Iterable[_Union[TokenColumns, _Mapping]]] = ..., events: _Optional[_Iterable[_Union[RowEvent, _Mapping]]] = ..., has_ended: bool = ..., is_cancelled: bool = ...) -> None: ...

class JudgePeer(_message.Message):
    __slots__ = ("epoch",)
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    def __init__(self, epoch: _Optional[int] = ...) -> None: ...

class PeerGone(_message.Message):
    __slots__ = ("epoch",)
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    def __init__(self, epoch: _Optional[int] = ...) -> None: ...

class Heartbeat(_message.Message):
    __slots__ = ("heard",)
    HEARD_FIELD_NUMBER: _ClassVar[int]
    heard: int
    def __init__(self, heard: _Optional[int] = ...) -> None: ...

class SessionResponse(_message.Message):
    __slots__ = ("opened", "tokens", "rows", "load", "found", "adopted", "number")
    OPENED_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    LOAD_FIELD_NUMBER: _ClassVar[int]
    FOUND_FIELD_NUMBER: _ClassVar[int]
    ADOPTED_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    opened: Opened
    tokens: _containers.RepeatedCompositeFieldContainer[TokenColumns]
    rows: _containers.RepeatedCompositeFieldContainer[RowEvent]
    load: LoadReport
    found: _containers.RepeatedCompositeFieldContainer[Found]
    adopted: _containers.RepeatedCompositeFieldContainer[Adopted]
    number: int
    def __init__(self, opened: _Optional[_Union[Opened, _Mapping]] = ..., tokens: _Optional[_Iterable[_Union[TokenColumns, _Mapping]]] = ..., rows: _Optional[_Iterable[_Union[RowEvent, _Mapping]]] = ..., load: _Optional[_Union[LoadReport, _Mapping]] = ..., found: _Optional[_Iterable[_Union[Found, _Mapping]]] = ..., adopted: _Optional[_Iterable[_Union[Adopted, _Mapping]]] = ..., number: _Optional[int] = ...) -> None: ...

class Opened(_message.Message):
    __slots__ = ("worker",)
    WORKER_FIELD_NUMBER: _ClassVar[int]
    worker: WorkerAddress
    def __init__(self, worker: _Optional[_Union[WorkerAddress, _Mapping]] = ...) -> None: ...

class TokenColumns(_message.Message):
    __slots__ = ("role", "rows", "first_indexes", "counts", "token_ids", "samples", "ends", "logprobs")
    ROLE_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    FIRST_INDEXES_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    ENDS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    role: Role
    rows: _containers.RepeatedScalarFieldContainer[int]
    first_indexes: _containers.RepeatedScalarFieldContainer[int]
    counts: _containers.RepeatedScalarFieldContainer[int]
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    samples: _containers.RepeatedScalarFieldContainer[int]
    ends: _containers.RepeatedCompositeFieldContainer[TokenEnd]
    logprobs: _containers.RepeatedCompositeFieldContainer[TokenLogprobs]
    def __init__(self, role: _Optional[_Union[Role, str]] = ..., rows: _Optional[_Iterable[int]] = ..., first_indexes: _Optional[_Iterable[int]] = ..., counts: _Optional[_Iterable[int]] = ..., token_ids: _Optional[_Iterable[int]] = ..., samples: _Optional[_Iterable[int]] = ..., ends: _Optional[_Iterable[_Union[TokenEnd, _Mapping]]] = ..., logprobs: _Optional[_Iterable[_Union[TokenLogprobs, _Mapping]]] = ...) -> None: ...

class TokenEnd(_message.Message):
    __slots__ = ("at", "finish_reason")
    AT_FIELD_NUMBER: _ClassVar[int]
    FINISH_REASON_FIELD_NUMBER: _ClassVar[int]
    at: int
    finish_reason: _sampling_pb2.FinishReason
    def __init__(self, at: _Optional[int] = ..., finish_reason: _Optional[_Union[_sampling_pb2.FinishReason, str]] = ...) -> None: ...

class TokenLogprobs(_message.Message):
    __slots__ = ("at", "logprob", "top_ids", "top_logprobs")
    AT_FIELD_NUMBER: _ClassVar[int]
    LOGPROB_FIELD_NUMBER: _ClassVar[int]
    TOP_IDS_FIELD_NUMBER: _ClassVar[int]
    TOP_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    at: int
    logprob: float
    top_ids: _containers.RepeatedScalarFieldContainer[int]
    top_logprobs: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, at: _Optional[int] = ..., logprob: _Optional[float] = ..., top_ids: _Optional[_Iterable[int]] = ..., top_logprobs: _Optional[_Iterable[float]] = ...) -> None: ...

class RowEvent(_message.Message):
    __slots__ = ("key", "kind", "reason", "message", "figures", "role")
    class Kind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        KIND_UNSPECIFIED: _ClassVar[RowEvent.Kind]
        KIND_HANDED_OVER: _ClassVar[RowEvent.Kind]
        KIND_UNPLACED: _ClassVar[RowEvent.Kind]
        KIND_RETARGETED: _ClassVar[RowEvent.Kind]
        KIND_GONE: _ClassVar[RowEvent.Kind]
        KIND_JOINED: _ClassVar[RowEvent.Kind]
        KIND_LANDED: _ClassVar[RowEvent.Kind]
        KIND_DEAD: _ClassVar[RowEvent.Kind]
        KIND_PREEMPTED: _ClassVar[RowEvent.Kind]
        KIND_FAILED: _ClassVar[RowEvent.Kind]
        KIND_FINISHED: _ClassVar[RowEvent.Kind]
        KIND_REFUSED: _ClassVar[RowEvent.Kind]
        KIND_TAKEN: _ClassVar[RowEvent.Kind]
    KIND_UNSPECIFIED: RowEvent.Kind
    KIND_HANDED_OVER: RowEvent.Kind
    KIND_UNPLACED: RowEvent.Kind
    KIND_RETARGETED: RowEvent.Kind
    KIND_GONE: RowEvent.Kind
    KIND_JOINED: RowEvent.Kind
    KIND_LANDED: RowEvent.Kind
    KIND_DEAD: RowEvent.Kind
    KIND_PREEMPTED: RowEvent.Kind
    KIND_FAILED: RowEvent.Kind
    KIND_FINISHED: RowEvent.Kind
    KIND_REFUSED: RowEvent.Kind
    KIND_TAKEN: RowEvent.Kind
    KEY_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    FIGURES_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    key: AttemptKey
    kind: RowEvent.Kind
    reason: str
    message: str
    figures: RowFigures
    role: Role
    def __init__(self, key: _Optional[_Union[AttemptKey, _Mapping]] = ..., kind: _Optional[_Union[RowEvent.Kind, str]] = ..., reason: _Optional[str] = ..., message: _Optional[str] = ..., figures: _Optional[_Union[RowFigures, _Mapping]] = ..., role: _Optional[_Union[Role, str]] = ...) -> None: ...

class RowFigures(_message.Message):
    __slots__ = ("prefill_wait_s", "prefill_s", "transfer_s", "decode_wait_s", "decode_s", "cached_tokens", "transfer_pages", "transfer_bytes")
    PREFILL_WAIT_S_FIELD_NUMBER: _ClassVar[int]
    PREFILL_S_FIELD_NUMBER: _ClassVar[int]
    TRANSFER_S_FIELD_NUMBER: _ClassVar[int]
    DECODE_WAIT_S_FIELD_NUMBER: _ClassVar[int]
    DECODE_S_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TRANSFER_PAGES_FIELD_NUMBER: _ClassVar[int]
    TRANSFER_BYTES_FIELD_NUMBER: _ClassVar[int]
    prefill_wait_s: float
    prefill_s: float
    transfer_s: float
    decode_wait_s: float
    decode_s: float
    cached_tokens: int
    transfer_pages: int
    transfer_bytes: int
    def __init__(self, prefill_wait_s: _Optional[float] = ..., prefill_s: _Optional[float] = ..., transfer_s: _Optional[float] = ..., decode_wait_s: _Optional[float] = ..., decode_s: _Optional[float] = ..., cached_tokens: _Optional[int] = ..., transfer_pages: _Optional[int] = ..., transfer_bytes: _Optional[int] = ...) -> None: ...

class PageCounts(_message.Message):
    __slots__ = ("quarantined", "used", "pinned", "cached", "free")
    QUARANTINED_FIELD_NUMBER: _ClassVar[int]
    USED_FIELD_NUMBER: _ClassVar[int]
    PINNED_FIELD_NUMBER: _ClassVar[int]
    CACHED_FIELD_NUMBER: _ClassVar[int]
    FREE_FIELD_NUMBER: _ClassVar[int]
    quarantined: int
    used: int
    pinned: int
    cached: int
    free: int
    def __init__(self, quarantined: _Optional[int] = ..., used: _Optional[int] = ..., pinned: _Optional[int] = ..., cached: _Optional[int] = ..., free: _Optional[int] = ...) -> None: ...

class LoadReport(_message.Message):
    __slots__ = ("pages", "prefill_queue", "prefill_queue_tokens", "decode_queue", "rows", "reserved_growth_pages", "draining", "drained", "step_s", "fence_wanted", "step_age_s", "step_bound_s", "expected_rows", "expected_pages", "transports", "drain", "step_p50_s", "step_p99_s", "prefill_tokens_per_s", "decode_tokens_per_s", "drains", "roles", "able", "done", "oldest_wait_s", "unplaced")
    PAGES_FIELD_NUMBER: _ClassVar[int]
    PREFILL_QUEUE_FIELD_NUMBER: _ClassVar[int]
    PREFILL_QUEUE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    DECODE_QUEUE_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    RESERVED_GROWTH_PAGES_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    DRAINED_FIELD_NUMBER: _ClassVar[int]
    STEP_S_FIELD_NUMBER: _ClassVar[int]
    FENCE_WANTED_FIELD_NUMBER: _ClassVar[int]
    STEP_AGE_S_FIELD_NUMBER: _ClassVar[int]
    STEP_BOUND_S_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_ROWS_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_PAGES_FIELD_NUMBER: _ClassVar[int]
    TRANSPORTS_FIELD_NUMBER: _ClassVar[int]
    DRAIN_FIELD_NUMBER: _ClassVar[int]
    STEP_P50_S_FIELD_NUMBER: _ClassVar[int]
    STEP_P99_S_FIELD_NUMBER: _ClassVar[int]
    PREFILL_TOKENS_PER_S_FIELD_NUMBER: _ClassVar[int]
    DECODE_TOKENS_PER_S_FIELD_NUMBER: _ClassVar[int]
    DRAINS_FIELD_NUMBER: _ClassVar[int]
    ROLES_FIELD_NUMBER: _ClassVar[int]
    ABLE_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    OLDEST_WAIT_S_FIELD_NUMBER: _ClassVar[int]
    UNPLACED_FIELD_NUMBER: _ClassVar[int]
    pages: PageCounts
    prefill_queue: int
    prefill_queue_tokens: int
    decode_queue: int
    rows: int
    reserved_growth_pages: int
    draining: bool
    drained: bool
    step_s: float
    fence_wanted: _containers.RepeatedScalarFieldContainer[int]
    step_age_s: float
    step_bound_s: float
    expected_rows: int
    expected_pages: int
    transports: _containers.RepeatedCompositeFieldContainer[PeerTransport]
    drain: _drain_pb2.DrainReport
    step_p50_s: float
    step_p99_s: float
    prefill_tokens_per_s: float
    decode_tokens_per_s: float
    drains: int
    roles: _containers.RepeatedScalarFieldContainer[Role]
    able: _containers.RepeatedScalarFieldContainer[Role]
    done: WorkDone
    oldest_wait_s: float
    unplaced: int
    def __init__(self, pages: _Optional[_Union[PageCounts, _Mapping]] = ..., prefill_queue: _Optional[int] = ..., prefill_queue_tokens: _Optional[int] = ..., decode_queue: _Optional[int] = ..., rows: _Optional[int] = ..., reserved_growth_pages: _Optional[int] = ..., draining: bool = ..., drained: bool = ..., step_s: _Optional[float] = ..., fence_wanted: _Optional[_Iterable[int]] = ..., step_age_s: _Optional[float] = ..., step_bound_s: _Optional[float] = ..., expected_rows: _Optional[int] = ..., expected_pages: _Optional[int] = ..., transports: _Optional[_Iterable[_Union[PeerTransport, _Mapping]]] = ..., drain: _Optional[_Union[_drain_pb2.DrainReport, _Mapping]] = ..., step_p50_s: _Optional[float] = ..., step_p99_s: _Optional[float] = ..., prefill_tokens_per_s: _Optional[float] = ..., decode_tokens_per_s: _Optional[float] = ..., drains: _Optional[int] = ..., roles: _Optional[_Iterable[_Union[Role, str]]] = ..., able: _Optional[_Iterable[_Union[Role, str]]] = ..., done: _Optional[_Union[WorkDone, _Mapping]] = ..., oldest_wait_s: _Optional[float] = ..., unplaced: _Optional[int] = ...) -> None: ...

class WorkDone(_message.Message):
    __slots__ = ("prefill_steps", "prefill_tokens", "prefill_squares", "prefill_s", "decode_steps", "decode_rows", "decode_context", "decode_s", "decode_tokens")
    PREFILL_STEPS_FIELD_NUMBER: _ClassVar[int]
    PREFILL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PREFILL_SQUARES_FIELD_NUMBER: _ClassVar[int]
    PREFILL_S_FIELD_NUMBER: _ClassVar[int]
    DECODE_STEPS_FIELD_NUMBER: _ClassVar[int]
    DECODE_ROWS_FIELD_NUMBER: _ClassVar[int]
    DECODE_CONTEXT_FIELD_NUMBER: _ClassVar[int]
    DECODE_S_FIELD_NUMBER: _ClassVar[int]
    DECODE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    prefill_steps: int
    prefill_tokens: int
    prefill_squares: int
    prefill_s: float
    decode_steps: int
    decode_rows: int
    decode_context: int
    decode_s: float
    decode_tokens: int
    def __init__(self, prefill_steps: _Optional[int] = ..., prefill_tokens: _Optional[int] = ..., prefill_squares: _Optional[int] = ..., prefill_s: _Optional[float] = ..., decode_steps: _Optional[int] = ..., decode_rows: _Optional[int] = ..., decode_context: _Optional[int] = ..., decode_s: _Optional[float] = ..., decode_tokens: _Optional[int] = ...) -> None: ...

class PeerTransport(_message.Message):
    __slots__ = ("worker_id", "transport", "instead_of")
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    TRANSPORT_FIELD_NUMBER: _ClassVar[int]
    INSTEAD_OF_FIELD_NUMBER: _ClassVar[int]
    worker_id: str
    transport: str
    instead_of: str
    def __init__(self, worker_id: _Optional[str] = ..., transport: _Optional[str] = ..., instead_of: _Optional[str] = ...) -> None: ...

class InspectRequest(_message.Message):
    __slots__ = ("log_lines", "after_log_line", "facts", "reach")
    LOG_LINES_FIELD_NUMBER: _ClassVar[int]
    AFTER_LOG_LINE_FIELD_NUMBER: _ClassVar[int]
    FACTS_FIELD_NUMBER: _ClassVar[int]
    REACH_FIELD_NUMBER: _ClassVar[int]
    log_lines: int
    after_log_line: int
    facts: bool
    reach: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, log_lines: _Optional[int] = ..., after_log_line: _Optional[int] = ..., facts: bool = ..., reach: _Optional[_Iterable[str]] = ...) -> None: ...

class InspectResponse(_message.Message):
    __slots__ = ("worker", "roles", "model", "fingerprint", "load", "rows", "integrity_error", "dropped", "transports", "log", "last_log_line", "facts")
    class DroppedEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class TransportsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    WORKER_FIELD_NUMBER: _ClassVar[int]
    ROLES_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    LOAD_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    INTEGRITY_ERROR_FIELD_NUMBER: _ClassVar[int]
    DROPPED_FIELD_NUMBER: _ClassVar[int]
    TRANSPORTS_FIELD_NUMBER: _ClassVar[int]
    LOG_FIELD_NUMBER: _ClassVar[int]
    LAST_LOG_LINE_FIELD_NUMBER: _ClassVar[int]
    FACTS_FIELD_NUMBER: _ClassVar[int]
    worker: WorkerAddress
    roles: _containers.RepeatedScalarFieldContainer[Role]
    model: str
    fingerprint: str
    load: LoadReport
    rows: _containers.RepeatedCompositeFieldContainer[InspectedRow]
    integrity_error: str
    dropped: _containers.ScalarMap[str, int]
    transports: _containers.ScalarMap[str, str]
    log: _containers.RepeatedScalarFieldContainer[str]
    last_log_line: int
    facts: _facts_pb2.ProcessFacts
    def __init__(self, worker: _Optional[_Union[WorkerAddress, _Mapping]] = ..., roles: _Optional[_Iterable[_Union[Role, str]]] = ..., model: _Optional[str] = ..., fingerprint: _Optional[str] = ..., load: _Optional[_Union[LoadReport, _Mapping]] = ..., rows: _Optional[_Iterable[_Union[InspectedRow, _Mapping]]] = ..., integrity_error: _Optional[str] = ..., dropped: _Optional[_Mapping[str, int]] = ..., transports: _Optional[_Mapping[str, str]] = ..., log: _Optional[_Iterable[str]] = ..., last_log_line: _Optional[int] = ..., facts: _Optional[_Union[_facts_pb2.ProcessFacts, _Mapping]] = ...) -> None: ...

class InspectedRow(_message.Message):
    __slots__ = ("key", "state", "tokens", "pages")
    KEY_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    PAGES_FIELD_NUMBER: _ClassVar[int]
    key: AttemptKey
    state: str
    tokens: int
    pages: int
    def __init__(self, key: _Optional[_Union[AttemptKey, _Mapping]] = ..., state: _Optional[str] = ..., tokens: _Optional[int] = ..., pages: _Optional[int] = ...) -> None: ...
