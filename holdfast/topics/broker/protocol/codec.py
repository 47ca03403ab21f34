"""Kafka's encoding, driven by tables: a message is a dataclass, and its fields say what they are.

    @message
    class Heartbeat:
        group_id: string
        generation_id: i32
        group_instance_id: optional_string = since(3, None)

A field has a wire type (`i32`, `string`, `records`, a list, another message), the first and the
last version that have it, and perhaps a tag. `reader` and `writer` make, once for each message and
version, functions that decode and encode it; neighbouring fields of fixed size are one call of
`struct`. Flexible versions have compact lengths and tagged fields; unknown tags are skipped.

Whatever is not a message of that version is `MalformedMessage`: lengths are checked against what is
there before anything is made of them.
"""

from __future__ import annotations

import dataclasses
import struct
import types
from collections.abc import Callable, Sequence
from dataclasses import MISSING
from functools import cache
from operator import attrgetter
from typing import (
    Annotated,
    Any,
    Final,
    NamedTuple,
    TypeVar,
    Union,
    dataclass_transform,
    get_args,
    get_origin,
    get_type_hints,
)

Buffer = bytes | bytearray | memoryview
Read = Callable[[Buffer, int], tuple[Any, int]]
Write = Callable[[Any, list[Buffer]], None]
M = TypeVar("M")

# A field that is in every later version.
_LATEST: Final = 32_767
# A varint of 32 bits has at most so many bytes.
_UVARINT_BYTES_MAX: Final = 5


class MalformedMessage(ValueError):
    """These bytes are not a message of this version."""


# --- the types of fields --------------------------------------------------------------------------


class Fixed(NamedTuple):
    """A field of fixed size: its letter of `struct`."""

    letter: str


class Text(NamedTuple):
    """A string."""

    nullable: bool


class Octets(NamedTuple):
    """Bytes. `whole`: decoded as a view of the frame, encoded from one buffer or several."""

    nullable: bool
    whole: bool = False


i8 = Annotated[int, Fixed("b")]
i16 = Annotated[int, Fixed("h")]
i32 = Annotated[int, Fixed("i")]
i64 = Annotated[int, Fixed("q")]
boolean = Annotated[bool, Fixed("?")]
uuid = Annotated[bytes, Fixed("16s")]
string = Annotated[str, Text(nullable=False)]
optional_string = Annotated[str | None, Text(nullable=True)]
octets = Annotated[bytes, Octets(nullable=False)]
# Record batches: a view of the request that brought them; a list of buffers in an answer.
records = Annotated[Any, Octets(nullable=True, whole=True)]

NO_UUID: Final = bytes(16)


@dataclass_transform(kw_only_default=True)
def message(table: type[M]) -> type[M]:
    """A message, or a part of one."""
    return dataclasses.dataclass(slots=True, kw_only=True)(table)


def since(version: int, default: Any, *, until: int = _LATEST) -> Any:
    """A field that versions from here on have (`until` the last one)."""
    return _field(default, {"since": version, "until": until})


def until(version: int, default: Any) -> Any:
    """A field that versions up to here have."""
    return _field(default, {"until": version})


def tagged(tag: int, version: int, default: Any) -> Any:
    """A tagged field; one that has its default is not sent."""
    return _field(default, {"since": version, "tag": tag})


