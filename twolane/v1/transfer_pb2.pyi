from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class TransferKey(_message.Message):
    __slots__ = ("submission_id", "attempt", "sender_epoch", "receiver_epoch")
    SUBMISSION_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    SENDER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    RECEIVER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    submission_id: str
    attempt: int
    sender_epoch: int
    receiver_epoch: int
    def __init__(self, submission_id: _Optional[str] = ..., attempt: _Optional[int] = ..., sender_epoch: _Optional[int] = ..., receiver_epoch: _Optional[int] = ...) -> None: ...

class Ticket(_message.Message):
    __slots__ = ("key", "generation")
    KEY_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    key: TransferKey
    generation: int
    def __init__(self, key: _Optional[_Union[TransferKey, _Mapping]] = ..., generation: _Optional[int] = ...) -> None: ...

class ConnectRequest(_message.Message):
    __slots__ = ("hello", "reserve", "chunk", "done", "abandon", "drained", "renew")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    RESERVE_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    ABANDON_FIELD_NUMBER: _ClassVar[int]
    DRAINED_FIELD_NUMBER: _ClassVar[int]
    RENEW_FIELD_NUMBER: _ClassVar[int]
    hello: SenderHello
    reserve: Reserve
    chunk: Chunk
    done: Done
    abandon: Abandon
    drained: Drained
    renew: Renew
    def __init__(self, hello: _Optional[_Union[SenderHello, _Mapping]] = ..., reserve: _Optional[_Union[Reserve, _Mapping]] = ..., chunk: _Optional[_Union[Chunk, _Mapping]] = ..., done: _Optional[_Union[Done, _Mapping]] = ..., abandon: _Optional[_Union[Abandon, _Mapping]] = ..., drained: _Optional[_Union[Drained, _Mapping]] = ..., renew: _Optional[_Union[Renew, _Mapping]] = ...) -> None: ...

class ConnectResponse(_message.Message):
    __slots__ = ("hello", "reserved", "busy", "refused", "commit", "revoke", "renewed")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    RESERVED_FIELD_NUMBER: _ClassVar[int]
    BUSY_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    COMMIT_FIELD_NUMBER: _ClassVar[int]
    REVOKE_FIELD_NUMBER: _ClassVar[int]
    RENEWED_FIELD_NUMBER: _ClassVar[int]
    hello: ReceiverHello
    reserved: Reserved
    busy: Busy
    refused: Refused
    commit: Commit
    revoke: Revoke
    renewed: Renewed
    def __init__(self, hello: _Optional[_Union[ReceiverHello, _Mapping]] = ..., reserved: _Optional[_Union[Reserved, _Mapping]] = ..., busy: _Optional[_Union[Busy, _Mapping]] = ..., refused: _Optional[_Union[Refused, _Mapping]] = ..., commit: _Optional[_Union[Commit, _Mapping]] = ..., revoke: _Optional[_Union[Revoke, _Mapping]] = ..., renewed: _Optional[_Union[Renewed, _Mapping]] = ...) -> None: ...

class SenderHello(_message.Message):
    __slots__ = ("worker_id", "epoch", "fingerprint", "layout", "transports", "host", "pid", "pid_start_ticks", "memory", "makes_dtypes", "receiver_epoch", "page_lane")
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    LAYOUT_FIELD_NUMBER: _ClassVar[int]
    TRANSPORTS_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    PID_START_TICKS_FIELD_NUMBER: _ClassVar[int]
    MEMORY_FIELD_NUMBER: _ClassVar[int]
    MAKES_DTYPES_FIELD_NUMBER: _ClassVar[int]
    RECEIVER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    PAGE_LANE_FIELD_NUMBER: _ClassVar[int]
    worker_id: str
    epoch: int
    fingerprint: str
    layout: str
    transports: _containers.RepeatedScalarFieldContainer[str]
    host: str
    pid: int
    pid_start_ticks: int
    memory: str
    makes_dtypes: _containers.RepeatedScalarFieldContainer[str]
    receiver_epoch: int
    page_lane: str
    def __init__(self, worker_id: _Optional[str] = ..., epoch: _Optional[int] = ..., fingerprint: _Optional[str] = ..., layout: _Optional[str] = ..., transports: _Optional[_Iterable[str]] = ..., host: _Optional[str] = ..., pid: _Optional[int] = ..., pid_start_ticks: _Optional[int] = ..., memory: _Optional[str] = ..., makes_dtypes: _Optional[_Iterable[str]] = ..., receiver_epoch: _Optional[int] = ..., page_lane: _Optional[str] = ...) -> None: ...

