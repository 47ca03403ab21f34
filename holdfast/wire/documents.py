"""Values as documents: one spelling of each, for the nodes of the coordination plane.

JSON with sorted keys and a format number; the fields of a dataclass by their names. What is not
understood (another format, a value of another kind) is `Corrupt`, and the message names the path. A
key that is missing has its default, if it has one, and one that is not known is passed over: so a
field can be added without a new format, and machines of both versions read what the other has
written (docs/upgrades.md). A kind whose fields were called otherwise has `of_older`, which gives a
document its present names. Whoever writes a document anew writes the fields that it knows. A change
that an older reader must not pass over is a new format. What people write is read by those who
refuse what they do not know (`control.jobfile`).
"""

from __future__ import annotations

import json
import threading
from functools import cache
from typing import Any, Final, TypeVar

import msgspec

from holdfast.wire.errors import Corrupt, Usage

FORMAT: Final = 1
# What reading raises for bytes that are not what they should be.
NOT_READ: Final = (msgspec.MsgspecError, ValueError, RecursionError)

T = TypeVar("T")

# Not `msgspec.json.encode`: that one writes null for a number that is none.
_written: Final = json.JSONEncoder(
    sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
).encode


class _Head(msgspec.Struct):
    format: Any = None


_head: Final = msgspec.json.Decoder(_Head).decode


# When msgspec sees a kind first, it notes at its class what it has found out so far. A thread that
# comes to it before that is finished reads what is not there yet, and the process dies (SIGSEGV).
_one_at_a_time: Final = threading.Lock()


@cache
def prepared(kind: Any) -> msgspec.json.Decoder[Any]:
    """The decoder of a kind. After it, `msgspec.convert` to that kind is safe in every thread."""
    with _one_at_a_time:
        return msgspec.json.Decoder(kind)


def to_bytes(value: Any) -> bytes:
    """A dataclass as the bytes of its document."""
    return encoded(_plain(value))


def from_bytes(path: str, kind: type[T], data: bytes) -> T:
    """The value that `to_bytes` wrote; `Corrupt`, naming the path, if it is not one of `kind`."""
    try:
        _check_format(path, _head(data).format)
        if hasattr(kind, "of_older"):
            return read(path, kind, parsed(path, data))
        value: T = prepared(kind).decode(data)  # type: ignore[arg-type]  # a type can be hashed
    except NOT_READ as error:
        raise corrupt(path, str(error)) from error
    return value


def encoded(plain: Any) -> bytes:
    try:
        return _written(plain).encode()
    except ValueError as error:  # a number that is none, or half of a character
        raise Usage(
            "a fact cannot be written down", why=str(error), fix="check its numbers and its text"
        ) from error


def parsed(path: str, data: bytes) -> Any:
    try:
        return json.loads(data)
    except ValueError as error:
        raise corrupt(path, f"it is not JSON: {error}") from error


def document(value: Any) -> dict[str, Any]:
    """A dataclass as a plain document, for `Config` and for `from_document`: equal to what is read
    of it again."""
    found: dict[str, Any] = _as_read(_plain(value))
    return found


def _plain(value: Any) -> dict[str, Any]:
    return {"format": FORMAT, **msgspec.to_builtins(value, str_keys=True)}


def _as_read(plain: Any) -> Any:
    """JSON has no tuples."""
    if isinstance(plain, dict):
        return {key: _as_read(each) for key, each in plain.items()}
    return [_as_read(each) for each in plain] if isinstance(plain, list | tuple) else plain


def from_document(path: str, kind: type[T], plain: Any) -> T:
    """The value of `kind` in a plain document; `Corrupt`, naming the path, if it is none."""
    _check_format(path, plain.get("format") if isinstance(plain, dict) else None)
    return read(path, kind, plain)


def read(path: str, kind: type[T], plain: Any) -> T:
    """`plain` as a value of `kind`; `Corrupt` if it is not one."""
    try:
        of_older = getattr(kind, "of_older", None)
        if of_older is not None and isinstance(plain, dict):
            plain = of_older(plain)
        prepared(kind)  # type: ignore[arg-type]  # a type can be hashed
        return msgspec.convert(plain, kind, str_keys=True)
    except NOT_READ as error:
        raise corrupt(path, str(error)) from error


def _check_format(path: str, found: object) -> None:
    if found is None:
        raise corrupt(path, "it is not a document of ours")
    if found != FORMAT:
        raise corrupt(path, f"its format is {found!r}, and this version knows {FORMAT}")


def corrupt(path: str, why: str) -> Corrupt:
    return Corrupt(
        f"{path} does not hold what this version of holdfast can read",
        why=why,
        fix="use the version that wrote it, or restore the node from a backup",
    )


def renamed(plain: dict[str, Any], **names: str) -> dict[str, Any]:
    """The document with these keys called otherwise, `old="new"`, where it has the old one."""
    return {names.get(key, key): value for key, value in plain.items()}
