"""What may stand in a column: from a user's value, or a whole column of them, to what a row keeps.
Pure.

A value that would not come back as it was is refused, but for a number with a fraction, which a
float column rounds. None is null, and so is a time that is none (NaT); NaN is a value.
"""

from __future__ import annotations

import datetime
import operator
import reprlib
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from holdfast.features.columns import Column, ColumnType
from holdfast.wire.errors import Usage

# Of a number, before it becomes a time: what `datetime` can show, the years 1 to 9999.
TIME_US_MIN: Final = -62_135_596_800_000_000
TIME_US_MAX: Final = 253_402_300_799_999_999

_EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_MICROSECOND: Final = datetime.timedelta(microseconds=1)
_RANGES: Final = {"int64": (-(2**63), 2**63 - 1), "int32": (-(2**31), 2**31 - 1)}
# The kinds of numpy's dtypes that a column takes as they are.
_KINDS: Final = {
    **dict.fromkeys(("int64", "int32"), "iu"),
    **dict.fromkeys(("float32", "float64"), "fiu"),
    "bool": "b",
    "timestamp": "Miu",
}
# The types of a list that numpy reads as they are meant: `True` is no number here.
_PLAIN: Final[dict[str, frozenset[type]]] = {
    **dict.fromkeys(("int64", "int32"), frozenset({int})),
    **dict.fromkeys(("float32", "float64"), frozenset({float, int})),
    "bool": frozenset({bool}),
}


class _NotTakenError(Exception):
    """Why a value cannot be in a column."""


def packed(column: Column, value: object) -> bytes | None:
    """The bytes of one value; None: it is null. `Usage` names the column and what is wrong."""
    try:
        if not column.type.is_fixed:
            return _free(column.type.base, value)
        if column.type.length is None:
            found = _scalar(column.type.base, value)
            return None if found is None else np.array(found, column.type.dtype).tobytes()
        if value is None:
            return None
        return _vector(column, value).tobytes()
    except _NotTakenError as error:
        raise _refused(column, value, str(error)) from error


def fixed(column: Column, values: Any) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any] | None]:
    """A column of a fixed width as one array, with whatever number where a value is null, and which
    are null (None: none is). `Usage` names the column, the row and what is wrong."""
    dtype = column.type.dtype
    assert dtype is not None
    if column.type.length is not None:
        return _vectors(column, values)
    if isinstance(values, np.ma.MaskedArray):
        array, null = fixed(column, values.filled())
        masked = np.ma.getmaskarray(values)
        return array, masked if null is None else masked | null
    if not isinstance(values, list | tuple):
        values = np.asarray(values)
        if values.dtype.kind == "O" or values.ndim != 1:
            values = values.tolist()
    if isinstance(values, np.ndarray):
        try:
            array = _array(column.type.base, values)
        except _NotTakenError as error:
            raise _refused_first(column, values, error) from error
        null = np.isnat(array) if array.dtype.kind == "M" else None
        return array, null if null is not None and null.any() else None
    return _listed(column, values)


def free(column: Column, values: Any) -> tuple[list[bytes], np.ndarray[Any, Any] | None]:
    """A column of strings or bytes as the bytes of each, and which are null (None: none is)."""
    if isinstance(values, np.ma.MaskedArray):
        values = [
            None if hidden else each
            for each, hidden in zip(values.data.tolist(), np.ma.getmaskarray(values), strict=True)
        ]
    elif isinstance(values, np.ndarray):
        if values.dtype.kind == "S":
            raise _refused(column, values, "numpy's S drops zeros at the end of bytes")
        values = values.tolist()
    if column.type.base == "string":
        try:
            return [value.encode() for value in values], None
        except (AttributeError, UnicodeEncodeError):
            pass  # nulls, or something is wrong: one after the other
    base, found = column.type.base, []
    for row, value in enumerate(values):
        try:
            found.append(_free(base, value))
        except _NotTakenError as error:
            raise _refused(column, value, str(error), row) from error
    if None not in found:
        return found, None  # type: ignore[return-value]  # none of them is None
    return [each or b"" for each in found], np.array([each is None for each in found])


def time_us(value: object) -> int | None:
    """A time as microseconds since 1970 (UTC); None: it is null, or none (NaT). It may be a
    `datetime` with a time zone, numpy's `datetime64`, a text such as `2026-01-31T12:00:00Z`, or
    such microseconds. `Usage` for anything else."""
    try:
        return _time_us(value)
    except _NotTakenError as error:
        raise Usage(
            f"{repr(value)[:100]} is no time",
            why=str(error),
            fix="give a datetime with a time zone, or microseconds since 1970",
        ) from error


def times_us(values: Any) -> tuple[np.ndarray[Any, np.dtype[np.int64]], np.ndarray[Any, Any]]:
    """The same of many: microseconds since 1970, and which of them are null."""
    column = _TIMES
    array, null = fixed(column, values)
    counts = array.view(np.int64)
    return counts, np.zeros(len(counts), bool) if null is None else null


# --- one value ------------------------------------------------------------------------------------


