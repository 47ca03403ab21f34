"""Values as documents: one spelling of each, for the nodes of the coordination plane.

JSON with sorted keys and a format number. What is not understood (another format, a value of
another kind) is `Corrupt`, and the message names the path. A key that is missing has its default,
if it has one, and one that is not known is passed over: so a field can be added without a new
format, and machines of both versions read what the other has written. Whoever writes a document
anew writes the fields that it knows. A change that an older reader must not pass over is a new
format. What people write is read by those who refuse what they do not know (`control.jobfile`).
"""

from __future__ import annotations

import json
import types
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from functools import cache
from typing import Any, Final, TypeVar, Union, get_args, get_origin, get_type_hints

from holdfast.wire.errors import Corrupt, Usage

FORMAT: Final = 1

T = TypeVar("T")


def to_bytes(value: Any) -> bytes:
    """A dataclass as the bytes of its document."""
    return encoded(document(value))


def from_bytes(path: str, kind: type[T], data: bytes) -> T:
    """The value that `to_bytes` wrote; `Corrupt`, naming the path, if it is not one of `kind`."""
    return from_document(path, kind, parsed(path, data))


def encoded(plain: Any) -> bytes:
    try:
        text = json.dumps(
            plain, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
        )
        return text.encode()
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
    """A dataclass as a plain document, for `Config` and for `from_document`."""
    return {"format": FORMAT, **plain_of(value)}


def from_document(path: str, kind: type[T], plain: Any) -> T:
    value: T = read(path, kind, opened(path, plain, None))
    return value


def opened(path: str, plain: Any, known: Sequence[str] | None) -> dict[str, Any]:
    """The body of a document of our format; with all of the `known` keys, if given."""
    if not isinstance(plain, dict) or "format" not in plain:
        raise corrupt(path, "it is not a document of ours")
    body = dict(plain)
    found = body.pop("format")
    if found != FORMAT:
        raise corrupt(path, f"its format is {found!r}, and this version knows {FORMAT}")
    missing = sorted(set(known or ()) - set(body))
    if missing:
        raise corrupt(path, f"these keys are missing: {', '.join(missing)}")
    return body


def known_fields(kind: type, plain: Mapping[str, Any]) -> dict[str, Any]:
    """Of `plain` what `kind`, a dataclass or a named tuple, has a field for."""
    names = [each.name for each in fields(kind)] if is_dataclass(kind) else kind._fields  # type: ignore[attr-defined]
    return {name: plain[name] for name in names if name in plain}


def plain_of(value: Any) -> Any:
    """A value as JSON knows it."""
    if isinstance(value, Enum):
        return value.value
    if is_dataclass(value):
        return {field.name: plain_of(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain_of(held) for key, held in value.items()}
    if isinstance(value, tuple | list):
        return [plain_of(held) for held in value]
    return value


@cache
def _kinds(kind: type) -> dict[str, tuple[Any, bool]]:
    """For each field its type, and whether it may be left out."""
    hints = get_type_hints(kind)
    return {
        field.name: (
            hints[field.name],
            field.default is not MISSING or field.default_factory is not MISSING,
        )
        for field in fields(kind)
    }


def read(path: str, kind: Any, plain: Any) -> Any:
    """`plain` as a value of `kind`; `Corrupt` if it is not one."""
    origin = get_origin(kind)
    if origin in (Union, types.UnionType):
        (inner,) = [each for each in get_args(kind) if each is not type(None)]
        return None if plain is None else read(path, inner, plain)
    if origin is tuple and isinstance(plain, list):
        return tuple(read(path, get_args(kind)[0], each) for each in plain)
    if origin is not None and origin is not tuple and isinstance(plain, dict):
        key_kind, value_kind = get_args(kind)
        return {
            _key(path, key_kind, key): read(path, value_kind, each) for key, each in plain.items()
        }
    if kind is Any:
        return plain
    if origin is None and issubclass(kind, Enum):
        try:
            return kind(plain)
        except ValueError as error:
            raise corrupt(path, str(error)) from error
    if origin is None and is_dataclass(kind) and isinstance(plain, dict):
        return _read_fields(path, kind, plain)
    if kind is float and type(plain) in (int, float):
        return float(plain)
    if origin is None and type(plain) is kind:
        return plain
    raise corrupt(path, f"{str(plain)[:80]!r} is not {getattr(kind, '__name__', kind)}")


def _key(path: str, kind: Any, text: str) -> str | int:
    """JSON has only texts as keys; a number among them is read back as one."""
    if kind is not int:
        return text
    if not text.isdecimal():
        raise corrupt(path, f"{text!r} is not a number")
    return int(text)


def _read_fields(path: str, kind: Any, plain: dict[str, Any]) -> Any:
    kinds = _kinds(kind)
    missing = sorted(
        name for name, (_, optional) in kinds.items() if not optional and name not in plain
    )
    if missing:
        raise corrupt(path, f"{kind.__name__}: missing keys {missing}")
    known = {name: held for name, held in plain.items() if name in kinds}
    return kind(**{name: read(path, kinds[name][0], held) for name, held in known.items()})


def rows(path: str, plain: Any, kinds: Sequence[type]) -> list[list[Any]]:
    """`plain` as rows of values of these kinds: what is many, and has short lines. What a newer
    version has added at the end of a row is passed over."""
    if not isinstance(plain, list):
        raise corrupt(path, "its rows are not a list")
    found = []
    for row in plain:
        if not isinstance(row, list) or len(row) < len(kinds):
            raise corrupt(path, f"a row does not have {len(kinds)} values: {str(row)[:80]}")
        found.append([read(path, kind, held) for kind, held in zip(kinds, row, strict=False)])
    return found


def corrupt(path: str, why: str) -> Corrupt:
    return Corrupt(
        f"{path} does not hold what this version of holdfast can read",
        why=why,
        fix="use the version that wrote it, or restore the node from a backup",
    )
