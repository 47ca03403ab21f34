"""From what happened to the bytes that say so."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final

from holdfast.coordination.embedded import protocol as p
from holdfast.coordination.embedded.jute import INT, encode_string
from holdfast.coordination.embedded.transactions import (
    ACL,
    AuthIdentity,
    Changed,
    Create,
    Created,
    Delete,
    FailedOperation,
    Multi,
    Outcome,
    Part,
    Result,
    SetData,
    Stat,
)

_HEADER: Final = struct.Struct("!iiqi")  # length of what follows, xid, zxid, error
_HEADER_BYTES: Final = 16
_CONNECTED: Final = struct.Struct("!iiqi16s")
_SUB_HEADER: Final = struct.Struct("!i?i")
_EVENT: Final = struct.Struct("!ii")
_STAT: Final = struct.Struct("!qqqqiiiqiiq")
_END_OF_MULTI: Final = _SUB_HEADER.pack(-1, True, -1)
_NOBODY: Final = bytes(16)


def reply(xid: int, zxid: int, error: int, body: bytes = b"") -> bytes:
    """One framed answer."""
    return _HEADER.pack(_HEADER_BYTES + len(body), xid, zxid, error) + body


def connected(timeout_ms: int, session: int, password: bytes, *, with_read_only: bool) -> bytes:
    """The answer to `Connect`; old clients do not know of its last field, `readOnly`."""
    body = _CONNECTED.pack(0, timeout_ms, session, 16, password)
    if with_read_only:
        body += b"\0"
    return INT.pack(len(body)) + body


def session_refused(*, with_read_only: bool) -> bytes:
    """What a client with an expired session or a wrong password hears before the end."""
    return connected(0, 0, _NOBODY, with_read_only=with_read_only)


def event(kind: int, path: str) -> bytes:
    """A watch event. Its zxid is always -1."""
    return reply(
        p.XID_WATCH_EVENT, -1, 0, _EVENT.pack(kind, p.STATE_SYNC_CONNECTED) + encode_string(path)
    )


def stat(value: Stat) -> bytes:
    return _STAT.pack(*value)


def strings(values: Iterable[str]) -> bytes:
    parts = [encode_string(value) for value in values]
    return INT.pack(len(parts)) + b"".join(parts)


def acls(entries: Iterable[ACL]) -> bytes:
    parts = [
        INT.pack(entry.perms) + encode_string(entry.scheme) + encode_string(entry.id)
        for entry in entries
    ]
    return INT.pack(len(parts)) + b"".join(parts)


def identities(values: Iterable[AuthIdentity]) -> bytes:
    parts = [encode_string(value.scheme) + encode_string(value.id) for value in values]
    return INT.pack(len(parts)) + b"".join(parts)


def _result(result: Result) -> bytes:
    if isinstance(result, Created):
        path = encode_string(result.path)
        return path if result.stat is None else path + stat(result.stat)
    if isinstance(result, Changed):
        return stat(result.stat)
    return b""


def _sub_type(operation: Part) -> int:
    if isinstance(operation, Create):
        return p.CREATE2 if operation.wants_stat else p.CREATE
    if isinstance(operation, Delete):
        return p.DELETE
    return p.SET_DATA if isinstance(operation, SetData) else p.CHECK


def failed_part(error: int) -> bytes:
    """One operation of a multi that did not happen."""
    return _SUB_HEADER.pack(p.ERROR_RESULT, False, error) + INT.pack(error)


def part(kind: int, body: bytes) -> bytes:
    """One operation of a multi that happened."""
    return _SUB_HEADER.pack(kind, False, 0) + body


def parts(encoded: Iterable[bytes]) -> bytes:
    """The body of a multi's answer."""
    return b"".join(encoded) + _END_OF_MULTI


def outcome_body(operation: object, outcome: Outcome) -> bytes:
    """The body that answers a write."""
    if isinstance(operation, Multi):
        if outcome.error:
            return b""
        return parts(
            failed_part(result.error)
            if isinstance(result, FailedOperation)
            else part(_sub_type(asked), _result(result))
            for asked, result in zip(operation.operations, outcome.results, strict=True)
        )
    return _result(outcome.results[0]) if outcome.results else b""