def _scalar(base: str, value: object) -> object:
    """What numpy is given for it; None: it is null."""
    if value is None:
        return None
    if isinstance(value, np.ndarray):
        if value.ndim:
            raise _NotTakenError(f"it is an array of the shape {value.shape}")
        value = value[()]
    return _TAKES[base](base, value)


def _integer(base: str, value: object) -> int:
    if isinstance(value, bool | np.bool_) or not hasattr(value, "__index__"):
        raise _NotTakenError(f"it is {_kind(value)}")
    number = operator.index(value)
    least, most = _RANGES[base]
    if not least <= number <= most:
        raise _NotTakenError(f"{base} goes from {least} to {most}")
    return number


def _float(base: str, value: object) -> float:
    if isinstance(value, bool | np.bool_) or not isinstance(
        value, int | float | np.integer | np.floating
    ):
        raise _NotTakenError(f"it is {_kind(value)}")
    try:
        number = float(value)
    except OverflowError as error:
        raise _NotTakenError(f"it is too large for {base}") from error
    if base == "float32":
        with np.errstate(over="ignore"):
            rounded = np.float32(number)
        if np.isinf(rounded) and not np.isinf(number):
            raise _NotTakenError(f"it is too large for {base}")
    return number


def _bool(base: str, value: object) -> bool:
    if not isinstance(value, bool | np.bool_):
        raise _NotTakenError(f"it is {_kind(value)}")
    return bool(value)


def _time(base: str, value: object) -> np.datetime64 | None:
    found = _time_us(value)
    return None if found is None else np.datetime64(found, "us")


def _time_us(value: object) -> int | None:
    if value is None:
        return None
    if isinstance(value, np.datetime64):
        if np.isnat(value):
            return None
        return int(_micros(np.array([value])).view(np.int64)[0])
    if isinstance(value, str):
        try:
            value = datetime.datetime.fromisoformat(value)
        except ValueError as error:
            raise _NotTakenError("it is not written as 2026-01-31T12:00:00Z") from error
    if isinstance(value, datetime.datetime):
        if value.utcoffset() is None:
            raise _NotTakenError("it has no time zone")
        return (value - _EPOCH) // _MICROSECOND
    if isinstance(value, bool | np.bool_) or not hasattr(value, "__index__"):
        raise _NotTakenError(f"it is {_kind(value)}")
    number = operator.index(value)
    if not TIME_US_MIN <= number <= TIME_US_MAX:
        raise _NotTakenError("its year is not 1 to 9999")
    return number


_TAKES: Final[dict[str, Callable[[str, object], object]]] = {
    **dict.fromkeys(("int64", "int32"), _integer),
    **dict.fromkeys(("float32", "float64"), _float),
    "bool": _bool,
    "timestamp": _time,
}


def _free(base: str, value: object) -> bytes | None:
    if value is None:
        return None
    if base == "string" and isinstance(value, str):
        try:
            return value.encode()
        except UnicodeEncodeError as error:
            raise _NotTakenError("it has half of a character") from error
    if base == "bytes" and isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    raise _NotTakenError(f"it is {_kind(value)}")


def _vector(column: Column, value: object) -> np.ndarray[Any, Any]:
    """One vector as an array of its column's type."""
    base, length = column.type.base, column.type.length
    if not isinstance(value, list | tuple | np.ndarray):
        raise _NotTakenError(f"it is {_kind(value)}")
    if np.ma.is_masked(value):
        raise _NotTakenError("a part of it is null, and only the whole may be")
    if isinstance(value, np.ndarray) and value.dtype.kind != "O":
        shape = value.shape
        found = _array(base, value)
    else:
        parts = list(value)
        shape = (len(parts),)
        if any(part is None for part in parts):
            raise _NotTakenError("a part of it is null, and only the whole may be")
        found = np.array([_scalar(base, part) for part in parts], _element(column).type.dtype)
    if shape != (length,):
        raise _NotTakenError(f"its shape is {shape}, and that of the column ({length},)")
    return found


# --- a column of values ---------------------------------------------------------------------------


