from twolane.v1 import acts_pb2 as _acts_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Desired(_message.Message):
    __slots__ = ("term", "revision", "json")
    TERM_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    JSON_FIELD_NUMBER: _ClassVar[int]
    term: int
    revision: int
    json: str
    def __init__(self, term: _Optional[int] = ..., revision: _Optional[int] = ..., json: _Optional[str] = ...) -> None: ...

class KeepDesiredRequest(_message.Message):
    __slots__ = ("controller", "desired")
    CONTROLLER_FIELD_NUMBER: _ClassVar[int]
    DESIRED_FIELD_NUMBER: _ClassVar[int]
    controller: Controller
    desired: Desired
    def __init__(self, controller: _Optional[_Union[Controller, _Mapping]] = ..., desired: _Optional[_Union[Desired, _Mapping]] = ...) -> None: ...

class KeepDesiredResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ReadHostLogRequest(_message.Message):
    __slots__ = ("log",)
    LOG_FIELD_NUMBER: _ClassVar[int]
    log: _acts_pb2.ReadLogRequest
    def __init__(self, log: _Optional[_Union[_acts_pb2.ReadLogRequest, _Mapping]] = ...) -> None: ...

class ReadHostLogResponse(_message.Message):
    __slots__ = ("log", "age_s")
    LOG_FIELD_NUMBER: _ClassVar[int]
    AGE_S_FIELD_NUMBER: _ClassVar[int]
    log: _acts_pb2.ReadLogResponse
    age_s: float
    def __init__(self, log: _Optional[_Union[_acts_pb2.ReadLogResponse, _Mapping]] = ..., age_s: _Optional[float] = ...) -> None: ...

class ReadRevisionRequest(_message.Message):
    __slots__ = ("model_dir", "revision_dir", "without_weights")
    MODEL_DIR_FIELD_NUMBER: _ClassVar[int]
    REVISION_DIR_FIELD_NUMBER: _ClassVar[int]
    WITHOUT_WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    model_dir: str
    revision_dir: str
    without_weights: bool
    def __init__(self, model_dir: _Optional[str] = ..., revision_dir: _Optional[str] = ..., without_weights: bool = ...) -> None: ...

class ReadRevisionResponse(_message.Message):
    __slots__ = ("why_not", "fingerprint")
    WHY_NOT_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    why_not: str
    fingerprint: str
    def __init__(self, why_not: _Optional[str] = ..., fingerprint: _Optional[str] = ...) -> None: ...

class Controller(_message.Message):
    __slots__ = ("term", "id")
    TERM_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    term: int
    id: str
    def __init__(self, term: _Optional[int] = ..., id: _Optional[str] = ...) -> None: ...

class DescribeRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DescribeResponse(_message.Message):
    __slots__ = ("host", "boot_id", "gpus", "cores", "controller", "desired")
    HOST_FIELD_NUMBER: _ClassVar[int]
    BOOT_ID_FIELD_NUMBER: _ClassVar[int]
    GPUS_FIELD_NUMBER: _ClassVar[int]
    CORES_FIELD_NUMBER: _ClassVar[int]
    CONTROLLER_FIELD_NUMBER: _ClassVar[int]
    DESIRED_FIELD_NUMBER: _ClassVar[int]
    host: str
    boot_id: str
    gpus: _containers.RepeatedScalarFieldContainer[str]
    cores: int
    controller: Controller
    desired: Desired
    def __init__(self, host: _Optional[str] = ..., boot_id: _Optional[str] = ..., gpus: _Optional[_Iterable[str]] = ..., cores: _Optional[int] = ..., controller: _Optional[_Union[Controller, _Mapping]] = ..., desired: _Optional[_Union[Desired, _Mapping]] = ...) -> None: ...

class StartRequest(_message.Message):
    __slots__ = ("controller", "worker", "router")
    CONTROLLER_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    ROUTER_FIELD_NUMBER: _ClassVar[int]
    controller: Controller
    worker: str
    router: str
    def __init__(self, controller: _Optional[_Union[Controller, _Mapping]] = ..., worker: _Optional[str] = ..., router: _Optional[str] = ...) -> None: ...

