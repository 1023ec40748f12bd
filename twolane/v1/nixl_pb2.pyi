from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class NixlRequest(_message.Message):
    __slots__ = ("hello", "busy", "drained")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    BUSY_FIELD_NUMBER: _ClassVar[int]
    DRAINED_FIELD_NUMBER: _ClassVar[int]
    hello: NixlHello
    busy: NixlBusy
    drained: NixlDrained
    def __init__(self, hello: _Optional[_Union[NixlHello, _Mapping]] = ..., busy: _Optional[_Union[NixlBusy, _Mapping]] = ..., drained: _Optional[_Union[NixlDrained, _Mapping]] = ...) -> None: ...

class NixlResponse(_message.Message):
    __slots__ = ("welcome", "revoke")
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    REVOKE_FIELD_NUMBER: _ClassVar[int]
    welcome: NixlWelcome
    revoke: NixlRevoke
    def __init__(self, welcome: _Optional[_Union[NixlWelcome, _Mapping]] = ..., revoke: _Optional[_Union[NixlRevoke, _Mapping]] = ...) -> None: ...

class NixlHello(_message.Message):
    __slots__ = ("sender_epoch", "receiver_epoch", "page_bytes", "checksum")
    SENDER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    RECEIVER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    PAGE_BYTES_FIELD_NUMBER: _ClassVar[int]
    CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    sender_epoch: int
    receiver_epoch: int
    page_bytes: int
    checksum: str
    def __init__(self, sender_epoch: _Optional[int] = ..., receiver_epoch: _Optional[int] = ..., page_bytes: _Optional[int] = ..., checksum: _Optional[str] = ...) -> None: ...

class NixlRegion(_message.Message):
    __slots__ = ("address", "n_bytes", "device")
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    N_BYTES_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    address: int
    n_bytes: int
    device: int
    def __init__(self, address: _Optional[int] = ..., n_bytes: _Optional[int] = ..., device: _Optional[int] = ...) -> None: ...

class NixlWelcome(_message.Message):
    __slots__ = ("agent", "regions", "last_generation", "open_generations")
    AGENT_FIELD_NUMBER: _ClassVar[int]
    REGIONS_FIELD_NUMBER: _ClassVar[int]
    LAST_GENERATION_FIELD_NUMBER: _ClassVar[int]
    OPEN_GENERATIONS_FIELD_NUMBER: _ClassVar[int]
    agent: bytes
    regions: _containers.RepeatedCompositeFieldContainer[NixlRegion]
    last_generation: int
    open_generations: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, agent: _Optional[bytes] = ..., regions: _Optional[_Iterable[_Union[NixlRegion, _Mapping]]] = ..., last_generation: _Optional[int] = ..., open_generations: _Optional[_Iterable[int]] = ...) -> None: ...

class NixlBusy(_message.Message):
    __slots__ = ("is_busy",)
    IS_BUSY_FIELD_NUMBER: _ClassVar[int]
    is_busy: bool
    def __init__(self, is_busy: bool = ...) -> None: ...

class NixlRevoke(_message.Message):
    __slots__ = ("generation",)
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    generation: int
    def __init__(self, generation: _Optional[int] = ...) -> None: ...

class NixlDrained(_message.Message):
    __slots__ = ("generation",)
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    generation: int
    def __init__(self, generation: _Optional[int] = ...) -> None: ...
