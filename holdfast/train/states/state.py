"""A training state as plain bytes: named arrays and some notes. No torch, no numpy. Pure.

A state is spelled as a safetensors file, so any program that reads safetensors reads it. Entries
are in the order of their names, everywhere where an order matters.

    state = TrainingState(step, entries, notes)
    b"".join(state.buffers())              # a safetensors file, from views: nothing is copied
    TrainingState.read(memoryview(...))            # entries are views of what was given
    state.digest()                         # SHA-256 of all of it, in the one order
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, Final

from holdfast.wire.errors import Corrupt, Usage
from holdfast.wire.limits import STATE_HEADER_BYTES_MAX

# What safetensors calls its types, and how many bits an element has.
BITS: Final[Mapping[str, int]] = {
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E5M2", "F8_E4M3"), 8),
    **dict.fromkeys(("I16", "U16", "F16", "BF16"), 16),
    **dict.fromkeys(("I32", "U32", "F32"), 32),
    **dict.fromkeys(("I64", "U64", "F64", "C64"), 64),
}
_METADATA: Final = "__metadata__"
_OURS: Final = "holdfast"


@dataclass(frozen=True, slots=True)
class StateEntry:
    """A named array: `dtype` as safetensors spells it ("F32", "I64", "U8", ...), `data` its bytes
    in row order, as a flat view of format "B". The view may be of memory that goes on changing:
    whoever gives a state away says until when it holds."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    data: memoryview

    def __post_init__(self) -> None:
        if self.dtype not in BITS:
            raise Usage(
                f"entry {self.name!r} has the type {self.dtype!r}",
                why="safetensors does not know it",
                fix=f"use one of {', '.join(sorted(BITS))}",
            )
        if not self.name or self.name == _METADATA:
            raise Usage(f"{self.name!r} cannot be the name of an entry", fix="give it another name")
        expected = prod(self.shape) * BITS[self.dtype] // 8
        if self.data.format != "B" or self.data.ndim != 1 or self.data.nbytes != expected:
            raise Usage(
                f"entry {self.name!r} has {self.data.nbytes} bytes of format {self.data.format!r}",
                why=f"{self.dtype} of shape {list(self.shape)} has {expected} flat bytes",
                fix='give a contiguous array as memoryview(...).cast("B")',
            )

    @classmethod
    def of(cls, name: str, dtype: str, shape: Sequence[int], data: Any) -> StateEntry:
        """An entry from anything with the buffer protocol whose bytes are in row order."""
        return cls(name, dtype, tuple(shape), memoryview(data).cast("B"))


@dataclass(frozen=True)
class TrainingState:
    """What a step has left behind. `entries` in the order of their names; `notes` is whatever JSON
    keeps exactly (no floats that matter: spell those as hexadecimal strings)."""

    step: int
    entries: tuple[StateEntry, ...] = ()
    notes: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        names = [entry.name for entry in self.entries]
        if names != sorted(set(names)):
            raise Usage(
                "the entries of a state are not in the order of their names, or one is there twice",
                fix="make it with TrainingState.of(step, entries, notes)",
            )

    @classmethod
    def of(
        cls, step: int, entries: Iterable[StateEntry], notes: Mapping[str, Any] | None = None
    ) -> TrainingState:
        """The same with the entries put in order."""
        ordered = sorted(entries, key=lambda entry: entry.name)
        return cls(step, tuple(ordered), dict(notes or {}))

    def __getitem__(self, name: str) -> StateEntry:
        for entry in self.entries:
            if entry.name == name:
                return entry
        raise KeyError(name)

    @property
    def size_bytes(self) -> int:
        return sum(entry.data.nbytes for entry in self.entries)

    def buffers(self) -> list[memoryview]:
        """The bytes of a safetensors file, as views of the entries: the header, then the data."""
        ours = {"step": self.step, "notes": self.notes}
        return spell(self.entries, ours)

    @classmethod
    def read(cls, data: memoryview) -> TrainingState:
        """The state that these bytes spell; its entries are views of them. `Corrupt` if none."""
        entries, ours = parse(data)
        try:
            return cls.of(int(ours["step"]), entries, ours["notes"])
        except (KeyError, TypeError, ValueError, Usage) as error:
            raise Corrupt("not the bytes of a training state", why=str(error)) from error

    def digest(self) -> str:
        """SHA-256 over step, notes, names, types, shapes and bytes of all entries, in order."""
        found = hashlib.sha256(one_spelling([self.step, self.notes]))
        for entry in self.entries:
            found.update(one_spelling([entry.name, entry.dtype, list(entry.shape)]))
            found.update(entry.data)
        return f"sha256:{found.hexdigest()}"


def one_spelling(value: Any) -> bytes:
    """The JSON of a value in the one form that is hashed and compared."""
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def spell(entries: Iterable[StateEntry], ours: Mapping[str, Any] | None = None) -> list[memoryview]:
    """A safetensors file as its header and views of its entries. `ours` goes into its metadata."""
    # As safetensors orders them: the widest elements first, so that all of them are aligned.
    ordered = sorted(entries, key=lambda entry: (-BITS[entry.dtype], entry.name))
    header: dict[str, Any] = {}
    if ours is not None:
        header[_METADATA] = {_OURS: one_spelling(ours).decode()}
    at = 0
    for entry in ordered:
        end = at + entry.data.nbytes
        header[entry.name] = {
            "dtype": entry.dtype,
            "shape": list(entry.shape),
            "data_offsets": [at, end],
        }
        at = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    head = memoryview(len(text).to_bytes(8, "little") + text)
    return [head, *(entry.data for entry in ordered if entry.data.nbytes)]


def parse(data: memoryview) -> tuple[list[StateEntry], dict[str, Any]]:
    """The entries (views) and our metadata of a safetensors file; `Corrupt` if it is none."""
    data = data.cast("B")
    try:
        length = int.from_bytes(data[:8], "little")
        if data.nbytes < 8 or length > min(data.nbytes - 8, STATE_HEADER_BYTES_MAX):
            raise ValueError("its header is cut off")  # noqa: TRY301  one place says it is damaged
        header = json.loads(bytes(data[8 : 8 + length]))
        ours = json.loads(header.pop(_METADATA, {}).get(_OURS, "{}"))
        body, entries = data[8 + length :], []
        for name, row in header.items():
            begin, end = row["data_offsets"]
            if not 0 <= begin <= end <= body.nbytes:
                raise ValueError(f"entry {name!r} lies outside")  # noqa: TRY301
            entries.append(StateEntry(name, row["dtype"], tuple(row["shape"]), body[begin:end]))
    except (ValueError, TypeError, KeyError, AttributeError, Usage) as error:
        raise Corrupt("not a safetensors file", why=str(error)) from error
    return entries, ours
