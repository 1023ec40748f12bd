from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Act(_message.Message):
    __slots__ = ("request_id", "reason", "dry_run")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    reason: str
    dry_run: bool
    def __init__(self, request_id: _Optional[str] = ..., reason: _Optional[str] = ..., dry_run: bool = ...) -> None: ...

class ActResponse(_message.Message):
    __slots__ = ("changes", "dry_run", "proof", "proof_class", "not_proven", "revision")
    CHANGES_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    PROOF_FIELD_NUMBER: _ClassVar[int]
    PROOF_CLASS_FIELD_NUMBER: _ClassVar[int]
    NOT_PROVEN_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    changes: _containers.RepeatedCompositeFieldContainer[Change]
    dry_run: bool
    proof: str
    proof_class: str
    not_proven: str
    revision: int
    def __init__(self, changes: _Optional[_Iterable[_Union[Change, _Mapping]]] = ..., dry_run: bool = ..., proof: _Optional[str] = ..., proof_class: _Optional[str] = ..., not_proven: _Optional[str] = ..., revision: _Optional[int] = ...) -> None: ...

class Change(_message.Message):
    __slots__ = ("subject", "before", "after", "stays")
    SUBJECT_FIELD_NUMBER: _ClassVar[int]
    BEFORE_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    STAYS_FIELD_NUMBER: _ClassVar[int]
    subject: str
    before: str
    after: str
    stays: bool
    def __init__(self, subject: _Optional[str] = ..., before: _Optional[str] = ..., after: _Optional[str] = ..., stays: bool = ...) -> None: ...

class KillWorkerRequest(_message.Message):
    __slots__ = ("act", "worker_id", "expect_epoch", "may_restart")
    ACT_FIELD_NUMBER: _ClassVar[int]
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    EXPECT_EPOCH_FIELD_NUMBER: _ClassVar[int]
    MAY_RESTART_FIELD_NUMBER: _ClassVar[int]
    act: Act
    worker_id: str
    expect_epoch: int
    may_restart: bool
    def __init__(self, act: _Optional[_Union[Act, _Mapping]] = ..., worker_id: _Optional[str] = ..., expect_epoch: _Optional[int] = ..., may_restart: bool = ...) -> None: ...

class CordonHostRequest(_message.Message):
    __slots__ = ("act", "host", "undo")
    ACT_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    UNDO_FIELD_NUMBER: _ClassVar[int]
    act: Act
    host: str
    undo: bool
    def __init__(self, act: _Optional[_Union[Act, _Mapping]] = ..., host: _Optional[str] = ..., undo: bool = ...) -> None: ...

class DrainHostRequest(_message.Message):
    __slots__ = ("act", "host", "hand_over")
    ACT_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    HAND_OVER_FIELD_NUMBER: _ClassVar[int]
    act: Act
    host: str
    hand_over: bool
    def __init__(self, act: _Optional[_Union[Act, _Mapping]] = ..., host: _Optional[str] = ..., hand_over: bool = ...) -> None: ...

class ScalePoolsRequest(_message.Message):
    __slots__ = ("act", "pools", "for_s", "expect_revision")
    ACT_FIELD_NUMBER: _ClassVar[int]
    POOLS_FIELD_NUMBER: _ClassVar[int]
    FOR_S_FIELD_NUMBER: _ClassVar[int]
    EXPECT_REVISION_FIELD_NUMBER: _ClassVar[int]
    act: Act
    pools: _containers.RepeatedCompositeFieldContainer[PoolSize]
    for_s: float
    expect_revision: int
    def __init__(self, act: _Optional[_Union[Act, _Mapping]] = ..., pools: _Optional[_Iterable[_Union[PoolSize, _Mapping]]] = ..., for_s: _Optional[float] = ..., expect_revision: _Optional[int] = ...) -> None: ...

class PoolSize(_message.Message):
    __slots__ = ("pool", "workers", "auto")
    POOL_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    AUTO_FIELD_NUMBER: _ClassVar[int]
    pool: str
    workers: int
    auto: bool
    def __init__(self, pool: _Optional[str] = ..., workers: _Optional[int] = ..., auto: bool = ...) -> None: ...

class FlipWorkerRequest(_message.Message):
    __slots__ = ("act", "worker_id", "expect_epoch")
    ACT_FIELD_NUMBER: _ClassVar[int]
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    EXPECT_EPOCH_FIELD_NUMBER: _ClassVar[int]
    act: Act
    worker_id: str
    expect_epoch: int
    def __init__(self, act: _Optional[_Union[Act, _Mapping]] = ..., worker_id: _Optional[str] = ..., expect_epoch: _Optional[int] = ...) -> None: ...

class SetScalerRequest(_message.Message):
    __slots__ = ("act", "mode")
    ACT_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    act: Act
    mode: str
    def __init__(self, act: _Optional[_Union[Act, _Mapping]] = ..., mode: _Optional[str] = ...) -> None: ...

class StartRolloutRequest(_message.Message):
    __slots__ = ("act", "model_dir", "canary_share", "extra_workers")
    ACT_FIELD_NUMBER: _ClassVar[int]
    MODEL_DIR_FIELD_NUMBER: _ClassVar[int]
    CANARY_SHARE_FIELD_NUMBER: _ClassVar[int]
    EXTRA_WORKERS_FIELD_NUMBER: _ClassVar[int]
    act: Act
    model_dir: str
    canary_share: float
    extra_workers: int
    def __init__(self, act: _Optional[_Union[Act, _Mapping]] = ..., model_dir: _Optional[str] = ..., canary_share: _Optional[float] = ..., extra_workers: _Optional[int] = ...) -> None: ...

