from twolane.v1 import sampling_pb2 as _sampling_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class TokenIds(_message.Message):
    __slots__ = ("ids",)
    IDS_FIELD_NUMBER: _ClassVar[int]
    ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, ids: _Optional[_Iterable[int]] = ...) -> None: ...

class ChatMessage(_message.Message):
    __slots__ = ("role", "content")
    ROLE_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    role: str
    content: str
    def __init__(self, role: _Optional[str] = ..., content: _Optional[str] = ...) -> None: ...

class Chat(_message.Message):
    __slots__ = ("messages",)
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    messages: _containers.RepeatedCompositeFieldContainer[ChatMessage]
    def __init__(self, messages: _Optional[_Iterable[_Union[ChatMessage, _Mapping]]] = ...) -> None: ...

class GenerateRequest(_message.Message):
    __slots__ = ("request_id", "model", "text", "token_ids", "chat", "sampling", "priority", "n", "tenant", "adapter", "model_version", "constraint", "resume", "resumes")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    CHAT_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    N_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    ADAPTER_FIELD_NUMBER: _ClassVar[int]
    MODEL_VERSION_FIELD_NUMBER: _ClassVar[int]
    CONSTRAINT_FIELD_NUMBER: _ClassVar[int]
    RESUME_FIELD_NUMBER: _ClassVar[int]
    RESUMES_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    model: str
    text: str
    token_ids: TokenIds
    chat: Chat
    sampling: _sampling_pb2.SamplingParams
    priority: int
    n: int
    tenant: str
    adapter: str
    model_version: str
    constraint: Constraint
    resume: AnswerSoFar
    resumes: bool
    def __init__(self, request_id: _Optional[str] = ..., model: _Optional[str] = ..., text: _Optional[str] = ..., token_ids: _Optional[_Union[TokenIds, _Mapping]] = ..., chat: _Optional[_Union[Chat, _Mapping]] = ..., sampling: _Optional[_Union[_sampling_pb2.SamplingParams, _Mapping]] = ..., priority: _Optional[int] = ..., n: _Optional[int] = ..., tenant: _Optional[str] = ..., adapter: _Optional[str] = ..., model_version: _Optional[str] = ..., constraint: _Optional[_Union[Constraint, _Mapping]] = ..., resume: _Optional[_Union[AnswerSoFar, _Mapping]] = ..., resumes: bool = ...) -> None: ...

class AnswerSoFar(_message.Message):
    __slots__ = ("submission_id", "resume_token", "takeover", "token_ids", "n_text_bytes")
    SUBMISSION_ID_FIELD_NUMBER: _ClassVar[int]
    RESUME_TOKEN_FIELD_NUMBER: _ClassVar[int]
    TAKEOVER_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    N_TEXT_BYTES_FIELD_NUMBER: _ClassVar[int]
    submission_id: str
    resume_token: bytes
    takeover: int
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    n_text_bytes: int
    def __init__(self, submission_id: _Optional[str] = ..., resume_token: _Optional[bytes] = ..., takeover: _Optional[int] = ..., token_ids: _Optional[_Iterable[int]] = ..., n_text_bytes: _Optional[int] = ...) -> None: ...

class ResumeRequest(_message.Message):
    __slots__ = ("submission_id", "resume_token", "takeover", "n_tokens", "n_text_bytes", "tenant", "request_id")
    SUBMISSION_ID_FIELD_NUMBER: _ClassVar[int]
    RESUME_TOKEN_FIELD_NUMBER: _ClassVar[int]
    TAKEOVER_FIELD_NUMBER: _ClassVar[int]
    N_TOKENS_FIELD_NUMBER: _ClassVar[int]
    N_TEXT_BYTES_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    submission_id: str
    resume_token: bytes
    takeover: int
    n_tokens: int
    n_text_bytes: int
    tenant: str
    request_id: str
    def __init__(self, submission_id: _Optional[str] = ..., resume_token: _Optional[bytes] = ..., takeover: _Optional[int] = ..., n_tokens: _Optional[int] = ..., n_text_bytes: _Optional[int] = ..., tenant: _Optional[str] = ..., request_id: _Optional[str] = ...) -> None: ...

class Constraint(_message.Message):
    __slots__ = ("json_schema", "regex", "grammar")
    JSON_SCHEMA_FIELD_NUMBER: _ClassVar[int]
    REGEX_FIELD_NUMBER: _ClassVar[int]
    GRAMMAR_FIELD_NUMBER: _ClassVar[int]
    json_schema: str
    regex: str
    grammar: str
    def __init__(self, json_schema: _Optional[str] = ..., regex: _Optional[str] = ..., grammar: _Optional[str] = ...) -> None: ...

class Token(_message.Message):
    __slots__ = ("index", "token_id", "logprob", "top_logprobs")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    LOGPROB_FIELD_NUMBER: _ClassVar[int]
    TOP_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    index: int
    token_id: int
    logprob: float
    top_logprobs: _containers.RepeatedCompositeFieldContainer[_sampling_pb2.TopLogprob]
    def __init__(self, index: _Optional[int] = ..., token_id: _Optional[int] = ..., logprob: _Optional[float] = ..., top_logprobs: _Optional[_Iterable[_Union[_sampling_pb2.TopLogprob, _Mapping]]] = ...) -> None: ...

