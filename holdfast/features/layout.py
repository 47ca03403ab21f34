"""Where what is in a row's bytes, for one schema of a table. Pure.

    at        8  event time in microseconds, int64 big-endian with the sign bit flipped
    writer    8  uint64 big-endian
    sequence  8  uint64 big-endian
    flags     1  1: deleted; such a row has no body
    schema    4  uint32 big-endian: of the body
    nulls        a bit for each column, in the order of their numbers, the lowest first; 1: null
    values       of columns of a fixed width, little-endian, packed; zeros under a null
    ends         uint32 little-endian for each string or bytes: where it ends in what follows
    strings      the bytes of them, one after the other
    check     4  CRC-32 of all before it, little-endian

So comparing rows as bytes compares (time, writer, sequence) first, and of two rows of one version
the deletion is the larger.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from holdfast.features.columns import Column

DELETED: Final = 1
HEADER: Final[list[tuple[str, str]]] = [
    ("at", ">u8"),
    ("writer", ">u8"),
    ("sequence", ">u8"),
    ("flags", "u1"),
    ("schema", ">u4"),
]
HEADER_BYTES: Final = 29
FLAGS_AT: Final = 24
CHECK_BYTES: Final = 4
# What CRC-32 gives of any bytes with their own CRC-32 behind them.
RESIDUE: Final = zlib.crc32(zlib.crc32(b"").to_bytes(CHECK_BYTES, "little"))


class RowLayout:
    """The places of a schema's columns.

    `fixed` and `free`: each column by its name with its place in the bits of the nulls, and a free
    one with its place among the ends. `head`: a dtype of everything that has a fixed width.
    """

    def __init__(self, schema: int, columns: Sequence[Column]) -> None:
        self.schema = schema
        self.columns = tuple(sorted(columns, key=lambda column: column.number))
        self.places = {column.name: place for place, column in enumerate(self.columns)}
        self.fixed = tuple(column for column in self.columns if column.type.is_fixed)
        self.free = tuple(column for column in self.columns if not column.type.is_fixed)
        self.ends = {column.name: place for place, column in enumerate(self.free)}
        self.null_bytes = (len(self.columns) + 7) // 8
        fields: list[tuple[Any, ...]] = [*HEADER, ("nulls", "u1", (self.null_bytes,))]
        # A user's column cannot begin with "=": so it is none of the header.
        fields += [(field_of(column.name), column.type.dtype) for column in self.fixed]
        if self.free:
            fields.append(("ends", "<u4", (len(self.free),)))
        self.head = np.dtype(fields)
        self.head_bytes = self.head.itemsize
        # Of a table without strings: a whole row, so that many are read where they lie.
        self.whole = np.dtype([*fields, ("check", "<u4")])


def field_of(name: str) -> str:
    return f"={name}"
