"""From the bytes of a request to the operation that it asks for.

Writes become values of `transactions`; the log keeps the bytes, and recovery decodes them with
the same functions. Reads become small named tuples that the server answers at once.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final, NamedTuple

from holdfast.coordination.embedded import protocol as p
from holdfast.coordination.embedded.jute import INT, JuteReader, Malformed, encode_string
from holdfast.coordination.embedded.transactions import (
    ACL,
    CheckVersion,
    CloseSession,
    Create,
    Delete,
    DeleteContainer,
    Multi,
    OpenSession,
    Operation,
    Part,
    Reject,
    SetACL,
    SetData,
)

# Operations in one multi; the frame's size bounds it too.
MULTI_OPERATIONS_MAX: Final = 10_000

_CONNECT: Final = struct.Struct("!iqiq")


class Connect(NamedTuple):
    """The first message of a connection."""

    protocol_version: int
    last_zxid_seen: int
    timeout_ms: int
    session: int
    password: bytes
    read_only: bool | None  # None: an old client that does not send it and must not receive it


class Watches(NamedTuple):
    """What a client watched before it lost its connection, and up to when it was informed."""

    relative_zxid: int
    data: list[str]
    exist: list[str]
    child: list[str]
    persistent: list[str]
    recursive: list[str]


def decode_connect(frame: bytes) -> Connect:
    try:
        version, seen, timeout_ms, session = _CONNECT.unpack_from(frame)
    except struct.error:
        raise Malformed("the message is too short to open a session") from None
    reader = JuteReader(frame, _CONNECT.size)
    password = reader.buffer() or b""
    read_only = reader.flag() if reader.at < len(frame) else None
    return Connect(version, seen, timeout_ms, session, password, read_only)


def _acl(reader: JuteReader) -> tuple[ACL, ...] | None:
    return tuple(
        ACL(reader.number(), reader.string(), reader.string()) for _ in range(reader.count(12))
    )


_TTL_FLAGS: Final = (p.FLAG_TTL, p.FLAG_TTL_SEQUENTIAL)
_WITH_STAT_IN_MULTI: Final = (p.FLAG_CONTAINER, *_TTL_FLAGS)
# What a createContainer makes: a container in any case, numbered if the flags say so.
_AS_CONTAINER: Final = {
    p.FLAG_PERSISTENT: p.FLAG_CONTAINER,
    p.FLAG_EPHEMERAL: p.FLAG_CONTAINER,
    p.FLAG_SEQUENTIAL: p.FLAG_CONTAINER_SEQUENTIAL,
    p.FLAG_EPHEMERAL_SEQUENTIAL: p.FLAG_CONTAINER_SEQUENTIAL,
}


def _create_fields(reader: JuteReader) -> Create:
    path, data, acl, flags = reader.string(), reader.buffer(), _acl(reader), reader.number()
    if flags not in p.CREATE_FLAGS:
        flags = p.FLAG_UNKNOWN
    return Create(path, data, acl, flags, ttl_ms=-1, wants_stat=False)


def _create(reader: JuteReader) -> Create:
    # By itself, the operation decides whether it is a container; the flag is ignored.
    create = _create_fields(reader)
    if create.flags == p.FLAG_CONTAINER:
        return create._replace(flags=p.FLAG_PERSISTENT)
    return create


def _create2(reader: JuteReader) -> Create:
    return _create(reader)._replace(wants_stat=True)


def _create_container(reader: JuteReader) -> Create:
    create = _create_fields(reader)
    return create._replace(flags=_AS_CONTAINER.get(create.flags, create.flags), wants_stat=True)


def _create_ttl(reader: JuteReader) -> Create:
    create = _create_fields(reader)
    return create._replace(ttl_ms=reader.long(), wants_stat=True)


def _create_in_multi(reader: JuteReader) -> Create | Reject:
    # Inside a multi the flags decide, whatever the operation: this is how ZooKeeper reads it.
    create = _create_fields(reader)
    if create.flags in _TTL_FLAGS:
        return Reject(p.MARSHALLING_ERROR)
    return create._replace(wants_stat=create.flags in _WITH_STAT_IN_MULTI)


def _create_ttl_in_multi(reader: JuteReader) -> Create:
    create = _create_fields(reader)
    ttl_ms = reader.long()
    if create.flags in _TTL_FLAGS:
        create = create._replace(ttl_ms=ttl_ms)
    return create._replace(wants_stat=create.flags in _WITH_STAT_IN_MULTI)


def _delete(reader: JuteReader) -> Delete:
    return Delete(reader.string(), reader.number())


def _set_data(reader: JuteReader) -> SetData:
    return SetData(reader.string(), reader.buffer(), reader.number())


def _set_acl(reader: JuteReader) -> SetACL:
    return SetACL(reader.string(), _acl(reader), reader.number())


def _check(reader: JuteReader) -> CheckVersion:
    return CheckVersion(reader.string(), reader.number())


_IN_MULTI: Final[dict[int, Callable[[JuteReader], Part]]] = {
    p.CREATE: _create_in_multi,
    p.CREATE2: _create_in_multi,
    p.CREATE_CONTAINER: _create_in_multi,
    p.CREATE_TTL: _create_ttl_in_multi,
    p.DELETE: _delete,
    p.SET_DATA: _set_data,
    p.CHECK: _check,
}


def _multi(reader: JuteReader) -> Multi:
    operations: list[Part] = []
    while True:
        kind, done, _error = reader.number(), reader.flag(), reader.number()
        if done:
            return Multi(tuple(operations))
        decode = _IN_MULTI.get(kind)
        if decode is None:
            raise Malformed(f"operation {kind} inside a multi")
        if len(operations) >= MULTI_OPERATIONS_MAX:
            raise Malformed(f"a multi of more than {MULTI_OPERATIONS_MAX} operations")
        operations.append(decode(reader))


_WRITES: Final[dict[int, Callable[[JuteReader], Operation]]] = {
    p.CREATE: _create,
    p.CREATE2: _create2,
    p.CREATE_CONTAINER: _create_container,
    p.CREATE_TTL: _create_ttl,
    p.DELETE: _delete,
    p.SET_DATA: _set_data,
    p.CHECK: _check,
    p.SET_ACL: _set_acl,
    p.MULTI: _multi,
    p.CREATE_SESSION: lambda reader: OpenSession(reader.number()),
    p.CLOSE_SESSION: lambda reader: CloseSession(),
    p.DELETE_CONTAINER: lambda reader: DeleteContainer(reader.string()),
    p.ERROR_RESULT: lambda reader: Reject(reader.number()),
}

# What a client may ask for that changes the tree.
WRITE_OPCODES: Final = frozenset({*_IN_MULTI, p.SET_ACL, p.MULTI, p.CLOSE_SESSION})


def read_write(opcode: int, body: bytes) -> Operation:
    """The operation that a client's request asks for.

    What cannot be read becomes a `Reject`: ZooKeeper gives it a zxid, too.
    """
    try:
        return decode_write(opcode, body)
    except Malformed:
        return Reject(p.MARSHALLING_ERROR)


def is_reconfig(body: bytes) -> bool:
    """Whether this is a readable request to change the ensemble."""
    reader = JuteReader(body)
    try:
        for _ in ("joining", "leaving", "members"):
            reader.string()
        reader.long()
    except Malformed:
        return False
    return True


def decode_write(opcode: int, body: bytes) -> Operation:
    """The operation in a log record's body; `Malformed` if there is none."""
    decode = _WRITES.get(opcode)
    if decode is None:
        raise Malformed(f"operation {opcode} does not write")
    return decode(JuteReader(body))