class ReceiverHello(_message.Message):
    __slots__ = ("worker_id", "epoch", "transport", "transport_address", "refused_field", "refused_message", "lease_ms", "checksums", "layout", "page_lane", "page_key", "takes_last_chunk", "done_address", "done_key")
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    TRANSPORT_FIELD_NUMBER: _ClassVar[int]
    TRANSPORT_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_FIELD_NUMBER: _ClassVar[int]
    REFUSED_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    LEASE_MS_FIELD_NUMBER: _ClassVar[int]
    CHECKSUMS_FIELD_NUMBER: _ClassVar[int]
    LAYOUT_FIELD_NUMBER: _ClassVar[int]
    PAGE_LANE_FIELD_NUMBER: _ClassVar[int]
    PAGE_KEY_FIELD_NUMBER: _ClassVar[int]
    TAKES_LAST_CHUNK_FIELD_NUMBER: _ClassVar[int]
    DONE_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    DONE_KEY_FIELD_NUMBER: _ClassVar[int]
    worker_id: str
    epoch: int
    transport: str
    transport_address: str
    refused_field: str
    refused_message: str
    lease_ms: int
    checksums: _containers.RepeatedScalarFieldContainer[str]
    layout: str
    page_lane: str
    page_key: bytes
    takes_last_chunk: bool
    done_address: str
    done_key: bytes
    def __init__(self, worker_id: _Optional[str] = ..., epoch: _Optional[int] = ..., transport: _Optional[str] = ..., transport_address: _Optional[str] = ..., refused_field: _Optional[str] = ..., refused_message: _Optional[str] = ..., lease_ms: _Optional[int] = ..., checksums: _Optional[_Iterable[str]] = ..., layout: _Optional[str] = ..., page_lane: _Optional[str] = ..., page_key: _Optional[bytes] = ..., takes_last_chunk: bool = ..., done_address: _Optional[str] = ..., done_key: _Optional[bytes] = ...) -> None: ...

class Reserve(_message.Message):
    __slots__ = ("key", "n_tokens", "prefix_hashes", "priority")
    KEY_FIELD_NUMBER: _ClassVar[int]
    N_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PREFIX_HASHES_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    key: TransferKey
    n_tokens: int
    prefix_hashes: _containers.RepeatedScalarFieldContainer[bytes]
    priority: int
    def __init__(self, key: _Optional[_Union[TransferKey, _Mapping]] = ..., n_tokens: _Optional[int] = ..., prefix_hashes: _Optional[_Iterable[bytes]] = ..., priority: _Optional[int] = ...) -> None: ...

class Reserved(_message.Message):
    __slots__ = ("ticket", "pages", "skip_pages")
    TICKET_FIELD_NUMBER: _ClassVar[int]
    PAGES_FIELD_NUMBER: _ClassVar[int]
    SKIP_PAGES_FIELD_NUMBER: _ClassVar[int]
    ticket: Ticket
    pages: _containers.RepeatedScalarFieldContainer[int]
    skip_pages: int
    def __init__(self, ticket: _Optional[_Union[Ticket, _Mapping]] = ..., pages: _Optional[_Iterable[int]] = ..., skip_pages: _Optional[int] = ...) -> None: ...

class Busy(_message.Message):
    __slots__ = ("key",)
    KEY_FIELD_NUMBER: _ClassVar[int]
    key: TransferKey
    def __init__(self, key: _Optional[_Union[TransferKey, _Mapping]] = ...) -> None: ...

class Refused(_message.Message):
    __slots__ = ("key", "reason")
    KEY_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    key: TransferKey
    reason: str
    def __init__(self, key: _Optional[_Union[TransferKey, _Mapping]] = ..., reason: _Optional[str] = ...) -> None: ...

