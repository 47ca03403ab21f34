"""The tensors of a safetensors file as numpy arrays, mapped; and how two files differ."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from holdfast.wire.errors import Corrupt

# What safetensors calls its types. numpy has no bfloat16: it is widened, exactly.
_TYPES: Final[Mapping[str, str]] = {
    "BOOL": "?",
    "U8": "u1",
    "I8": "i1",
    "U16": "<u2",
    "I16": "<i2",
    "U32": "<u4",
    "I32": "<i4",
    "U64": "<u8",
    "I64": "<i8",
    "F16": "<f2",
    "BF16": "<u2",
    "F32": "<f4",
    "F64": "<f8",
}


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor of a file, as it stands there."""

    dtype: str
    shape: tuple[int, ...]
    raw: np.ndarray[Any, Any]

    def values(self) -> np.ndarray[Any, Any] | None:
        """Its numbers; None for a type that numpy cannot count with."""
        kind = _TYPES.get(self.dtype)
        if kind is None:
            return None
        found = self.raw.view(kind)
        if self.dtype == "BF16":
            found = (found.astype(np.uint32) << 16).view(np.float32)
        return found.reshape(self.shape)


@dataclass(frozen=True, slots=True)
class Change:
    """How a tensor differs: `what` in words; by how much at most, and relative to its size."""

    name: str
    what: str
    largest: float | None = None
    relative: float | None = None


def tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of the file, mapped: nothing is read before it is used. `Corrupt` if it is not
    a safetensors file."""
    whole: np.ndarray[Any, Any] = np.memmap(path, np.uint8, mode="r")
    try:
        length = int.from_bytes(whole[:8].tobytes(), "little")
        if length > whole.size - 8:
            raise ValueError("its header is cut off")  # noqa: TRY301
        header = json.loads(whole[8 : 8 + length].tobytes())
        body = whole[8 + length :]
        found = {}
        for name, row in header.items():
            if name != "__metadata__":
                begin, end = row["data_offsets"]
                found[name] = Tensor(row["dtype"], tuple(row["shape"]), body[begin:end])
    except (ValueError, KeyError, TypeError) as error:
        raise Corrupt(f"{path.name} is not a safetensors file", why=str(error)) from error
    return found


def changes(before: Path, after: Path) -> Iterator[Change]:
    """The tensors that are not the same in both files, in the order of their names."""
    old, new = tensors(before), tensors(after)
    for name in sorted(old.keys() | new.keys()):
        if name not in old:
            yield Change(name, f"new: {_shape(new[name])}")
        elif name not in new:
            yield Change(name, f"gone: {_shape(old[name])}")
        elif (change := _change(name, old[name], new[name])) is not None:
            yield change


def _change(name: str, old: Tensor, new: Tensor) -> Change | None:
    if (old.dtype, old.shape) != (new.dtype, new.shape):
        return Change(name, f"{_shape(old)} became {_shape(new)}")
    if np.array_equal(old.raw, new.raw):
        return None
    before, after = old.values(), new.values()
    if before is None or after is None:
        return Change(name, "changed")
    gap = after.astype(np.float64) - before.astype(np.float64)
    size = float(np.linalg.norm(before.astype(np.float64)))
    far = float(np.linalg.norm(gap))
    return Change(name, "changed", float(np.abs(gap).max()), far / size if size else None)


def _shape(tensor: Tensor) -> str:
    return f"{tensor.dtype} {list(tensor.shape)}"