class GenerateResponse(_message.Message):
    __slots__ = ("request_id", "seed", "sample", "tokens", "text", "finish_reason", "ledger", "model", "prompt_tokens", "submission_id", "resume_token", "routers", "moved")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    SAMPLE_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    FINISH_REASON_FIELD_NUMBER: _ClassVar[int]
    LEDGER_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    SUBMISSION_ID_FIELD_NUMBER: _ClassVar[int]
    RESUME_TOKEN_FIELD_NUMBER: _ClassVar[int]
    ROUTERS_FIELD_NUMBER: _ClassVar[int]
    MOVED_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    seed: int
    sample: int
    tokens: _containers.RepeatedCompositeFieldContainer[Token]
    text: str
    finish_reason: _sampling_pb2.FinishReason
    ledger: _sampling_pb2.Ledger
    model: str
    prompt_tokens: int
    submission_id: str
    resume_token: bytes
    routers: _containers.RepeatedScalarFieldContainer[str]
    moved: bool
    def __init__(self, request_id: _Optional[str] = ..., seed: _Optional[int] = ..., sample: _Optional[int] = ..., tokens: _Optional[_Iterable[_Union[Token, _Mapping]]] = ..., text: _Optional[str] = ..., finish_reason: _Optional[_Union[_sampling_pb2.FinishReason, str]] = ..., ledger: _Optional[_Union[_sampling_pb2.Ledger, _Mapping]] = ..., model: _Optional[str] = ..., prompt_tokens: _Optional[int] = ..., submission_id: _Optional[str] = ..., resume_token: _Optional[bytes] = ..., routers: _Optional[_Iterable[str]] = ..., moved: bool = ...) -> None: ...

class MultiplexRequest(_message.Message):
    __slots__ = ("starts", "reads", "cancels")
    STARTS_FIELD_NUMBER: _ClassVar[int]
    READS_FIELD_NUMBER: _ClassVar[int]
    CANCELS_FIELD_NUMBER: _ClassVar[int]
    starts: _containers.RepeatedCompositeFieldContainer[AnswerStart]
    reads: _containers.RepeatedCompositeFieldContainer[AnswerRead]
    cancels: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, starts: _Optional[_Iterable[_Union[AnswerStart, _Mapping]]] = ..., reads: _Optional[_Iterable[_Union[AnswerRead, _Mapping]]] = ..., cancels: _Optional[_Iterable[int]] = ...) -> None: ...

class AnswerStart(_message.Message):
    __slots__ = ("answer", "generate", "resume", "timeout_s", "traceparent", "tracestate")
    ANSWER_FIELD_NUMBER: _ClassVar[int]
    GENERATE_FIELD_NUMBER: _ClassVar[int]
    RESUME_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_S_FIELD_NUMBER: _ClassVar[int]
    TRACEPARENT_FIELD_NUMBER: _ClassVar[int]
    TRACESTATE_FIELD_NUMBER: _ClassVar[int]
    answer: int
    generate: GenerateRequest
    resume: ResumeRequest
    timeout_s: float
    traceparent: str
    tracestate: str
    def __init__(self, answer: _Optional[int] = ..., generate: _Optional[_Union[GenerateRequest, _Mapping]] = ..., resume: _Optional[_Union[ResumeRequest, _Mapping]] = ..., timeout_s: _Optional[float] = ..., traceparent: _Optional[str] = ..., tracestate: _Optional[str] = ...) -> None: ...

class AnswerRead(_message.Message):
    __slots__ = ("answer", "n_tokens")
    ANSWER_FIELD_NUMBER: _ClassVar[int]
    N_TOKENS_FIELD_NUMBER: _ClassVar[int]
    answer: int
    n_tokens: int
    def __init__(self, answer: _Optional[int] = ..., n_tokens: _Optional[int] = ...) -> None: ...

class MultiplexResponse(_message.Message):
    __slots__ = ("window_tokens", "parts", "answers", "first_indexes", "counts", "token_ids", "texts", "is_ending")
    WINDOW_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    ANSWERS_FIELD_NUMBER: _ClassVar[int]
    FIRST_INDEXES_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    TEXTS_FIELD_NUMBER: _ClassVar[int]
    IS_ENDING_FIELD_NUMBER: _ClassVar[int]
    window_tokens: int
    parts: _containers.RepeatedCompositeFieldContainer[AnswerPart]
    answers: _containers.RepeatedScalarFieldContainer[int]
    first_indexes: _containers.RepeatedScalarFieldContainer[int]
    counts: _containers.RepeatedScalarFieldContainer[int]
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    texts: _containers.RepeatedScalarFieldContainer[str]
    is_ending: bool
    def __init__(self, window_tokens: _Optional[int] = ..., parts: _Optional[_Iterable[_Union[AnswerPart, _Mapping]]] = ..., answers: _Optional[_Iterable[int]] = ..., first_indexes: _Optional[_Iterable[int]] = ..., counts: _Optional[_Iterable[int]] = ..., token_ids: _Optional[_Iterable[int]] = ..., texts: _Optional[_Iterable[str]] = ..., is_ending: bool = ...) -> None: ...