class Chunk(_message.Message):
    __slots__ = ("ticket", "index", "first_page", "checksums", "n_pages")
    TICKET_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    FIRST_PAGE_FIELD_NUMBER: _ClassVar[int]
    CHECKSUMS_FIELD_NUMBER: _ClassVar[int]
    N_PAGES_FIELD_NUMBER: _ClassVar[int]
    ticket: Ticket
    index: int
    first_page: int
    checksums: _containers.RepeatedScalarFieldContainer[int]
    n_pages: int
    def __init__(self, ticket: _Optional[_Union[Ticket, _Mapping]] = ..., index: _Optional[int] = ..., first_page: _Optional[int] = ..., checksums: _Optional[_Iterable[int]] = ..., n_pages: _Optional[int] = ...) -> None: ...

class Done(_message.Message):
    __slots__ = ("ticket", "n_chunks", "n_bytes", "first_token", "first_logprob", "top_ids", "top_logprobs", "last_chunk")
    TICKET_FIELD_NUMBER: _ClassVar[int]
    N_CHUNKS_FIELD_NUMBER: _ClassVar[int]
    N_BYTES_FIELD_NUMBER: _ClassVar[int]
    FIRST_TOKEN_FIELD_NUMBER: _ClassVar[int]
    FIRST_LOGPROB_FIELD_NUMBER: _ClassVar[int]
    TOP_IDS_FIELD_NUMBER: _ClassVar[int]
    TOP_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    LAST_CHUNK_FIELD_NUMBER: _ClassVar[int]
    ticket: Ticket
    n_chunks: int
    n_bytes: int
    first_token: int
    first_logprob: float
    top_ids: _containers.RepeatedScalarFieldContainer[int]
    top_logprobs: _containers.RepeatedScalarFieldContainer[float]
    last_chunk: Chunk
    def __init__(self, ticket: _Optional[_Union[Ticket, _Mapping]] = ..., n_chunks: _Optional[int] = ..., n_bytes: _Optional[int] = ..., first_token: _Optional[int] = ..., first_logprob: _Optional[float] = ..., top_ids: _Optional[_Iterable[int]] = ..., top_logprobs: _Optional[_Iterable[float]] = ..., last_chunk: _Optional[_Union[Chunk, _Mapping]] = ...) -> None: ...

class Abandon(_message.Message):
    __slots__ = ("key", "generation", "reason")
    KEY_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    key: TransferKey
    generation: int
    reason: str
    def __init__(self, key: _Optional[_Union[TransferKey, _Mapping]] = ..., generation: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class Drained(_message.Message):
    __slots__ = ("ticket",)
    TICKET_FIELD_NUMBER: _ClassVar[int]
    ticket: Ticket
    def __init__(self, ticket: _Optional[_Union[Ticket, _Mapping]] = ...) -> None: ...

class Revoke(_message.Message):
    __slots__ = ("ticket", "reason")
    TICKET_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    ticket: Ticket
    reason: str
    def __init__(self, ticket: _Optional[_Union[Ticket, _Mapping]] = ..., reason: _Optional[str] = ...) -> None: ...

class Commit(_message.Message):
    __slots__ = ("ticket",)
    TICKET_FIELD_NUMBER: _ClassVar[int]
    ticket: Ticket
    def __init__(self, ticket: _Optional[_Union[Ticket, _Mapping]] = ...) -> None: ...

class Renew(_message.Message):
    __slots__ = ("keys",)
    KEYS_FIELD_NUMBER: _ClassVar[int]
    keys: _containers.RepeatedCompositeFieldContainer[TransferKey]
    def __init__(self, keys: _Optional[_Iterable[_Union[TransferKey, _Mapping]]] = ...) -> None: ...

class Renewed(_message.Message):
    __slots__ = ("keys",)
    KEYS_FIELD_NUMBER: _ClassVar[int]
    keys: _containers.RepeatedCompositeFieldContainer[TransferKey]
    def __init__(self, keys: _Optional[_Iterable[_Union[TransferKey, _Mapping]]] = ...) -> None: ...
