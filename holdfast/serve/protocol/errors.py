"""What an error looks like outside: a status and a body for REST, a code for gRPC."""

from __future__ import annotations

from typing import Final

import grpc
import msgspec

from holdfast.serve import settings
from holdfast.serve.records import ServiceSpec
from holdfast.wire.errors import (
    Cancelled,
    Full,
    HoldfastError,
    Missing,
    NotHere,
    Refused,
    TimedOut,
    TooLarge,
    Unavailable,
    Usage,
)

# The first that fits counts: the finer class stands before the coarser one.
_STATUS: Final[tuple[tuple[type[HoldfastError], int, grpc.StatusCode], ...]] = (
    (TooLarge, 413, grpc.StatusCode.RESOURCE_EXHAUSTED),
    (Usage, 400, grpc.StatusCode.INVALID_ARGUMENT),
    (Missing, 404, grpc.StatusCode.NOT_FOUND),
    (Refused, 403, grpc.StatusCode.PERMISSION_DENIED),
    (NotHere, 503, grpc.StatusCode.UNAVAILABLE),
    # UNAVAILABLE, not RESOURCE_EXHAUSTED: whoever asks may try again later.
    (Full, 503, grpc.StatusCode.UNAVAILABLE),
    (Unavailable, 503, grpc.StatusCode.UNAVAILABLE),
    (Cancelled, 503, grpc.StatusCode.UNAVAILABLE),
    (TimedOut, 504, grpc.StatusCode.DEADLINE_EXCEEDED),
)


def status_of(error: BaseException) -> int:
    """The HTTP status of an error. What nobody expected, and a model's own failure, are 500."""
    return next((status for kind, status, _ in _STATUS if isinstance(error, kind)), 500)


def code_of(error: BaseException) -> grpc.StatusCode:
    """The gRPC status of an error."""
    return next(
        (code for kind, _, code in _STATUS if isinstance(error, kind)), grpc.StatusCode.INTERNAL
    )


def sentence(error: BaseException) -> str:
    """What a client is told. Of an error that nobody expected only its kind: its words may hold
    what is not the client's business; they are in the log."""
    if not isinstance(error, HoldfastError):
        return f"the replica failed: {type(error).__name__}; its log says more"
    return str(error)


def too_large(service: ServiceSpec, length: int | None) -> TooLarge:
    """A body, or a message, of more bytes than the service takes; None: nobody knows how many."""
    most = service.limits.body_bytes_max
    enough = settings.size(max(2 * most, length or 0))
    return TooLarge(
        f"the body has more than {most} bytes",
        why="that is the service's limit" + ("" if length is None else f", and it has {length}"),
        fix=f"send less at once, or: {settings.command(service.name, settings.BODY, enough)}",
    )


def body_of(error: BaseException) -> bytes:
    """The body of an error over REST: `{"error": "..."}`."""
    return msgspec.json.encode({"error": sentence(error)})
