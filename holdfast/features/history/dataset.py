"""Frames as arrays and tensors, and digests of them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, cast

import numpy as np
import polars as pl

from holdfast.system.extras import require_extra
from holdfast.wire.errors import Usage

if TYPE_CHECKING:
    from torch.utils.data import TensorDataset

Array = np.ndarray[Any, Any]

FACT: Final = "values of the history"


# --- digests --------------------------------------------------------------------------------------


def frame_digest(frame: pl.DataFrame) -> str:
    """SHA-256 of a frame: names, types, where a value is missing, and the values."""
    found = hashlib.sha256()
    for column in frame.iter_columns():
        _add(found, column)
    return f"sha256:{found.hexdigest()}"


def _add(found: Any, column: pl.Series) -> None:
    found.update(f"{column.name}\0{_kind(column.dtype)}\0{len(column)}\0".encode())
    found.update(np.packbits(column.is_not_null().to_numpy()).tobytes())
    kind = column.dtype
    if isinstance(kind, pl.Categorical | pl.Enum | pl.Decimal | pl.Object):
        column = column.cast(pl.String)
    if isinstance(column.dtype, pl.Array):
        column = column.arr.to_list()
    if isinstance(column.dtype, pl.List):
        found.update(_numbers(column.list.len()))
        # A null and an empty one are one element of the exploded column, and their lengths differ.
        _add(found, column.explode())
    elif isinstance(column.dtype, pl.Struct):
        for field in column.struct.unnest().iter_columns():
            _add(found, field)
    elif column.dtype in (pl.String, pl.Binary):
        raw = column.cast(pl.Binary)
        found.update(_numbers(raw.bin.size()))
        found.update(b"".join(raw.drop_nulls().to_list()))
    else:
        found.update(_numbers(column))


def _kind(dtype: pl.DataType) -> str:
    """A type in words of our own: polars may call them otherwise one day."""
    if isinstance(dtype, pl.Array):
        return f"{dtype.size} of {_kind(_inner(dtype))}"
    if isinstance(dtype, pl.Datetime):
        return f"time in {dtype.time_unit}, {dtype.time_zone}"
    return str(dtype.base_type()).lower()


def _numbers(column: pl.Series) -> memoryview:
    physical = column.to_physical()
    if physical.dtype == pl.Null:
        return memoryview(b"")
    zero = False if physical.dtype == pl.Boolean else 0
    array = physical.fill_null(zero).to_numpy()
    return _bytes_of(array)


def _bytes_of(array: Array) -> memoryview:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


# --- arrays ---------------------------------------------------------------------------------------


def array_of(column: pl.Series) -> tuple[Array, Array]:
    """The values, and where there is one."""
    present = column.is_not_null().to_numpy()
    kind = column.dtype
    if isinstance(kind, pl.Array):
        inner = column.explode() if present.all() else _filled_vectors(column, kind).explode()
        return inner.to_numpy().reshape(len(column), kind.size), present
    if isinstance(kind, pl.Datetime):
        micros = column.cast(pl.Datetime("us", kind.time_zone)).to_physical()
        counts = micros.fill_null(np.iinfo(np.int64).min).to_numpy()
        return counts.view("M8[us]"), present
    if kind.is_float():
        return column.fill_null(float("nan")).to_numpy(), present
    if kind.is_integer() or kind == pl.Boolean:
        return column.fill_null(False if kind == pl.Boolean else 0).to_numpy(), present
    values = np.empty(len(column), object)
    values[:] = column.to_list()
    return values, present


def _filled_vectors(column: pl.Series, kind: pl.Array) -> pl.Series:
    blank = float("nan") if _inner(kind).is_float() else False if _inner(kind) == pl.Boolean else 0
    filler = pl.Series([[blank] * kind.size], dtype=kind)
    return column.fill_null(filler.first())


def _inner(kind: pl.Array) -> pl.DataType:
    return cast("pl.DataType", kind.inner)


# --- tensors --------------------------------------------------------------------------------------


def tensor_dataset(
    frame: pl.DataFrame,
    x: Sequence[str],
    y: str | None,
    fill: float | Mapping[str, float] | None,
) -> TensorDataset:
    """Rows as samples; see `History.dataset`."""
    torch = require_extra("torch", "train")
    data = require_extra("torch.utils.data", "train")
    if isinstance(x, str) or not x:
        raise Usage("a data set has at least one column x", fix='give a list: x=["drivers.trips"]')
    inputs = np.concatenate([_floats(frame, name, fill) for name in x], axis=1)
    arrays = [_own(inputs)]
    if y is not None:
        arrays.append(_label(frame, y))
    found = hashlib.sha256(repr((tuple(x), y, inputs.shape)).encode())
    for array in arrays:
        found.update(_bytes_of(array))
    made = data.TensorDataset(*(torch.from_numpy(array) for array in arrays))
    # `run.batches` writes down what a job reads, and refuses to go on with something else. Exactly
    # this class is fetched in one go.
    made.digest = f"sha256:{found.hexdigest()}"
    made.facts = {FACT: made.digest}
    return cast("TensorDataset", made)


def _floats(frame: pl.DataFrame, name: str, fill: float | Mapping[str, float] | None) -> Array:
    column = _column(frame, name)
    inner = _inner(column.dtype) if isinstance(column.dtype, pl.Array) else column.dtype
    if not (inner.is_numeric() or inner == pl.Boolean):
        raise Usage(
            f"{name!r} is of the type {column.dtype}, and a tensor has numbers",
            fix="make numbers of it first, for example by found.frame.with_columns(...)",
        )
    values, present = array_of(column)
    array = values.astype(np.float32, copy=False).reshape(len(column), -1)
    if not present.all():
        value = fill.get(name) if isinstance(fill, Mapping) else fill
        if value is None:
            raise _missing(name, present)
        array = np.where(present[:, None], array, np.float32(value))
    return array


def _label(frame: pl.DataFrame, name: str) -> Array:
    column = _column(frame, name)
    if not (column.dtype.is_numeric() or column.dtype == pl.Boolean):
        raise Usage(f"{name!r} is of the type {column.dtype}, and a tensor has numbers")
    values, present = array_of(column)
    if not present.all():
        raise _missing(name, present)
    wanted = np.float32 if values.dtype.kind == "f" else np.int64
    return _own(values.astype(wanted, copy=False))


def _own(array: Array) -> Array:
    """One that a tensor may lie in: polars gives views that nobody may write to."""
    found = np.ascontiguousarray(array)
    return found if found.flags.writeable else found.copy()


def _column(frame: pl.DataFrame, name: str) -> pl.Series:
    if name not in frame.columns:
        raise Usage(
            f"there is no column {name!r}", why=f"there are {', '.join(frame.columns[:20])}"
        )
    return frame[name]


def _missing(name: str, present: Array) -> Usage:
    return Usage(
        f"{name!r} has no value for {int((~present).sum())} of {len(present)} entities",
        why=f"the first is row {int((~present).argmax())}: nothing was known then",
        fix=f"say what stands there: fill={{{name!r}: 0.0}}, or leave these rows out",
    )