class StepRolloutRequest(_message.Message):
    __slots__ = ("act", "step")
    class Step(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        STEP_UNSPECIFIED: _ClassVar[StepRolloutRequest.Step]
        STEP_PAUSE: _ClassVar[StepRolloutRequest.Step]
        STEP_RESUME: _ClassVar[StepRolloutRequest.Step]
        STEP_UNDO: _ClassVar[StepRolloutRequest.Step]
    STEP_UNSPECIFIED: StepRolloutRequest.Step
    STEP_PAUSE: StepRolloutRequest.Step
    STEP_RESUME: StepRolloutRequest.Step
    STEP_UNDO: StepRolloutRequest.Step
    ACT_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    act: Act
    step: StepRolloutRequest.Step
    def __init__(self, act: _Optional[_Union[Act, _Mapping]] = ..., step: _Optional[_Union[StepRolloutRequest.Step, str]] = ...) -> None: ...

class ControllerAct(_message.Message):
    __slots__ = ("number", "who", "kill", "cordon", "scale", "read_log", "drain_host", "flip", "scaler", "keep_config", "start_rollout", "step_rollout")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    WHO_FIELD_NUMBER: _ClassVar[int]
    KILL_FIELD_NUMBER: _ClassVar[int]
    CORDON_FIELD_NUMBER: _ClassVar[int]
    SCALE_FIELD_NUMBER: _ClassVar[int]
    READ_LOG_FIELD_NUMBER: _ClassVar[int]
    DRAIN_HOST_FIELD_NUMBER: _ClassVar[int]
    FLIP_FIELD_NUMBER: _ClassVar[int]
    SCALER_FIELD_NUMBER: _ClassVar[int]
    KEEP_CONFIG_FIELD_NUMBER: _ClassVar[int]
    START_ROLLOUT_FIELD_NUMBER: _ClassVar[int]
    STEP_ROLLOUT_FIELD_NUMBER: _ClassVar[int]
    number: int
    who: str
    kill: KillWorkerRequest
    cordon: CordonHostRequest
    scale: ScalePoolsRequest
    read_log: ReadLogRequest
    drain_host: DrainHostRequest
    flip: FlipWorkerRequest
    scaler: SetScalerRequest
    keep_config: KeepConfigRequest
    start_rollout: StartRolloutRequest
    step_rollout: StepRolloutRequest
    def __init__(self, number: _Optional[int] = ..., who: _Optional[str] = ..., kill: _Optional[_Union[KillWorkerRequest, _Mapping]] = ..., cordon: _Optional[_Union[CordonHostRequest, _Mapping]] = ..., scale: _Optional[_Union[ScalePoolsRequest, _Mapping]] = ..., read_log: _Optional[_Union[ReadLogRequest, _Mapping]] = ..., drain_host: _Optional[_Union[DrainHostRequest, _Mapping]] = ..., flip: _Optional[_Union[FlipWorkerRequest, _Mapping]] = ..., scaler: _Optional[_Union[SetScalerRequest, _Mapping]] = ..., keep_config: _Optional[_Union[KeepConfigRequest, _Mapping]] = ..., start_rollout: _Optional[_Union[StartRolloutRequest, _Mapping]] = ..., step_rollout: _Optional[_Union[StepRolloutRequest, _Mapping]] = ...) -> None: ...

class KeepConfigRequest(_message.Message):
    __slots__ = ("act", "revision", "values")
    class ValuesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    ACT_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    act: Act
    revision: int
    values: _containers.ScalarMap[str, str]
    def __init__(self, act: _Optional[_Union[Act, _Mapping]] = ..., revision: _Optional[int] = ..., values: _Optional[_Mapping[str, str]] = ...) -> None: ...

class ControllerActResult(_message.Message):
    __slots__ = ("number", "response", "log", "code", "error")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    RESPONSE_FIELD_NUMBER: _ClassVar[int]
    LOG_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    number: int
    response: ActResponse
    log: ReadLogResponse
    code: int
    error: str
    def __init__(self, number: _Optional[int] = ..., response: _Optional[_Union[ActResponse, _Mapping]] = ..., log: _Optional[_Union[ReadLogResponse, _Mapping]] = ..., code: _Optional[int] = ..., error: _Optional[str] = ...) -> None: ...

class ReadLogRequest(_message.Message):
    __slots__ = ("name", "lines", "after_line", "source", "from_file")
    NAME_FIELD_NUMBER: _ClassVar[int]
    LINES_FIELD_NUMBER: _ClassVar[int]
    AFTER_LINE_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    FROM_FILE_FIELD_NUMBER: _ClassVar[int]
    name: str
    lines: int
    after_line: int
    source: str
    from_file: bool
    def __init__(self, name: _Optional[str] = ..., lines: _Optional[int] = ..., after_line: _Optional[int] = ..., source: _Optional[str] = ..., from_file: bool = ...) -> None: ...

class ReadLogResponse(_message.Message):
    __slots__ = ("lines", "last_line", "source")
    LINES_FIELD_NUMBER: _ClassVar[int]
    LAST_LINE_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    lines: _containers.RepeatedScalarFieldContainer[str]
    last_line: int
    source: str
    def __init__(self, lines: _Optional[_Iterable[str]] = ..., last_line: _Optional[int] = ..., source: _Optional[str] = ...) -> None: ...
