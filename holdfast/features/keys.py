"""The bytes of a key. Pure.

A canonical form: one key has one spelling, and no two keys share one, also of several parts. Its
bytes are ordered as its parts are, part by part. Numbers have a fixed width, big-endian with the
sign bit flipped. A string, or bytes, that something follows ends with 00 00, and each 00 in it
becomes 00 FF; the last part needs no end: so a key of one string is that string.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from numbers import Real
from typing import Any, Final

from holdfast.features.columns import ColumnType
from holdfast.wire.errors import Corrupt, TooLarge, Usage

# It is a name in every store, and travels with each read.
KEY_BYTES_MAX: Final = 1_024
# Not numbers with a fraction: two that print alike may differ, and NaN is not equal to itself.
KEY_BASES: Final = ("string", "int64", "int32", "bytes")

_WIDTHS: Final = {"int64": 8, "int32": 4}
_ZERO: Final = b"\x00"
_ESCAPED: Final = b"\x00\xff"
_END: Final = b"\x00\x00"


def encoded(names: Sequence[str], types: Sequence[ColumnType], values: Sequence[object]) -> bytes:
    """The bytes of one key; `Usage` if a part is missing, empty, or of another type."""
    if len(values) != len(types):
        raise Usage(
            f"a key has {len(types)} part{'s' if len(types) > 1 else ''}, not {len(values)}",
            why=f"it is made of {', '.join(names)}",
            fix="give the parts in this order",
        )
    last = len(types) - 1
    data = b"".join(
        _part(names[place], types[place].base, value, is_last=place == last)
        for place, value in enumerate(values)
    )
    if len(data) > KEY_BYTES_MAX:
        raise _too_large(len(data))
    return data


def encoded_all(
    names: Sequence[str], types: Sequence[ColumnType], columns: Sequence[Sequence[object]]
) -> list[bytes]:
    """The bytes of many keys, given part by part; the same as `encoded` of each."""
    # numpy's numbers would be looked at one by one.
    columns = [values.tolist() if hasattr(values, "tolist") else values for values in columns]
    last = len(types) - 1
    parts = []
    for place, (kind, values) in enumerate(zip(types, columns, strict=True)):
        found = _parts(kind.base, values, is_last=place == last)
        if found is None:  # something is wrong: one after the other
            return [encoded(names, types, each) for each in zip(*columns, strict=True)]
        parts.append(found)
    keys = parts[0] if not last else list(map(b"".join, zip(*parts, strict=True)))
    if (longest := max(map(len, keys), default=0)) > KEY_BYTES_MAX:
        raise _too_large(longest)
    return keys


def decoded(types: Sequence[ColumnType], data: bytes) -> tuple[object, ...]:
    """The key that has these bytes; `Corrupt` if none has."""
    found: list[object] = []
    at, last = 0, len(types) - 1
    for place, kind in enumerate(types):
        width = _WIDTHS.get(kind.base)
        if width is not None:
            piece, at = data[at : at + width], at + width
            if len(piece) != width:
                raise _damaged(data, "it ends within a number")
            found.append(int.from_bytes(piece, "big") - (1 << (8 * width - 1)))
            continue
        raw, at = (data[at:], len(data)) if place == last else _until_end(data, at)
        if not raw:
            raise _damaged(data, "a part of it is empty")
        found.append(_text(data, raw) if kind.base == "string" else bytes(raw))
    if at != len(data):
        raise _damaged(data, "there is more than its parts")
    return tuple(found)


def parsed(
    names: Sequence[str], types: Sequence[ColumnType], texts: Sequence[str]
) -> tuple[object, ...]:
    """The parts of a key as people write them: bytes in hexadecimal digits."""
    found: list[object] = []
    for name, kind, text in zip(names, types, texts, strict=False):
        try:
            if kind.base in _WIDTHS:
                found.append(int(text))
            else:
                found.append(text if kind.base == "string" else bytes.fromhex(text))
        except ValueError as error:
            raise Usage(
                f"{text[:100]!r} cannot be {name!r} of a key",
                why=f"it is of the type {kind}",
                fix="give a whole number" if kind.base in _WIDTHS else "give hexadecimal digits",
            ) from error
    return (*found, *texts[len(found) :])


def _part(name: str, base: str, value: object, *, is_last: bool) -> bytes:
    width = _WIDTHS.get(base)
    if width is not None:
        return _number(name, base, width, value)
    if base == "string" and isinstance(value, str):
        try:
            raw = value.encode()
        except UnicodeEncodeError as error:
            raise _wrong(name, base, value, "it has half of a character") from error
    elif base == "bytes" and isinstance(value, bytes | bytearray | memoryview):
        raw = bytes(value)
    else:
        raise _wrong(name, base, value, f"it is {_kind(value)}")
    if not raw:
        raise _wrong(name, base, value, "it is empty")
    return raw if is_last else raw.replace(_ZERO, _ESCAPED) + _END


def _number(name: str, base: str, width: int, value: object) -> bytes:
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise _wrong(name, base, value, f"it is {_kind(value)}")
    try:
        number = operator.index(value)
    except TypeError as error:  # an array of several has one, too
        raise _wrong(name, base, value, f"it is {_kind(value)}") from error
    half = 1 << (8 * width - 1)
    if not -half <= number < half:
        raise _wrong(name, base, value, f"{base} goes from {-half} to {half - 1}")
    return (number + half).to_bytes(width, "big")


def _parts(base: str, values: Sequence[Any], *, is_last: bool) -> list[bytes] | None:
    """One part of many keys; None: a value is not plainly of its type."""
    width = _WIDTHS.get(base)
    try:
        if width is not None:
            half = 1 << (8 * width - 1)
            if set(map(type, values)) <= {int}:
                return [(value + half).to_bytes(width, "big") for value in values]
            return None
        if base == "bytes":
            raw = list(values) if set(map(type, values)) <= {bytes} else [b""]
        else:
            raw = [value.encode() for value in values]
    except (AttributeError, OverflowError, UnicodeEncodeError):
        return None
    if not all(raw):
        return None
    return raw if is_last else [each.replace(_ZERO, _ESCAPED) + _END for each in raw]


def _until_end(data: bytes, at: int) -> tuple[bytes, int]:
    """The part that begins here, and where the next one does."""
    begin = at
    while (zero := data.find(_ZERO, at)) >= 0:
        follows = data[zero : zero + 2]
        if follows == _END:
            return data[begin:zero].replace(_ESCAPED, _ZERO), zero + 2
        if follows != _ESCAPED:
            break
        at = zero + 2
    raise _damaged(data, "a part of it has no end")


def _text(data: bytes, raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise _damaged(data, "a part of it is no text") from error


def _kind(value: object) -> str:
    if value is None:
        return "None"
    if isinstance(value, Real) and str(value) == "nan":
        return "NaN"
    return f"of the type {type(value).__name__}"


def _wrong(name: str, base: str, value: object, why: str) -> Usage:
    return Usage(
        f"{repr(value)[:100]} cannot be {name!r} of a key",
        why=why,
        fix=f"give a {base}" if base in _WIDTHS else f"give a {base} that is not empty",
    )


def _too_large(size: int) -> TooLarge:
    return TooLarge(
        f"a key has {size} bytes",
        why=f"it may have {KEY_BYTES_MAX}: it is a name in every store",
        fix="use a digest of it as the key, and keep the whole in a column",
    )


def _damaged(data: bytes, why: str) -> Corrupt:
    return Corrupt(
        f"these bytes are no key of the table: {data[:40]!r}",
        why=why,
        fix="restore the store from a backup, or rebuild the table from its history",
    )