def _field(default: Any, metadata: dict[str, int]) -> Any:
    if isinstance(default, list):
        assert not default
        return dataclasses.field(default_factory=list, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


# --- single values --------------------------------------------------------------------------------

_I16: Final = struct.Struct("!h")
_I32: Final = struct.Struct("!i")


def read_uvarint(buffer: Buffer, at: int) -> tuple[int, int]:
    """An unsigned varint, and where it ends."""
    value = buffer[at]
    if value < 0x80:
        return value, at + 1
    value &= 0x7F
    for position in range(1, _UVARINT_BYTES_MAX):
        byte = buffer[at + position]
        value |= (byte & 0x7F) << (7 * position)
        if byte < 0x80:
            return value, at + position + 1
    raise MalformedMessage("a varint has more than five bytes")


def uvarint(value: int) -> bytes:
    """The bytes of an unsigned varint."""
    if value < 0x80:
        return _SMALL[value]
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


_SMALL: Final = [bytes((value,)) for value in range(0x80)]


def _read_length_compact(buffer: Buffer, at: int) -> tuple[int, int]:
    length, at = read_uvarint(buffer, at)
    return length - 1, at


def _read_length_i16(buffer: Buffer, at: int) -> tuple[int, int]:
    return _I16.unpack_from(buffer, at)[0], at + 2


def _read_length_i32(buffer: Buffer, at: int) -> tuple[int, int]:
    return _I32.unpack_from(buffer, at)[0], at + 4


def _write_length_compact(length: int) -> bytes:
    return uvarint(length + 1)


def _octets_reader(read_length: Read, nullable: bool, text: bool, whole: bool) -> Read:
    def read(buffer: Buffer, at: int) -> tuple[Any, int]:
        length, at = read_length(buffer, at)
        if length < 0:
            if length == -1 and nullable:
                return None, at
            raise MalformedMessage("a value is missing, or its length is negative")
        end = at + length
        if end > len(buffer):
            raise MalformedMessage("a value is longer than its frame")
        if text:
            return str(buffer[at:end], "utf-8"), end
        return memoryview(buffer)[at:end] if whole else bytes(buffer[at:end]), end

    return read


def _text_writer(write_length: Callable[[int], bytes]) -> Write:
    def write(value: Any, out: list[Buffer]) -> None:
        if value is None:
            out.append(write_length(-1))
        else:
            encoded = value.encode()
            out.append(write_length(len(encoded)) + encoded)

    return write


def _octets_writer(write_length: Callable[[int], bytes]) -> Write:
    def write(value: Any, out: list[Buffer]) -> None:
        if value is None:
            out.append(write_length(-1))
        elif isinstance(value, list):
            out.append(write_length(sum(map(len, value))))
            out.extend(value)
        else:
            out.append(write_length(len(value)))
            out.append(value)

    return write


# --- lists ----------------------------------------------------------------------------------------


def _list_reader(read_length: Read, nullable: bool, element: Read) -> Read:
    def read(buffer: Buffer, at: int) -> tuple[Any, int]:
        count, at = read_length(buffer, at)
        if count < 0:
            if count == -1 and nullable:
                return None, at
            raise MalformedMessage("a list is missing, or its length is negative")
        if count > len(buffer) - at:
            raise MalformedMessage("a list has more elements than its frame has bytes")
        values = []
        for _ in range(count):
            value, at = element(buffer, at)
            values.append(value)
        return values, at

    return read


def _list_writer(write_length: Callable[[int], bytes], element: Write) -> Write:
    def write(values: Any, out: list[Buffer]) -> None:
        if values is None:
            out.append(write_length(-1))
            return
        out.append(write_length(len(values)))
        for value in values:
            element(value, out)

    return write


def _optional_reader(read_struct: Read) -> Read:
    def read(buffer: Buffer, at: int) -> tuple[Any, int]:
        return (None, at + 1) if buffer[at] == 0xFF else read_struct(buffer, at + 1)

    return read


def _optional_writer(write_struct: Write) -> Write:
    def write(value: Any, out: list[Buffer]) -> None:
        out.append(b"\xff" if value is None else b"\x01")
        if value is not None:
            write_struct(value, out)

    return write


# --- from a type to a function --------------------------------------------------------------------


class _Field(NamedTuple):
    name: str
    hint: Any
    tag: int | None
    default: Any


@cache
def _fields(table: type, version: int) -> tuple[_Field, ...]:
    """The fields that this version of a message has."""
    hints = get_type_hints(table, include_extras=True)
    found = []
    for one in dataclasses.fields(table):
        first, last = one.metadata.get("since", 0), one.metadata.get("until", _LATEST)
        if first <= version <= last:
            default = [] if one.default_factory is not MISSING else one.default
            found.append(_Field(one.name, hints[one.name], one.metadata.get("tag"), default))
    return tuple(found)


def _split(hint: Any) -> tuple[Any, bool]:
    """A type without its `| None`, and whether it had one."""
    if get_origin(hint) in (Union, types.UnionType):
        (rest,) = (each for each in get_args(hint) if each is not type(None))
        return rest, True
    return hint, False


def _mark(hint: Any) -> Fixed | Text | Octets | None:
    marks = getattr(hint, "__metadata__", ())
    return marks[0] if marks else None


def _value_reader(hint: Any, version: int, flexible: bool) -> Read:
    mark = _mark(hint)
    if isinstance(mark, Fixed):
        made = struct.Struct("!" + mark.letter)
        unpack, size = made.unpack_from, made.size
        return lambda buffer, at: (unpack(buffer, at)[0], at + size)
    if isinstance(mark, Text):
        length = _read_length_compact if flexible else _read_length_i16
        return _octets_reader(length, mark.nullable, text=True, whole=False)
    length = _read_length_compact if flexible else _read_length_i32
    if isinstance(mark, Octets):
        return _octets_reader(length, mark.nullable, text=False, whole=mark.whole)
    inner, nullable = _split(hint)
    if get_origin(inner) is list:
        (element,) = get_args(inner)
        return _list_reader(length, nullable, _value_reader(element, version, flexible))
    read = _struct_reader(inner, version, flexible)
    return _optional_reader(read) if nullable else read


def _value_writer(hint: Any, version: int, flexible: bool) -> Write:
    mark = _mark(hint)
    if isinstance(mark, Fixed):
        pack = struct.Struct("!" + mark.letter).pack
        return lambda value, out: out.append(pack(value))
    if isinstance(mark, Text):
        return _text_writer(_write_length_compact if flexible else _I16.pack)
    length = _write_length_compact if flexible else _I32.pack
    if isinstance(mark, Octets):
        return _octets_writer(length)
    inner, nullable = _split(hint)
    if get_origin(inner) is list:
        (element,) = get_args(inner)
        return _list_writer(length, _value_writer(element, version, flexible))
    write = _struct_writer(inner, version, flexible)
    return _optional_writer(write) if nullable else write


def _runs(fields: tuple[_Field, ...]) -> list[tuple[list[_Field], str]]:
    """Fields without a tag, neighbours of fixed size together; "" beside those that are not."""
    runs: list[tuple[list[_Field], str]] = []
    for field in fields:
        if field.tag is not None:
            continue
        mark = _mark(field.hint)
        letter = mark.letter if isinstance(mark, Fixed) else ""
        if letter and runs and runs[-1][1]:
            runs[-1] = ([*runs[-1][0], field], runs[-1][1] + letter)
        else:
            runs.append(([field], letter))
    return runs


def _struct_reader(table: type, version: int, flexible: bool) -> Read:
    fields = _fields(table, version)
    names = [field.name for field in fields if field.tag is None]
    tags = {
        field.tag: (field.name, _value_reader(field.hint, version, flexible))
        for field in fields
        if field.tag is not None
    }
    steps = [
        (struct.Struct("!" + letters), None)
        if letters
        else (None, _value_reader(run[0].hint, version, flexible))
        for run, letters in _runs(fields)
    ]

    def read(buffer: Buffer, at: int) -> tuple[Any, int]:
        values: list[Any] = []
        for fixed, read_one in steps:
            if fixed is not None:
                values.extend(fixed.unpack_from(buffer, at))
                at += fixed.size
            else:
                assert read_one is not None
                value, at = read_one(buffer, at)
                values.append(value)
        given = dict(zip(names, values, strict=True))
        if flexible:
            if buffer[at]:
                at = _read_tags(buffer, at, tags, given)
            else:
                at += 1
        return table(**given), at

    return read


def _read_tags(
    buffer: Buffer, at: int, known: dict[int, tuple[str, Read]], given: dict[str, Any]
) -> int:
    count, at = read_uvarint(buffer, at)
    for _ in range(count):
        tag, at = read_uvarint(buffer, at)
        size, at = read_uvarint(buffer, at)
        end = at + size
        if end > len(buffer):
            raise MalformedMessage("a tagged field is longer than its frame")
        if tag in known:
            name, read = known[tag]
            given[name], at = read(buffer, at)
            if at != end:
                raise MalformedMessage(f"the tagged field {name} has another length than it says")
        at = end
    return at


def _struct_writer(table: type, version: int, flexible: bool) -> Write:
    fields = _fields(table, version)
    steps: list[Write] = []
    for run, letters in _runs(fields):
        if letters:
            steps.append(_fixed_writer(run, letters))
        else:
            steps.append(_one_writer(run[0], version, flexible))
    tags = [
        (field.tag, attrgetter(field.name), field.default, _value_writer(field.hint, version, True))
        for field in sorted(fields, key=lambda field: field.tag or 0)
        if field.tag is not None
    ]

    def write(value: Any, out: list[Buffer]) -> None:
        for step in steps:
            step(value, out)
        if flexible:
            _write_tags(value, out, tags)

    return write


def _fixed_writer(run: list[_Field], letters: str) -> Write:
    pack = struct.Struct("!" + letters).pack
    get = attrgetter(*(field.name for field in run))
    if len(run) == 1:
        return lambda value, out: out.append(pack(get(value)))
    return lambda value, out: out.append(pack(*get(value)))


def _one_writer(field: _Field, version: int, flexible: bool) -> Write:
    get = attrgetter(field.name)
    write = _value_writer(field.hint, version, flexible)
    return lambda value, out: write(get(value), out)


def _write_tags(
    value: Any, out: list[Buffer], tags: Sequence[tuple[int, Callable[[Any], Any], Any, Write]]
) -> None:
    given = [(tag, get(value), write) for tag, get, default, write in tags if get(value) != default]
    out.append(uvarint(len(given)))
    for tag, held, write in given:
        data: list[Buffer] = []
        write(held, data)
        out.append(uvarint(tag) + uvarint(sum(map(len, data))))
        out.extend(data)


# --- whole messages -------------------------------------------------------------------------------

_readers: dict[tuple[type, int, bool], Read] = {}
_writers: dict[tuple[type, int, bool], Write] = {}


def decode(table: type[M], version: int, flexible: bool, buffer: Buffer, at: int = 0) -> M:
    """The message that begins at `at`; `MalformedMessage` if none does. What follows it is ignored,
    as Kafka does: librdkafka 2.16 sends three bytes too many when it asks for all topics."""
    key = table, version, flexible
    read = _readers.get(key)
    if read is None:
        read = _readers[key] = _struct_reader(*key)
    try:
        value, _ = read(buffer, at)
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise MalformedMessage(str(error)) from None
    assert isinstance(value, table)
    return value


def encode(value: object, version: int, flexible: bool) -> list[Buffer]:
    """The bytes of a message, in pieces: record batches are not copied."""
    key = type(value), version, flexible
    write = _writers.get(key)
    if write is None:
        write = _writers[key] = _struct_writer(*key)
    out: list[Buffer] = []
    write(value, out)
    return out
