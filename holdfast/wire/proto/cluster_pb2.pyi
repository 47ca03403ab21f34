"""Made from cluster.proto by .ci/proto. Do not edit."""

# ruff: noqa
# mypy: ignore-errors
# fmt: off
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Phase(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PHASE_UNSPECIFIED: _ClassVar[Phase]
    PHASE_STARTING: _ClassVar[Phase]
    PHASE_READY: _ClassVar[Phase]
    PHASE_RUNNING: _ClassVar[Phase]
    PHASE_GONE: _ClassVar[Phase]

class ExitKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    EXIT_KIND_UNSPECIFIED: _ClassVar[ExitKind]
    EXIT_KIND_DONE: _ClassVar[ExitKind]
    EXIT_KIND_LEFT: _ClassVar[ExitKind]
    EXIT_KIND_STOPPED: _ClassVar[ExitKind]
    EXIT_KIND_ERROR: _ClassVar[ExitKind]
    EXIT_KIND_MEMORY: _ClassVar[ExitKind]
    EXIT_KIND_SIGNAL: _ClassVar[ExitKind]
    EXIT_KIND_HUNG: _ClassVar[ExitKind]
    EXIT_KIND_LOST: _ClassVar[ExitKind]
    EXIT_KIND_REFUSED: _ClassVar[ExitKind]
    EXIT_KIND_DISK: _ClassVar[ExitKind]

class Output(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    OUTPUT_UNSPECIFIED: _ClassVar[Output]
    OUTPUT_OUT: _ClassVar[Output]
    OUTPUT_ERR: _ClassVar[Output]
PHASE_UNSPECIFIED: Phase
PHASE_STARTING: Phase
PHASE_READY: Phase
PHASE_RUNNING: Phase
PHASE_GONE: Phase
EXIT_KIND_UNSPECIFIED: ExitKind
EXIT_KIND_DONE: ExitKind
EXIT_KIND_LEFT: ExitKind
EXIT_KIND_STOPPED: ExitKind
EXIT_KIND_ERROR: ExitKind
EXIT_KIND_MEMORY: ExitKind
EXIT_KIND_SIGNAL: ExitKind
EXIT_KIND_HUNG: ExitKind
EXIT_KIND_LOST: ExitKind
EXIT_KIND_REFUSED: ExitKind
EXIT_KIND_DISK: ExitKind
OUTPUT_UNSPECIFIED: Output
OUTPUT_OUT: Output
OUTPUT_ERR: Output

class CertificateRequest(_message.Message):
    __slots__ = ("protocol", "request_pem")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    REQUEST_PEM_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    request_pem: bytes
    def __init__(self, protocol: _Optional[int] = ..., request_pem: _Optional[bytes] = ...) -> None: ...

class CertificateReply(_message.Message):
    __slots__ = ("certificate_pem", "trust_pem", "token", "access")
    CERTIFICATE_PEM_FIELD_NUMBER: _ClassVar[int]
    TRUST_PEM_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    ACCESS_FIELD_NUMBER: _ClassVar[int]
    certificate_pem: bytes
    trust_pem: bytes
    token: str
    access: bytes
    def __init__(self, certificate_pem: _Optional[bytes] = ..., trust_pem: _Optional[bytes] = ..., token: _Optional[str] = ..., access: _Optional[bytes] = ...) -> None: ...

class StandRequest(_message.Message):
    __slots__ = ("protocol", "name", "attempt")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    name: str
    attempt: str
    def __init__(self, protocol: _Optional[int] = ..., name: _Optional[str] = ..., attempt: _Optional[str] = ...) -> None: ...

class StandReply(_message.Message):
    __slots__ = ("certificate_pem", "key_pem", "access")
    CERTIFICATE_PEM_FIELD_NUMBER: _ClassVar[int]
    KEY_PEM_FIELD_NUMBER: _ClassVar[int]
    ACCESS_FIELD_NUMBER: _ClassVar[int]
    certificate_pem: bytes
    key_pem: bytes
    access: bytes
    def __init__(self, certificate_pem: _Optional[bytes] = ..., key_pem: _Optional[bytes] = ..., access: _Optional[bytes] = ...) -> None: ...

class FromAgent(_message.Message):
    __slots__ = ("hello", "snapshot", "refusal")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    hello: Hello
    snapshot: NodeFacts
    refusal: Refusal
    def __init__(self, hello: _Optional[_Union[Hello, _Mapping]] = ..., snapshot: _Optional[_Union[NodeFacts, _Mapping]] = ..., refusal: _Optional[_Union[Refusal, _Mapping]] = ...) -> None: ...

class ToAgent(_message.Message):
    __slots__ = ("welcome", "orders")
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    ORDERS_FIELD_NUMBER: _ClassVar[int]
    welcome: Welcome
    orders: Orders
    def __init__(self, welcome: _Optional[_Union[Welcome, _Mapping]] = ..., orders: _Optional[_Union[Orders, _Mapping]] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("protocol", "cluster", "node", "capacity", "session", "process", "serial")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    CAPACITY_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    PROCESS_FIELD_NUMBER: _ClassVar[int]
    SERIAL_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    cluster: str
    node: str
    capacity: Resources
    session: str
    process: str
    serial: int
    def __init__(self, protocol: _Optional[int] = ..., cluster: _Optional[str] = ..., node: _Optional[str] = ..., capacity: _Optional[_Union[Resources, _Mapping]] = ..., session: _Optional[str] = ..., process: _Optional[str] = ..., serial: _Optional[int] = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ("term", "steps_s")
    TERM_FIELD_NUMBER: _ClassVar[int]
    STEPS_S_FIELD_NUMBER: _ClassVar[int]
    term: int
    steps_s: float
    def __init__(self, term: _Optional[int] = ..., steps_s: _Optional[float] = ...) -> None: ...

class Orders(_message.Message):
    __slots__ = ("term", "session", "orders", "steps_s")
    TERM_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    ORDERS_FIELD_NUMBER: _ClassVar[int]
    STEPS_S_FIELD_NUMBER: _ClassVar[int]
    term: int
    session: str
    orders: _containers.RepeatedCompositeFieldContainer[Order]
    steps_s: float
    def __init__(self, term: _Optional[int] = ..., session: _Optional[str] = ..., orders: _Optional[_Iterable[_Union[Order, _Mapping]]] = ..., steps_s: _Optional[float] = ...) -> None: ...

class Refusal(_message.Message):
    __slots__ = ("term", "job", "worker", "order", "reason", "fenced")
    TERM_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    ORDER_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    FENCED_FIELD_NUMBER: _ClassVar[int]
    term: int
    job: str
    worker: int
    order: str
    reason: str
    fenced: bool
    def __init__(self, term: _Optional[int] = ..., job: _Optional[str] = ..., worker: _Optional[int] = ..., order: _Optional[str] = ..., reason: _Optional[str] = ..., fenced: _Optional[bool] = ...) -> None: ...

class Order(_message.Message):
    __slots__ = ("node", "job", "worker", "start", "view", "settings", "share", "stop", "forget", "same_view")
    NODE_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    VIEW_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    SHARE_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    FORGET_FIELD_NUMBER: _ClassVar[int]
    SAME_VIEW_FIELD_NUMBER: _ClassVar[int]
    node: str
    job: str
    worker: int
    start: Start
    view: View
    settings: Settings
    share: Share
    stop: Stop
    forget: Forget
    same_view: SameView
    def __init__(self, node: _Optional[str] = ..., job: _Optional[str] = ..., worker: _Optional[int] = ..., start: _Optional[_Union[Start, _Mapping]] = ..., view: _Optional[_Union[View, _Mapping]] = ..., settings: _Optional[_Union[Settings, _Mapping]] = ..., share: _Optional[_Union[Share, _Mapping]] = ..., stop: _Optional[_Union[Stop, _Mapping]] = ..., forget: _Optional[_Union[Forget, _Mapping]] = ..., same_view: _Optional[_Union[SameView, _Mapping]] = ...) -> None: ...

class SameView(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Start(_message.Message):
    __slots__ = ("bundle", "command", "resources", "environment", "silence_s", "secret", "queue", "user", "ports", "ready", "live", "references", "secrets", "requirements")
    class EnvironmentEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    class PortsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class ReferencesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    class SecretsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    BUNDLE_FIELD_NUMBER: _ClassVar[int]
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    RESOURCES_FIELD_NUMBER: _ClassVar[int]
    ENVIRONMENT_FIELD_NUMBER: _ClassVar[int]
    SILENCE_S_FIELD_NUMBER: _ClassVar[int]
    SECRET_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    PORTS_FIELD_NUMBER: _ClassVar[int]
    READY_FIELD_NUMBER: _ClassVar[int]
    LIVE_FIELD_NUMBER: _ClassVar[int]
    REFERENCES_FIELD_NUMBER: _ClassVar[int]
    SECRETS_FIELD_NUMBER: _ClassVar[int]
    REQUIREMENTS_FIELD_NUMBER: _ClassVar[int]
    bundle: str
    command: _containers.RepeatedScalarFieldContainer[str]
    resources: Resources
    environment: _containers.ScalarMap[str, str]
    silence_s: float
    secret: str
    queue: str
    user: str
    ports: _containers.ScalarMap[str, int]
    ready: Probe
    live: Probe
    references: _containers.ScalarMap[str, str]
    secrets: _containers.ScalarMap[str, str]
    requirements: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, bundle: _Optional[str] = ..., command: _Optional[_Iterable[str]] = ..., resources: _Optional[_Union[Resources, _Mapping]] = ..., environment: _Optional[_Mapping[str, str]] = ..., silence_s: _Optional[float] = ..., secret: _Optional[str] = ..., queue: _Optional[str] = ..., user: _Optional[str] = ..., ports: _Optional[_Mapping[str, int]] = ..., ready: _Optional[_Union[Probe, _Mapping]] = ..., live: _Optional[_Union[Probe, _Mapping]] = ..., references: _Optional[_Mapping[str, str]] = ..., secrets: _Optional[_Mapping[str, str]] = ..., requirements: _Optional[_Iterable[str]] = ...) -> None: ...

class Probe(_message.Message):
    __slots__ = ("kind", "port", "path", "command", "every_s", "timeout_s", "failures", "within_s")
    KIND_FIELD_NUMBER: _ClassVar[int]
    PORT_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    EVERY_S_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_S_FIELD_NUMBER: _ClassVar[int]
    FAILURES_FIELD_NUMBER: _ClassVar[int]
    WITHIN_S_FIELD_NUMBER: _ClassVar[int]
    kind: str
    port: str
    path: str
    command: _containers.RepeatedScalarFieldContainer[str]
    every_s: float
    timeout_s: float
    failures: int
    within_s: float
    def __init__(self, kind: _Optional[str] = ..., port: _Optional[str] = ..., path: _Optional[str] = ..., command: _Optional[_Iterable[str]] = ..., every_s: _Optional[float] = ..., timeout_s: _Optional[float] = ..., failures: _Optional[int] = ..., within_s: _Optional[float] = ...) -> None: ...

class View(_message.Message):
    __slots__ = ("number", "members", "restore_step", "manifest", "settings")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    RESTORE_STEP_FIELD_NUMBER: _ClassVar[int]
    MANIFEST_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    number: int
    members: _containers.RepeatedCompositeFieldContainer[Member]
    restore_step: int
    manifest: str
    settings: int
    def __init__(self, number: _Optional[int] = ..., members: _Optional[_Iterable[_Union[Member, _Mapping]]] = ..., restore_step: _Optional[int] = ..., manifest: _Optional[str] = ..., settings: _Optional[int] = ...) -> None: ...

class Member(_message.Message):
    __slots__ = ("worker", "lanes", "address")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    LANES_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    worker: int
    lanes: _containers.RepeatedScalarFieldContainer[int]
    address: str
    def __init__(self, worker: _Optional[int] = ..., lanes: _Optional[_Iterable[int]] = ..., address: _Optional[str] = ...) -> None: ...

class Settings(_message.Message):
    __slots__ = ("settings",)
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    settings: _containers.RepeatedCompositeFieldContainer[Setting]
    def __init__(self, settings: _Optional[_Iterable[_Union[Setting, _Mapping]]] = ...) -> None: ...

class Setting(_message.Message):
    __slots__ = ("name", "value", "at_step")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    AT_STEP_FIELD_NUMBER: _ClassVar[int]
    name: str
    value: str
    at_step: int
    def __init__(self, name: _Optional[str] = ..., value: _Optional[str] = ..., at_step: _Optional[int] = ...) -> None: ...

class Share(_message.Message):
    __slots__ = ("attempt", "share", "shares")
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    SHARE_FIELD_NUMBER: _ClassVar[int]
    SHARES_FIELD_NUMBER: _ClassVar[int]
    attempt: Attempt
    share: int
    shares: int
    def __init__(self, attempt: _Optional[_Union[Attempt, _Mapping]] = ..., share: _Optional[int] = ..., shares: _Optional[int] = ...) -> None: ...

class Attempt(_message.Message):
    __slots__ = ("number", "step", "view", "since_s")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    VIEW_FIELD_NUMBER: _ClassVar[int]
    SINCE_S_FIELD_NUMBER: _ClassVar[int]
    number: int
    step: int
    view: int
    since_s: float
    def __init__(self, number: _Optional[int] = ..., step: _Optional[int] = ..., view: _Optional[int] = ..., since_s: _Optional[float] = ...) -> None: ...

class Stop(_message.Message):
    __slots__ = ("notice_s",)
    NOTICE_S_FIELD_NUMBER: _ClassVar[int]
    notice_s: float
    def __init__(self, notice_s: _Optional[float] = ...) -> None: ...

class Forget(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Resources(_message.Message):
    __slots__ = ("cpu", "memory_bytes", "gpu", "disk_bytes")
    CPU_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    GPU_FIELD_NUMBER: _ClassVar[int]
    DISK_BYTES_FIELD_NUMBER: _ClassVar[int]
    cpu: float
    memory_bytes: int
    gpu: int
    disk_bytes: int
    def __init__(self, cpu: _Optional[float] = ..., memory_bytes: _Optional[int] = ..., gpu: _Optional[int] = ..., disk_bytes: _Optional[int] = ...) -> None: ...

class NodeFacts(_message.Message):
    __slots__ = ("node", "capacity", "workers")
    NODE_FIELD_NUMBER: _ClassVar[int]
    CAPACITY_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    node: str
    capacity: Resources
    workers: _containers.RepeatedCompositeFieldContainer[WorkerFacts]
    def __init__(self, node: _Optional[str] = ..., capacity: _Optional[_Union[Resources, _Mapping]] = ..., workers: _Optional[_Iterable[_Union[WorkerFacts, _Mapping]]] = ...) -> None: ...

class WorkerFacts(_message.Message):
    __slots__ = ("job", "worker", "phase", "view", "step", "parts", "missed", "unreadable", "settings", "exit", "address", "ending", "suspects", "metrics", "endpoints", "trouble", "unreadable_why", "preparing", "preparing_since_s")
    class MetricsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    class EndpointsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    JOB_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    VIEW_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    MISSED_FIELD_NUMBER: _ClassVar[int]
    UNREADABLE_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    EXIT_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    ENDING_FIELD_NUMBER: _ClassVar[int]
    SUSPECTS_FIELD_NUMBER: _ClassVar[int]
    METRICS_FIELD_NUMBER: _ClassVar[int]
    ENDPOINTS_FIELD_NUMBER: _ClassVar[int]
    TROUBLE_FIELD_NUMBER: _ClassVar[int]
    UNREADABLE_WHY_FIELD_NUMBER: _ClassVar[int]
    PREPARING_FIELD_NUMBER: _ClassVar[int]
    PREPARING_SINCE_S_FIELD_NUMBER: _ClassVar[int]
    job: str
    worker: int
    phase: Phase
    view: int
    step: int
    parts: _containers.RepeatedCompositeFieldContainer[Parts]
    missed: _containers.RepeatedScalarFieldContainer[int]
    unreadable: _containers.RepeatedScalarFieldContainer[int]
    settings: int
    exit: Exit
    address: str
    ending: bool
    suspects: _containers.RepeatedScalarFieldContainer[int]
    metrics: _containers.ScalarMap[str, float]
    endpoints: _containers.ScalarMap[str, str]
    trouble: str
    unreadable_why: str
    preparing: str
    preparing_since_s: float
    def __init__(self, job: _Optional[str] = ..., worker: _Optional[int] = ..., phase: _Optional[_Union[Phase, str]] = ..., view: _Optional[int] = ..., step: _Optional[int] = ..., parts: _Optional[_Iterable[_Union[Parts, _Mapping]]] = ..., missed: _Optional[_Iterable[int]] = ..., unreadable: _Optional[_Iterable[int]] = ..., settings: _Optional[int] = ..., exit: _Optional[_Union[Exit, _Mapping]] = ..., address: _Optional[str] = ..., ending: _Optional[bool] = ..., suspects: _Optional[_Iterable[int]] = ..., metrics: _Optional[_Mapping[str, float]] = ..., endpoints: _Optional[_Mapping[str, str]] = ..., trouble: _Optional[str] = ..., unreadable_why: _Optional[str] = ..., preparing: _Optional[str] = ..., preparing_since_s: _Optional[float] = ...) -> None: ...

class Parts(_message.Message):
    __slots__ = ("attempt", "parts")
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    attempt: int
    parts: _containers.RepeatedCompositeFieldContainer[Part]
    def __init__(self, attempt: _Optional[int] = ..., parts: _Optional[_Iterable[_Union[Part, _Mapping]]] = ...) -> None: ...

class Part(_message.Message):
    __slots__ = ("key", "size_bytes", "digest")
    KEY_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    key: str
    size_bytes: int
    digest: str
    def __init__(self, key: _Optional[str] = ..., size_bytes: _Optional[int] = ..., digest: _Optional[str] = ...) -> None: ...

class Exit(_message.Message):
    __slots__ = ("kind", "detail")
    KIND_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    kind: ExitKind
    detail: str
    def __init__(self, kind: _Optional[_Union[ExitKind, str]] = ..., detail: _Optional[str] = ...) -> None: ...

class ObserveRequest(_message.Message):
    __slots__ = ("protocol", "job")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    job: str
    def __init__(self, protocol: _Optional[int] = ..., job: _Optional[str] = ...) -> None: ...

class Observation(_message.Message):
    __slots__ = ("term", "nodes", "unheard")
    TERM_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    UNHEARD_FIELD_NUMBER: _ClassVar[int]
    term: int
    nodes: _containers.RepeatedCompositeFieldContainer[NodeFacts]
    unheard: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, term: _Optional[int] = ..., nodes: _Optional[_Iterable[_Union[NodeFacts, _Mapping]]] = ..., unheard: _Optional[_Iterable[str]] = ...) -> None: ...

class NodesRequest(_message.Message):
    __slots__ = ("protocol",)
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    def __init__(self, protocol: _Optional[int] = ...) -> None: ...

class NodesReply(_message.Message):
    __slots__ = ("term", "nodes")
    TERM_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    term: int
    nodes: _containers.RepeatedCompositeFieldContainer[NodeSeen]
    def __init__(self, term: _Optional[int] = ..., nodes: _Optional[_Iterable[_Union[NodeSeen, _Mapping]]] = ...) -> None: ...

class NodeSeen(_message.Message):
    __slots__ = ("node", "since_ms", "connected", "facts")
    NODE_FIELD_NUMBER: _ClassVar[int]
    SINCE_MS_FIELD_NUMBER: _ClassVar[int]
    CONNECTED_FIELD_NUMBER: _ClassVar[int]
    FACTS_FIELD_NUMBER: _ClassVar[int]
    node: str
    since_ms: int
    connected: bool
    facts: NodeFacts
    def __init__(self, node: _Optional[str] = ..., since_ms: _Optional[int] = ..., connected: _Optional[bool] = ..., facts: _Optional[_Union[NodeFacts, _Mapping]] = ...) -> None: ...

class LogsRequest(_message.Message):
    __slots__ = ("protocol", "job", "worker", "outputs", "lines", "follow", "since_s", "known")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    LINES_FIELD_NUMBER: _ClassVar[int]
    FOLLOW_FIELD_NUMBER: _ClassVar[int]
    SINCE_S_FIELD_NUMBER: _ClassVar[int]
    KNOWN_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    job: str
    worker: int
    outputs: _containers.RepeatedScalarFieldContainer[Output]
    lines: int
    follow: bool
    since_s: float
    known: _containers.RepeatedCompositeFieldContainer[LogsPosition]
    def __init__(self, protocol: _Optional[int] = ..., job: _Optional[str] = ..., worker: _Optional[int] = ..., outputs: _Optional[_Iterable[_Union[Output, str]]] = ..., lines: _Optional[int] = ..., follow: _Optional[bool] = ..., since_s: _Optional[float] = ..., known: _Optional[_Iterable[_Union[LogsPosition, _Mapping]]] = ...) -> None: ...

class LogsPosition(_message.Message):
    __slots__ = ("worker", "output", "file", "offset")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_FIELD_NUMBER: _ClassVar[int]
    FILE_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    worker: int
    output: Output
    file: int
    offset: int
    def __init__(self, worker: _Optional[int] = ..., output: _Optional[_Union[Output, str]] = ..., file: _Optional[int] = ..., offset: _Optional[int] = ...) -> None: ...

class LogsPiece(_message.Message):
    __slots__ = ("position", "data", "lost")
    POSITION_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    LOST_FIELD_NUMBER: _ClassVar[int]
    position: LogsPosition
    data: bytes
    lost: bool
    def __init__(self, position: _Optional[_Union[LogsPosition, _Mapping]] = ..., data: _Optional[bytes] = ..., lost: _Optional[bool] = ...) -> None: ...