class AnswerPart(_message.Message):
    __slots__ = ("answer", "response", "status")
    ANSWER_FIELD_NUMBER: _ClassVar[int]
    RESPONSE_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    answer: int
    response: GenerateResponse
    status: bytes
    def __init__(self, answer: _Optional[int] = ..., response: _Optional[_Union[GenerateResponse, _Mapping]] = ..., status: _Optional[bytes] = ...) -> None: ...

class CancelRequest(_message.Message):
    __slots__ = ("request_id", "submission_id", "tenant")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    SUBMISSION_ID_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    submission_id: str
    tenant: str
    def __init__(self, request_id: _Optional[str] = ..., submission_id: _Optional[str] = ..., tenant: _Optional[str] = ...) -> None: ...

class CancelResponse(_message.Message):
    __slots__ = ("found",)
    FOUND_FIELD_NUMBER: _ClassVar[int]
    found: bool
    def __init__(self, found: bool = ...) -> None: ...

class ListModelsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListModelsResponse(_message.Message):
    __slots__ = ("models",)
    MODELS_FIELD_NUMBER: _ClassVar[int]
    models: _containers.RepeatedCompositeFieldContainer[Model]
    def __init__(self, models: _Optional[_Iterable[_Union[Model, _Mapping]]] = ...) -> None: ...

class Model(_message.Message):
    __slots__ = ("name", "fingerprint", "max_context_tokens", "vocab_size")
    NAME_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    MAX_CONTEXT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    VOCAB_SIZE_FIELD_NUMBER: _ClassVar[int]
    name: str
    fingerprint: str
    max_context_tokens: int
    vocab_size: int
    def __init__(self, name: _Optional[str] = ..., fingerprint: _Optional[str] = ..., max_context_tokens: _Optional[int] = ..., vocab_size: _Optional[int] = ...) -> None: ...

class GetStatusRequest(_message.Message):
    __slots__ = ("submission_ids",)
    SUBMISSION_IDS_FIELD_NUMBER: _ClassVar[int]
    submission_ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, submission_ids: _Optional[_Iterable[str]] = ...) -> None: ...

class GetStatusResponse(_message.Message):
    __slots__ = ("serving", "models", "workers", "submissions")
    SERVING_FIELD_NUMBER: _ClassVar[int]
    MODELS_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    SUBMISSIONS_FIELD_NUMBER: _ClassVar[int]
    serving: bool
    models: _containers.RepeatedCompositeFieldContainer[Model]
    workers: _containers.RepeatedCompositeFieldContainer[WorkerCount]
    submissions: _containers.RepeatedCompositeFieldContainer[SubmissionStatus]
    def __init__(self, serving: bool = ..., models: _Optional[_Iterable[_Union[Model, _Mapping]]] = ..., workers: _Optional[_Iterable[_Union[WorkerCount, _Mapping]]] = ..., submissions: _Optional[_Iterable[_Union[SubmissionStatus, _Mapping]]] = ...) -> None: ...

class WorkerCount(_message.Message):
    __slots__ = ("state", "role", "workers")
    STATE_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    state: str
    role: str
    workers: int
    def __init__(self, state: _Optional[str] = ..., role: _Optional[str] = ..., workers: _Optional[int] = ...) -> None: ...

class WhoAmIRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class WhoAmIResponse(_message.Message):
    __slots__ = ("role", "name", "tenant", "quotas")
    ROLE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    QUOTAS_FIELD_NUMBER: _ClassVar[int]
    role: str
    name: str
    tenant: str
    quotas: _containers.RepeatedCompositeFieldContainer[QuotaStatus]
    def __init__(self, role: _Optional[str] = ..., name: _Optional[str] = ..., tenant: _Optional[str] = ..., quotas: _Optional[_Iterable[_Union[QuotaStatus, _Mapping]]] = ...) -> None: ...

class QuotaStatus(_message.Message):
    __slots__ = ("name", "limit", "remaining", "reset_s")
    NAME_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    REMAINING_FIELD_NUMBER: _ClassVar[int]
    RESET_S_FIELD_NUMBER: _ClassVar[int]
    name: str
    limit: float
    remaining: float
    reset_s: float
    def __init__(self, name: _Optional[str] = ..., limit: _Optional[float] = ..., remaining: _Optional[float] = ..., reset_s: _Optional[float] = ...) -> None: ...

class SubmissionStatus(_message.Message):
    __slots__ = ("submission_id", "state", "prompt_tokens", "output_tokens", "age_s")
    SUBMISSION_ID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    AGE_S_FIELD_NUMBER: _ClassVar[int]
    submission_id: str
    state: str
    prompt_tokens: int
    output_tokens: int
    age_s: float
    def __init__(self, submission_id: _Optional[str] = ..., state: _Optional[str] = ..., prompt_tokens: _Optional[int] = ..., output_tokens: _Optional[int] = ..., age_s: _Optional[float] = ...) -> None: ...
