"""Jute, ZooKeeper's encoding: big-endian numbers, strings and buffers with a length before them.

`JuteReader` takes what a stranger sent: whatever it is given, it answers with a value or
`Malformed`, and never reads or allocates beyond the bytes that are there.
"""

from __future__ import annotations

import struct
from typing import Final

INT: Final = struct.Struct("!i")
LONG: Final = struct.Struct("!q")
NULL_LENGTH: Final = INT.pack(-1)


class Malformed(Exception):
    """The bytes are not what their place in the protocol says."""


class JuteReader:
    """A position in a buffer; every call reads one value and moves on."""

    __slots__ = ("at", "data")

    def __init__(self, data: bytes, at: int = 0) -> None:
        self.data = data
        self.at = at

    def number(self) -> int:
        at = self.at
        try:
            (value,) = INT.unpack_from(self.data, at)
        except struct.error:
            raise Malformed("the message ends inside a number") from None
        self.at = at + 4
        return value  # type: ignore[no-any-return]

    def long(self) -> int:
        at = self.at
        try:
            (value,) = LONG.unpack_from(self.data, at)
        except struct.error:
            raise Malformed("the message ends inside a number") from None
        self.at = at + 8
        return value  # type: ignore[no-any-return]

    def flag(self) -> bool:
        at = self.at
        if at >= len(self.data):
            raise Malformed("the message ends before a flag")
        self.at = at + 1
        return self.data[at] != 0

    def buffer(self) -> bytes | None:
        length = self.number()
        if length == -1:
            return None
        start = self.at
        end = start + length
        if length < 0 or end > len(self.data):
            raise Malformed(f"a length of {length} with {len(self.data) - start} bytes left")
        self.at = end
        return self.data[start:end]

    def string(self) -> str:
        """Text. Null is read as empty, since kazoo writes the empty string as null."""
        return (self.buffer() or b"").decode("utf-8", "replace")

    def strings(self) -> list[str]:
        return [self.string() for _ in range(self.count(4))]

    def count(self, item_bytes_min: int) -> int:
        """The length of a vector, refused when that many items cannot be there."""
        count = self.number()
        if count == -1:
            return 0
        if count < 0 or count * item_bytes_min > len(self.data) - self.at:
            raise Malformed(f"a vector of {count} with {len(self.data) - self.at} bytes left")
        return count


def encode_string(text: str) -> bytes:
    raw = text.encode("utf-8")
    return INT.pack(len(raw)) + raw


def encode_buffer(data: bytes | None) -> bytes:
    return NULL_LENGTH if data is None else INT.pack(len(data)) + data
