"""Rows of plain values (int, str, bytes, None) as bytes, in blocks.

A block stands for itself: it begins with the shapes of its rows ("is" = a number and a text) and
each row names its shape. Rows of one shape share one `struct`, which is what makes it fast.
Numbers are 64 bits.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import Final

Value = int | str | bytes | None
Row = tuple[Value, ...]

# After so many bytes a block is closed.
BLOCK_BYTES: Final = 64 * 1024
_COUNTS: Final = struct.Struct("!IH")
_SHAPE_LENGTH: Final = struct.Struct("!I")
_LETTERS: Final = {int: "i", str: "s", bytes: "b", type(None): "n"}
_CODES: Final = {"i": "q", "s": "I", "b": "I", "n": ""}


class _Shape:
    """The layout of rows of one kind: its number, the numbers and lengths, then texts and bytes."""

    __slots__ = ("nulls", "number", "struct", "variable")

    def __init__(self, letters: str, number: int) -> None:
        self.number = number
        self.struct = struct.Struct("!B" + "".join(_CODES[letter] for letter in letters))
        self.variable = [(at, letter == "s") for at, letter in enumerate(letters) if letter in "sb"]
        self.nulls = [at for at, letter in enumerate(letters) if letter == "n"]

    def encode(self, row: Row, parts: list[bytes]) -> int:
        """Append the row to `parts`; how many bytes it took."""
        if not self.variable and not self.nulls:
            parts.append(self.struct.pack(self.number, *row))
            return self.struct.size
        fields: list[Value] = list(row)
        blobs = []
        for at, is_text in self.variable:
            value = fields[at]
            blob = value.encode("utf-8", "surrogatepass") if is_text else value  # type: ignore[union-attr]
            blobs.append(blob)
            fields[at] = len(blob)  # type: ignore[arg-type]
        for at in reversed(self.nulls):
            del fields[at]
        start = len(parts)
        parts.append(self.struct.pack(self.number, *fields))
        parts += blobs  # type: ignore[arg-type]
        return sum(map(len, parts[start:]))

    def decode(self, data: bytes, at: int) -> tuple[Row, int]:
        """The row at `at`, and where the next one begins."""
        _, *fields = self.struct.unpack_from(data, at)
        at += self.struct.size
        for place in self.nulls:
            fields.insert(place, None)
        for place, is_text in self.variable:
            end = at + fields[place]
            raw = data[at:end]
            fields[place] = raw.decode("utf-8", "surrogatepass") if is_text else raw
            at = end
        return tuple(fields), at


def encode_blocks(rows: Iterable[Row]) -> Iterator[tuple[bytes, int]]:
    """The rows as blocks of about BLOCK_BYTES, each with its number of rows."""
    shapes: dict[tuple[type, ...], _Shape] = {}
    letters: list[str] = []
    parts: list[bytes] = []
    count = size = 0
    for row in rows:
        kind = tuple(map(type, row))
        shape = shapes.get(kind)
        if shape is None:
            text = "".join(_LETTERS[one] for one in kind)
            shape = shapes[kind] = _Shape(text, len(letters))
            letters.append(text)
        size += shape.encode(row, parts)
        count += 1
        # A shape's number is one byte.
        if size >= BLOCK_BYTES or len(letters) == 256:
            yield _join(letters, parts, count), count
            shapes, letters, parts = {}, [], []
            count = size = 0
    if count:
        yield _join(letters, parts, count), count


def _join(letters: list[str], parts: list[bytes], count: int) -> bytes:
    head = [_COUNTS.pack(count, len(letters))]
    for text in letters:
        head += [_SHAPE_LENGTH.pack(len(text)), text.encode()]
    return b"".join(head + parts)


def decode_block(block: bytes) -> Iterator[Row]:
    """The rows of a block whose checksum was right."""
    count, shape_count = _COUNTS.unpack_from(block)
    at = _COUNTS.size
    shapes = []
    for number in range(shape_count):
        (length,) = _SHAPE_LENGTH.unpack_from(block, at)
        at += _SHAPE_LENGTH.size
        shapes.append(_Shape(block[at : at + length].decode(), number))
        at += length
    for _ in range(count):
        row, at = shapes[block[at]].decode(block, at)
        yield row
    if at != len(block):
        raise ValueError("a block is longer than its rows")
