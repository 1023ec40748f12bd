from twolane.v1 import inference_pb2 as _inference_pb2
from twolane.v1 import sampling_pb2 as _sampling_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ProcessFacts(_message.Message):
    __slots__ = ("version", "unix_time", "open_files", "most_open_files", "shm_free_bytes", "certificates", "unreachable", "notes", "log_file", "log_free_bytes")
    class UnreachableEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    VERSION_FIELD_NUMBER: _ClassVar[int]
    UNIX_TIME_FIELD_NUMBER: _ClassVar[int]
    OPEN_FILES_FIELD_NUMBER: _ClassVar[int]
    MOST_OPEN_FILES_FIELD_NUMBER: _ClassVar[int]
    SHM_FREE_BYTES_FIELD_NUMBER: _ClassVar[int]
    CERTIFICATES_FIELD_NUMBER: _ClassVar[int]
    UNREACHABLE_FIELD_NUMBER: _ClassVar[int]
    NOTES_FIELD_NUMBER: _ClassVar[int]
    LOG_FILE_FIELD_NUMBER: _ClassVar[int]
    LOG_FREE_BYTES_FIELD_NUMBER: _ClassVar[int]
    version: str
    unix_time: float
    open_files: int
    most_open_files: int
    shm_free_bytes: int
    certificates: _containers.RepeatedCompositeFieldContainer[CertificateFacts]
    unreachable: _containers.ScalarMap[str, str]
    notes: _containers.RepeatedScalarFieldContainer[str]
    log_file: str
    log_free_bytes: int
    def __init__(self, version: _Optional[str] = ..., unix_time: _Optional[float] = ..., open_files: _Optional[int] = ..., most_open_files: _Optional[int] = ..., shm_free_bytes: _Optional[int] = ..., certificates: _Optional[_Iterable[_Union[CertificateFacts, _Mapping]]] = ..., unreachable: _Optional[_Mapping[str, str]] = ..., notes: _Optional[_Iterable[str]] = ..., log_file: _Optional[str] = ..., log_free_bytes: _Optional[int] = ...) -> None: ...

class CertificateFacts(_message.Message):
    __slots__ = ("file", "name", "not_after")
    FILE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    NOT_AFTER_FIELD_NUMBER: _ClassVar[int]
    file: str
    name: str
    not_after: float
    def __init__(self, file: _Optional[str] = ..., name: _Optional[str] = ..., not_after: _Optional[float] = ...) -> None: ...

class AnswerAloneRequest(_message.Message):
    __slots__ = ("expect_epoch", "token_ids", "sampling")
    EXPECT_EPOCH_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    expect_epoch: int
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    sampling: _sampling_pb2.SamplingParams
    def __init__(self, expect_epoch: _Optional[int] = ..., token_ids: _Optional[_Iterable[int]] = ..., sampling: _Optional[_Union[_sampling_pb2.SamplingParams, _Mapping]] = ...) -> None: ...

class AnswerAloneResponse(_message.Message):
    __slots__ = ("tokens", "exact")
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    EXACT_FIELD_NUMBER: _ClassVar[int]
    tokens: _containers.RepeatedCompositeFieldContainer[_inference_pb2.Token]
    exact: bool
    def __init__(self, tokens: _Optional[_Iterable[_Union[_inference_pb2.Token, _Mapping]]] = ..., exact: bool = ...) -> None: ...
