"""What both sides of a call agree on: names, options, and how an error travels.

Calls carry raw bytes, and `parsed` reads them: so a malformed message gets an answer that says so,
instead of the bare `INTERNAL` that gRPC would give. A refusal is a status code, its sentence as the
details, and the same in trailing metadata, from which the other side makes the error again.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NoReturn, TypeVar

import grpc
import grpc.aio
from google.protobuf.message import DecodeError, Message

from holdfast.wire import names
from holdfast.wire.errors import (
    Conflict,
    Full,
    HoldfastError,
    Refused,
    TimedOut,
    Unavailable,
)
from holdfast.wire.limits import RPC_KEEPALIVE_S, RPC_MESSAGE_BYTES_MAX
from holdfast.wire.values import malformed

# A peer that does not answer HTTP/2 pings for so long is gone.
RPC_KEEPALIVE_TIMEOUT_S: Final = 5.0

# Raised when an older side would misunderstand a newer one.
PROTOCOL: Final = 3
JOIN: Final = "/holdfast.v1.Joining/Join"
STAND: Final = "/holdfast.v1.Joining/Stand"
ATTACH: Final = "/holdfast.v1.Agents/Attach"
RENEW: Final = "/holdfast.v1.Agents/Renew"
OBSERVE: Final = "/holdfast.v1.People/Observe"
NODES: Final = "/holdfast.v1.People/Nodes"
# Metadata of every call: the join token or the member token.
TOKEN_KEY: Final = "holdfast-token"  # noqa: S105 (the key, not a token)
_ERROR_KEY: Final = "holdfast-error-bin"
# Headers have eight kilobytes for everything.
_SENTENCE_CHARACTERS_MAX: Final = 600
# What a read gives at the end of a stream.
EOF: Final[object] = grpc.aio.EOF  # type: ignore[attr-defined]  # the stubs lack it
LEADER_PATH: Final = names.LEADER_PATH
CONTACT_PATH: Final = names.CONTACT_PATH
NODES_PATH: Final = names.NODES_PATH

_KINDS: Final[dict[str, type[HoldfastError]]] = {
    kind.__name__: kind for kind in (Conflict, Full, Refused, TimedOut, Unavailable)
}
_RETRIED: Final = (
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.ABORTED,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.INTERNAL,  # a write that met the end of its stream
)

OPTIONS: Final[Sequence[tuple[str, Any]]] = (
    ("grpc.max_receive_message_length", RPC_MESSAGE_BYTES_MAX),
    ("grpc.max_send_message_length", RPC_MESSAGE_BYTES_MAX),
    ("grpc.keepalive_time_ms", int(RPC_KEEPALIVE_S * 1000)),
    ("grpc.keepalive_timeout_ms", int(RPC_KEEPALIVE_TIMEOUT_S * 1000)),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", int(RPC_KEEPALIVE_S * 500)),
)
# A server with a new certificate takes the port over while the old one still has it.
SERVER_OPTIONS: Final[Sequence[tuple[str, Any]]] = (*OPTIONS, ("grpc.so_reuseport", 1))


M = TypeVar("M", bound=Message)


def parsed(kind: type[M], raw: bytes) -> M:
    """The message in these bytes; `Refused` if they are not one."""
    message = kind()
    try:
        message.ParseFromString(raw)
    except DecodeError as error:
        raise malformed(f"{len(raw)} bytes are no {kind.__name__}", str(error)) from error
    return message


@dataclass(frozen=True, slots=True)
class Contact:
    """Where the leader of a term listens for agents."""

    term: int
    address: str

    def value(self) -> dict[str, Any]:
        return {"term": self.term, "address": self.address}


def contact_from(value: object) -> Contact | None:
    """The contact in what the coordination plane holds; None if there is none yet."""
    if value is None:
        return None
    match value:
        case {"term": int(term), "address": str(address)}:
            return Contact(term, address)
        case _:
            raise malformed(f"{CONTACT_PATH} has {value!r}")


class Denied(Exception):
    """The end of a call, with its status code: to be raised by whoever serves it."""

    def __init__(self, code: grpc.StatusCode, error: HoldfastError) -> None:
        super().__init__(str(error))
        self.code = code
        self.error = error


async def deny(context: grpc.aio.ServicerContext[Any, Any], denied: Denied) -> NoReturn:
    """End the call with this refusal."""
    error = denied.error
    name = type(error).__name__
    body = {"kind": name if name in _KINDS else Refused.__name__}
    body |= {key: _short(getattr(error, key)) for key in ("what", "why", "fix")}
    packed = json.dumps(body).encode()
    details = _short(str(error))
    await context.abort(denied.code, details, ((_ERROR_KEY, packed),))


def error_from(failed: grpc.aio.AioRpcError, address: str) -> HoldfastError:
    """The error that the other side meant, or what a failed call means without its word."""
    packed = _packed(failed)
    if packed is not None:
        return _unpacked(packed, failed.code())
    kind = Unavailable if failed.code() in _RETRIED else Refused
    unreachable = failed.code() is grpc.StatusCode.UNAVAILABLE
    said = "does not answer" if unreachable else "did not answer as one"
    return kind(
        f"the coordinator at {address} {said}",
        why=f"{failed.code().name}: {_short(failed.details() or '')}",
        fix="look whether it runs, can be reached, and is of this cluster; it is tried again",
    )


def explains_itself(failed: grpc.aio.AioRpcError) -> bool:
    """Whether the other side has said why."""
    return _packed(failed) is not None


def _packed(failed: grpc.aio.AioRpcError) -> bytes | None:
    trailing: Any = failed.trailing_metadata() or ()  # pairs; the stubs have one pair only
    for key, value in trailing:
        if key == _ERROR_KEY and isinstance(value, bytes):
            return value
    return None


def _unpacked(packed: bytes, code: grpc.StatusCode) -> HoldfastError:
    try:
        body = json.loads(packed)
        kind = _KINDS[body["kind"]]
        return kind(str(body["what"]), why=str(body["why"]), fix=str(body["fix"]))
    except (ValueError, KeyError, TypeError):
        return malformed(f"a refusal with status {code.name}")


def _short(words: str) -> str:
    return words[:_SENTENCE_CHARACTERS_MAX]


def token_in(context: grpc.aio.ServicerContext[Any, Any]) -> str:
    """The token that came with a call; empty if none did."""
    for key, value in context.invocation_metadata() or ():
        if key == TOKEN_KEY and isinstance(value, str):
            return value
    return ""


def check_protocol(protocol: int) -> None:
    """`Denied` unless the other side speaks as we do."""
    if protocol == PROTOCOL:
        return
    older = protocol < PROTOCOL
    raise Denied(
        grpc.StatusCode.FAILED_PRECONDITION,
        Refused(
            f"this coordinator speaks protocol {PROTOCOL}, and the agent {protocol}",
            why=f"the {'agent' if older else 'coordinator'} is of an older version of holdfast",
            fix=f"upgrade holdfast on the {'agent' if older else 'coordinator'}'s machine",
        ),
    )