def _array(base: str, values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Numbers of numpy's as those of a column's type, if all of them fit."""
    dtype = ColumnType(base).dtype
    assert dtype is not None
    kind = values.dtype.kind
    if kind not in _KINDS[base]:
        raise _NotTakenError(f"it is of numpy's type {values.dtype}")
    if kind == "M":
        return _micros(values)
    if base == "timestamp":
        _check_range(values, TIME_US_MIN, TIME_US_MAX, "its year is not 1 to 9999")
        return values.astype(np.int64).view(dtype)
    if base in _RANGES:
        least, most = _RANGES[base]
        _check_range(values, least, most, f"{base} goes from {least} to {most}")
    if base == "float32" and values.dtype != dtype:
        with np.errstate(over="ignore"):
            found = values.astype(dtype)
        if bool((np.isinf(found) & np.isfinite(values)).any()):
            raise _NotTakenError(f"it is too large for {base}")
        return found
    return values.astype(dtype, copy=False)


def _check_range(values: np.ndarray[Any, Any], least: int, most: int, why: str) -> None:
    bounds = np.iinfo(values.dtype)
    inside = least <= bounds.min and bounds.max <= most
    if not inside and values.size and not least <= int(values.min()) <= int(values.max()) <= most:
        raise _NotTakenError(why)


def _micros(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Times in microseconds. From a coarse unit numpy would wrap around without a word: so the
    years are looked at in it."""
    if values.dtype.newbyteorder("=") == np.dtype("M8[us]"):
        found = values
        counts = values.astype("M8[us]").view(np.int64)
        wrong = (counts < TIME_US_MIN) | (counts > TIME_US_MAX)
    else:
        years = values.astype("M8[Y]").view(np.int64) + 1970
        wrong = (years < 1) | (years > 9999)
        found = values.astype("M8[us]")
    if bool((wrong & ~np.isnat(values)).any()):
        raise _NotTakenError("its year is not 1 to 9999")
    return found.astype("<M8[us]", copy=False)


def _listed(
    column: Column, values: Sequence[object]
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any] | None]:
    """A list as one array. Where numpy would read something into it, value by value."""
    base, dtype = column.type.base, column.type.dtype
    null, kinds = None, set(map(type, values))
    if type(None) in kinds:
        null = np.array([value is None for value in values])
        kinds.discard(type(None))
    if kinds <= _PLAIN.get(base, frozenset()):
        full = values if null is None else [0 if value is None else value for value in values]
        try:
            wide = np.array(full, "i8" if base in _RANGES else "f8" if base != "bool" else "?")
            return _array(base, wide), null
        except (OverflowError, _NotTakenError):
            pass  # the slower way says which
    found = []
    for row, value in enumerate(values):
        try:
            found.append(_scalar(base, value))
        except _NotTakenError as error:
            raise _refused(column, value, str(error), row) from error
    null = np.array([each is None for each in found], bool)
    full = [0 if each is None else each for each in found]
    if base == "timestamp":
        full = [0 if each is None else int(each.astype(np.int64)) for each in found]  # type: ignore[attr-defined]
        return np.array(full, np.int64).view(dtype), null if null.any() else None
    return np.array(full, dtype), null if null.any() else None


def _vectors(
    column: Column, values: Any
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any] | None]:
    """A column of vectors as one array of two dimensions."""
    length = column.type.length
    null: np.ndarray[Any, Any] | None = None
    if isinstance(values, np.ma.MaskedArray) and values.ndim == 2:
        null = np.asarray(np.ma.getmaskarray(values).any(axis=1))
        values = values.filled()
    elif not isinstance(values, list | tuple | np.ndarray):
        values = np.asarray(values)
    if isinstance(values, np.ndarray) and values.dtype.kind != "O":
        if values.ndim != 2 or values.shape[1] != length:
            why = f"the shape is {values.shape}, and that of a vector ({length},)"
            raise _refused(column, values, why)
        try:
            return _array(column.type.base, values), null
        except _NotTakenError as error:
            raise _refused_first(column, values, error) from error
    found = np.zeros((len(values), length or 0), _element(column).type.dtype)
    null = np.zeros(len(values), bool)
    for row, value in enumerate(values):
        if value is None:
            null[row] = True
            continue
        try:
            found[row] = _vector(column, value)
        except _NotTakenError as error:
            raise _refused(column, value, str(error), row) from error
    return found, null if null.any() else None


def _element(column: Column) -> Column:
    return Column(column.name, ColumnType(column.type.base), column.number)


# --- what is refused ------------------------------------------------------------------------------


def _kind(value: object) -> str:
    if value is None:
        return "None"
    if isinstance(value, float | np.floating) and np.isnan(value):
        return "NaN"
    return f"of the type {type(value).__name__}"


def _refused(column: Column, value: object, why: str, row: int | None = None) -> Usage:
    shown = reprlib.repr(value)
    return Usage(
        f"{shown} cannot be in the column {column.name!r}"
        + (f" (row {row})" if row is not None else ""),
        why=why,
        fix=f"give {_WANTED[column.type.base]}"
        if column.type.length is None
        else f"give a list or an array of {column.type.length} numbers ({column.type})",
    )


def _refused_first(column: Column, values: np.ndarray[Any, Any], error: _NotTakenError) -> Usage:
    """The refusal of the first row that is at fault; of all of them, where their type is."""
    for row, value in enumerate(values):
        try:
            _array(column.type.base, np.asarray(value)[None])
        except _NotTakenError as found:
            if values.dtype.kind in _KINDS[column.type.base]:
                return _refused(column, value, str(found), row)
            break
    return _refused(column, values, str(error))


_WANTED: Final = {
    **dict.fromkeys(("int64", "int32"), "a whole number"),
    **dict.fromkeys(("float32", "float64"), "a number"),
    "bool": "True or False",
    "timestamp": "a datetime with a time zone, or microseconds since 1970",
    "string": "a str",
    "bytes": "bytes",
}
_TIMES: Final = Column("time", ColumnType("timestamp"), 1)
