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

class Output(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    OUTPUT_UNSPECIFIED: _ClassVar[Output]
    OUTPUT_OUT: _ClassVar[Output]
    OUTPUT_ERR: _ClassVar[Output]
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
    __slots__ = ("hello", "refusal", "snapshot")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    hello: Hello
    refusal: Refusal
    snapshot: bytes
    def __init__(self, hello: _Optional[_Union[Hello, _Mapping]] = ..., refusal: _Optional[_Union[Refusal, _Mapping]] = ..., snapshot: _Optional[bytes] = ...) -> None: ...

class ToAgent(_message.Message):
    __slots__ = ("welcome", "orders")
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    ORDERS_FIELD_NUMBER: _ClassVar[int]
    welcome: Welcome
    orders: Orders
    def __init__(self, welcome: _Optional[_Union[Welcome, _Mapping]] = ..., orders: _Optional[_Union[Orders, _Mapping]] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("protocol", "cluster", "node", "session", "process", "serial")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    PROCESS_FIELD_NUMBER: _ClassVar[int]
    SERIAL_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    cluster: str
    node: str
    session: str
    process: str
    serial: int
    def __init__(self, protocol: _Optional[int] = ..., cluster: _Optional[str] = ..., node: _Optional[str] = ..., session: _Optional[str] = ..., process: _Optional[str] = ..., serial: _Optional[int] = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ("term", "steps_s")
    TERM_FIELD_NUMBER: _ClassVar[int]
    STEPS_S_FIELD_NUMBER: _ClassVar[int]
    term: int
    steps_s: float
    def __init__(self, term: _Optional[int] = ..., steps_s: _Optional[float] = ...) -> None: ...

class Orders(_message.Message):
    __slots__ = ("term", "session", "steps_s", "orders")
    TERM_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    STEPS_S_FIELD_NUMBER: _ClassVar[int]
    ORDERS_FIELD_NUMBER: _ClassVar[int]
    term: int
    session: str
    steps_s: float
    orders: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, term: _Optional[int] = ..., session: _Optional[str] = ..., steps_s: _Optional[float] = ..., orders: _Optional[_Iterable[bytes]] = ...) -> None: ...

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

class ObserveRequest(_message.Message):
    __slots__ = ("protocol", "job")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    job: str
    def __init__(self, protocol: _Optional[int] = ..., job: _Optional[str] = ...) -> None: ...

class Observation(_message.Message):
    __slots__ = ("term", "unreported", "nodes")
    TERM_FIELD_NUMBER: _ClassVar[int]
    UNREPORTED_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    term: int
    unreported: _containers.RepeatedScalarFieldContainer[str]
    nodes: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, term: _Optional[int] = ..., unreported: _Optional[_Iterable[str]] = ..., nodes: _Optional[_Iterable[bytes]] = ...) -> None: ...

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
    facts: bytes
    def __init__(self, node: _Optional[str] = ..., since_ms: _Optional[int] = ..., connected: _Optional[bool] = ..., facts: _Optional[bytes] = ...) -> None: ...

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