class StartResponse(_message.Message):
    __slots__ = ("process", "error")
    PROCESS_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    process: HostProcess
    error: str
    def __init__(self, process: _Optional[_Union[HostProcess, _Mapping]] = ..., error: _Optional[str] = ...) -> None: ...

class Listeners(_message.Message):
    __slots__ = ("grpc", "metrics", "workers", "http", "admin")
    GRPC_FIELD_NUMBER: _ClassVar[int]
    METRICS_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    HTTP_FIELD_NUMBER: _ClassVar[int]
    ADMIN_FIELD_NUMBER: _ClassVar[int]
    grpc: str
    metrics: str
    workers: str
    http: str
    admin: str
    def __init__(self, grpc: _Optional[str] = ..., metrics: _Optional[str] = ..., workers: _Optional[str] = ..., http: _Optional[str] = ..., admin: _Optional[str] = ...) -> None: ...

class HostProcess(_message.Message):
    __slots__ = ("name", "epoch", "pid", "start_ticks", "listeners", "runs_on", "digest", "pool", "roles", "devices", "model_dir")
    NAME_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    START_TICKS_FIELD_NUMBER: _ClassVar[int]
    LISTENERS_FIELD_NUMBER: _ClassVar[int]
    RUNS_ON_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    POOL_FIELD_NUMBER: _ClassVar[int]
    ROLES_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    MODEL_DIR_FIELD_NUMBER: _ClassVar[int]
    name: str
    epoch: int
    pid: int
    start_ticks: int
    listeners: Listeners
    runs_on: str
    digest: str
    pool: str
    roles: _containers.RepeatedScalarFieldContainer[str]
    devices: _containers.RepeatedScalarFieldContainer[str]
    model_dir: str
    def __init__(self, name: _Optional[str] = ..., epoch: _Optional[int] = ..., pid: _Optional[int] = ..., start_ticks: _Optional[int] = ..., listeners: _Optional[_Union[Listeners, _Mapping]] = ..., runs_on: _Optional[str] = ..., digest: _Optional[str] = ..., pool: _Optional[str] = ..., roles: _Optional[_Iterable[str]] = ..., devices: _Optional[_Iterable[str]] = ..., model_dir: _Optional[str] = ...) -> None: ...

class StopRequest(_message.Message):
    __slots__ = ("controller", "name", "pid", "grace_s")
    CONTROLLER_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    GRACE_S_FIELD_NUMBER: _ClassVar[int]
    controller: Controller
    name: str
    pid: int
    grace_s: float
    def __init__(self, controller: _Optional[_Union[Controller, _Mapping]] = ..., name: _Optional[str] = ..., pid: _Optional[int] = ..., grace_s: _Optional[float] = ...) -> None: ...

class StopResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class FenceRequest(_message.Message):
    __slots__ = ("controller", "name", "epoch", "pid", "boot_id")
    CONTROLLER_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    BOOT_ID_FIELD_NUMBER: _ClassVar[int]
    controller: Controller
    name: str
    epoch: int
    pid: int
    boot_id: str
    def __init__(self, controller: _Optional[_Union[Controller, _Mapping]] = ..., name: _Optional[str] = ..., epoch: _Optional[int] = ..., pid: _Optional[int] = ..., boot_id: _Optional[str] = ...) -> None: ...

