from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Drain(_message.Message):
    __slots__ = ("enabled", "hand_over", "take_ticket", "begun")
    ENABLED_FIELD_NUMBER: _ClassVar[int]
    HAND_OVER_FIELD_NUMBER: _ClassVar[int]
    TAKE_TICKET_FIELD_NUMBER: _ClassVar[int]
    BEGUN_FIELD_NUMBER: _ClassVar[int]
    enabled: bool
    hand_over: bool
    take_ticket: int
    begun: int
    def __init__(self, enabled: bool = ..., hand_over: bool = ..., take_ticket: _Optional[int] = ..., begun: _Optional[int] = ...) -> None: ...

class DrainReport(_message.Message):
    __slots__ = ("number", "blockers", "has_ticket", "is_taken", "hands_over", "eta_s", "quarantined_pages")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    BLOCKERS_FIELD_NUMBER: _ClassVar[int]
    HAS_TICKET_FIELD_NUMBER: _ClassVar[int]
    IS_TAKEN_FIELD_NUMBER: _ClassVar[int]
    HANDS_OVER_FIELD_NUMBER: _ClassVar[int]
    ETA_S_FIELD_NUMBER: _ClassVar[int]
    QUARANTINED_PAGES_FIELD_NUMBER: _ClassVar[int]
    number: int
    blockers: _containers.RepeatedCompositeFieldContainer[DrainBlocker]
    has_ticket: bool
    is_taken: bool
    hands_over: bool
    eta_s: float
    quarantined_pages: int
    def __init__(self, number: _Optional[int] = ..., blockers: _Optional[_Iterable[_Union[DrainBlocker, _Mapping]]] = ..., has_ticket: bool = ..., is_taken: bool = ..., hands_over: bool = ..., eta_s: _Optional[float] = ..., quarantined_pages: _Optional[int] = ...) -> None: ...

class DrainBlocker(_message.Message):
    __slots__ = ("kind", "count", "names")
    KIND_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    NAMES_FIELD_NUMBER: _ClassVar[int]
    kind: str
    count: int
    names: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, kind: _Optional[str] = ..., count: _Optional[int] = ..., names: _Optional[_Iterable[str]] = ...) -> None: ...