def open_session_body(timeout_ms: int) -> bytes:
    return INT.pack(timeout_ms)


def set_acl_body(path: str, acl: tuple[ACL, ...]) -> bytes:
    entries = (
        INT.pack(entry.perms) + encode_string(entry.scheme) + encode_string(entry.id)
        for entry in acl
    )
    return encode_string(path) + INT.pack(len(acl)) + b"".join(entries) + INT.pack(-1)


def delete_container_body(path: str) -> bytes:
    return encode_string(path)


def reject_body(error: int) -> bytes:
    return INT.pack(error)


def decode_watches(body: bytes, *, with_persistent: bool) -> Watches:
    reader = JuteReader(body)
    relative_zxid = reader.long()
    data, exist, child = reader.strings(), reader.strings(), reader.strings()
    if not with_persistent:
        return Watches(relative_zxid, data, exist, child, [], [])
    return Watches(relative_zxid, data, exist, child, reader.strings(), reader.strings())


def decode_multi_read(body: bytes) -> list[tuple[int, str]]:
    """The (operation, path) pairs of a multi that only reads."""
    reader = JuteReader(body)
    reads: list[tuple[int, str]] = []
    while True:
        kind, done, _error = reader.number(), reader.flag(), reader.number()
        if done:
            return reads
        if kind not in (p.GET_DATA, p.GET_CHILDREN):
            raise Malformed(f"operation {kind} inside a multi that reads")
        if len(reads) >= MULTI_OPERATIONS_MAX:
            raise Malformed(f"a multi of more than {MULTI_OPERATIONS_MAX} operations")
        path = reader.string()
        reader.flag()  # a watch, which ZooKeeper ignores here
        reads.append((kind, path))