class FenceResponse(_message.Message):
    __slots__ = ("result", "proof_class", "how", "why")
    class Result(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        RESULT_UNSPECIFIED: _ClassVar[FenceResponse.Result]
        RESULT_FENCED: _ClassVar[FenceResponse.Result]
        RESULT_NEVER_HERE: _ClassVar[FenceResponse.Result]
        RESULT_NOT_PROVEN: _ClassVar[FenceResponse.Result]
    RESULT_UNSPECIFIED: FenceResponse.Result
    RESULT_FENCED: FenceResponse.Result
    RESULT_NEVER_HERE: FenceResponse.Result
    RESULT_NOT_PROVEN: FenceResponse.Result
    RESULT_FIELD_NUMBER: _ClassVar[int]
    PROOF_CLASS_FIELD_NUMBER: _ClassVar[int]
    HOW_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    result: FenceResponse.Result
    proof_class: str
    how: str
    why: str
    def __init__(self, result: _Optional[_Union[FenceResponse.Result, str]] = ..., proof_class: _Optional[str] = ..., how: _Optional[str] = ..., why: _Optional[str] = ...) -> None: ...

class WatchRequest(_message.Message):
    __slots__ = ("controller",)
    CONTROLLER_FIELD_NUMBER: _ClassVar[int]
    controller: Controller
    def __init__(self, controller: _Optional[_Union[Controller, _Mapping]] = ...) -> None: ...

class WatchResponse(_message.Message):
    __slots__ = ("boot_id", "live", "ended", "is_pod", "is_over")
    BOOT_ID_FIELD_NUMBER: _ClassVar[int]
    LIVE_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    IS_POD_FIELD_NUMBER: _ClassVar[int]
    IS_OVER_FIELD_NUMBER: _ClassVar[int]
    boot_id: str
    live: _containers.RepeatedCompositeFieldContainer[HostProcess]
    ended: _containers.RepeatedCompositeFieldContainer[EndedProcess]
    is_pod: bool
    is_over: bool
    def __init__(self, boot_id: _Optional[str] = ..., live: _Optional[_Iterable[_Union[HostProcess, _Mapping]]] = ..., ended: _Optional[_Iterable[_Union[EndedProcess, _Mapping]]] = ..., is_pod: bool = ..., is_over: bool = ...) -> None: ...

class EndedProcess(_message.Message):
    __slots__ = ("name", "epoch", "pid", "how", "proof_class")
    NAME_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    HOW_FIELD_NUMBER: _ClassVar[int]
    PROOF_CLASS_FIELD_NUMBER: _ClassVar[int]
    name: str
    epoch: int
    pid: int
    how: str
    proof_class: str
    def __init__(self, name: _Optional[str] = ..., epoch: _Optional[int] = ..., pid: _Optional[int] = ..., how: _Optional[str] = ..., proof_class: _Optional[str] = ...) -> None: ...

class FenceWorkerRequest(_message.Message):
    __slots__ = ("worker_id", "who")
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    WHO_FIELD_NUMBER: _ClassVar[int]
    worker_id: str
    who: str
    def __init__(self, worker_id: _Optional[str] = ..., who: _Optional[str] = ...) -> None: ...

class FenceWorkerResponse(_message.Message):
    __slots__ = ("proof",)
    PROOF_FIELD_NUMBER: _ClassVar[int]
    proof: str
    def __init__(self, proof: _Optional[str] = ...) -> None: ...

class SayHostOffRequest(_message.Message):
    __slots__ = ("host", "who")
    HOST_FIELD_NUMBER: _ClassVar[int]
    WHO_FIELD_NUMBER: _ClassVar[int]
    host: str
    who: str
    def __init__(self, host: _Optional[str] = ..., who: _Optional[str] = ...) -> None: ...

class SayHostOffResponse(_message.Message):
    __slots__ = ("proof",)
    PROOF_FIELD_NUMBER: _ClassVar[int]
    proof: str
    def __init__(self, proof: _Optional[str] = ...) -> None: ...

class StopClusterRequest(_message.Message):
    __slots__ = ("who",)
    WHO_FIELD_NUMBER: _ClassVar[int]
    who: str
    def __init__(self, who: _Optional[str] = ...) -> None: ...

class StopClusterResponse(_message.Message):
    __slots__ = ("pid",)
    PID_FIELD_NUMBER: _ClassVar[int]
    pid: int
    def __init__(self, pid: _Optional[int] = ...) -> None: ...
