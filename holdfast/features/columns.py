"""Names, types and columns: what a feature may be, and how it may be called. Pure, and without
numpy until somebody asks for a dtype: whoever lists tables needs none of it."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from holdfast.wire.errors import Usage

if TYPE_CHECKING:
    import numpy as np

# A name becomes one in CQL, in Delta Lake and of a topic: what all of them take without quotes.
# One of ours that stands beside a user's begins with "_".
NAME_CHARACTERS_MAX: Final = 48
_NAME: Final = re.compile(rf"[a-z][a-z0-9_]{{0,{NAME_CHARACTERS_MAX - 1}}}")
_TYPE: Final = re.compile(r"([a-z0-9_]+)(?:\[([0-9]{1,9})\])?")
# The numbers of a vector: far above every embedding, and still a part of a row (1 MiB).
LENGTH_MAX: Final = 65_536

# Each with what numpy calls it: little-endian, whatever machine reads it. None: of any length.
_DTYPES: Final[dict[str, str | None]] = {
    "int64": "<i8",
    "int32": "<i4",
    "float32": "<f4",
    "float64": "<f8",
    "bool": "?",
    "timestamp": "<M8[us]",
    "string": None,
    "bytes": None,
}
_WIDTHS: Final = {
    **dict.fromkeys(("int64", "float64", "timestamp"), 8),
    **dict.fromkeys(("int32", "float32"), 4),
    **{"bool": 1, "string": 0, "bytes": 0},
}
BASES: Final = tuple(_DTYPES)
# What other tools call them.
_SYNONYMS: Final = {
    **dict.fromkeys(("int", "integer", "long", "bigint"), "int64"),
    **dict.fromkeys(("float", "real"), "float32"),
    **dict.fromkeys(("double", "number"), "float64"),
    **dict.fromkeys(("str", "text", "varchar"), "string"),
    **dict.fromkeys(("binary", "blob"), "bytes"),
    **dict.fromkeys(("datetime", "date", "time"), "timestamp"),
}


def nearest(name: str, known: Iterable[str]) -> str:
    """Which known name was meant, as a `fix`; empty if none is like it."""
    near = difflib.get_close_matches(name.lower(), list(known), n=1, cutoff=0.5)
    return f"did you mean {near[0]!r}?" if near else ""


def checked(kind: str, name: object) -> str:
    """The name, if a table, column, key or time may be called so."""
    if isinstance(name, str) and _NAME.fullmatch(name):
        return name
    raise Usage(
        f"{str(name)[:100]!r} cannot be the name of a {kind}",
        why=f"a name has 1 to {NAME_CHARACTERS_MAX} small letters, digits and underscores, and"
        " begins with a letter: it becomes a name in databases and of a topic",
        fix="choose another name",
    )


@dataclass(frozen=True, slots=True)
class ColumnType:
    """What a column holds. `length`: it is a vector of so many; None: one value."""

    base: str
    length: int | None = None

    @classmethod
    def parse(cls, text: str | ColumnType) -> ColumnType:
        """The type of a text such as `float32[64]`, or `Usage` with what is known."""
        if isinstance(text, ColumnType):
            return text
        found = _TYPE.fullmatch(text.strip()) if isinstance(text, str) else None
        base = found[1] if found else str(text)
        if not found or base not in _DTYPES:
            meant = _SYNONYMS.get(base.lower())
            raise Usage(
                f"{str(text)[:100]!r} is no type of a column",
                why=f"known are {', '.join(BASES)}, and vectors such as float32[64]",
                fix=f"write {meant}" if meant else nearest(base, BASES),
            )
        if found[2] is None:
            return cls(base)
        if _DTYPES[base] is None:
            raise Usage(
                f"{text!r} is no type of a column",
                why=f"a {base} has any length, and there are no vectors of it",
                fix=f"write {base}",
            )
        if base == "timestamp":
            raise Usage(
                f"{text!r} is no type of a column",
                why="there are vectors of numbers and of bool",
                fix="write int64 instead, for microseconds",
            )
        if not 1 <= int(found[2]) <= LENGTH_MAX:
            raise Usage(
                f"{text!r} is no type of a column",
                why=f"a vector has 1 to {LENGTH_MAX} numbers",
                fix="choose another length, or keep the whole in a file and its name here",
            )
        return cls(base, int(found[2]))

    @property
    def is_fixed(self) -> bool:
        """Whether every value has the same number of bytes."""
        return _DTYPES[self.base] is not None

    @property
    def dtype(self) -> np.dtype[Any] | None:
        """numpy's; of a vector one with a shape; None for a string and for bytes."""
        code = _DTYPES[self.base]
        if code is None:
            return None
        import numpy as np  # noqa: PLC0415 (whoever only lists tables needs none)

        return np.dtype(code) if self.length is None else np.dtype((code, (self.length,)))

    @property
    def width_bytes(self) -> int:
        """The bytes of one value; 0 where its length is its own."""
        return _WIDTHS[self.base] * (self.length or 1)

    def text(self) -> str:
        """What `parse` reads back."""
        return self.base if self.length is None else f"{self.base}[{self.length}]"

    def __str__(self) -> str:
        return self.text()


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table. Its number is given once and never to another one. It is in the rows of
    the schemas from `since` on, and from `until` on no more: it is retired."""

    name: str
    type: ColumnType
    number: int
    since: int = 1
    until: int | None = None

    @property
    def retired(self) -> bool:
        """Whether it is written and returned no more; what is in older rows can still be read."""
        return self.until is not None

    def is_in(self, schema: int) -> bool:
        """Whether rows of this schema have it."""
        return self.since <= schema and (self.until is None or schema < self.until)
