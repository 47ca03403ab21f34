"""Tables, rows and values of any kind, for properties."""

from __future__ import annotations

import datetime
import math
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from hypothesis import strategies as st

from holdfast.features.columns import ColumnType
from holdfast.features.rows import RowVersion
from holdfast.features.table import Table

DRIVERS: Final = Table(
    "drivers",
    key="driver_id",
    time="at",
    ttl="7d",
    consistency="strong",
    home="eu",
    copies=3,
    columns={"trips": "int64", "rating": "float32", "taste": "float32[64]", "city": "string"},
)
NOW: Final = RowVersion(1_767_225_600_000_000, 7, 1)

NAMES: Final = st.from_regex(r"[a-z][a-z0-9_]{0,7}", fullmatch=True)
TEXTS: Final = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
_YEARS: Final = st.datetimes(
    datetime.datetime(1, 1, 2), datetime.datetime(9999, 12, 30), timezones=st.just(datetime.UTC)
)
_SCALARS: Final[dict[str, st.SearchStrategy[Any]]] = {
    "int64": st.integers(-(2**63), 2**63 - 1),
    "int32": st.integers(-(2**31), 2**31 - 1),
    "float32": st.floats(width=32),
    "float64": st.floats(),
    "bool": st.booleans(),
    "timestamp": _YEARS,
    "string": TEXTS,
    "bytes": st.binary(max_size=12),
}
TYPES: Final = st.one_of(
    st.sampled_from([ColumnType(base) for base in _SCALARS]),
    st.builds(
        ColumnType,
        st.sampled_from(["int64", "int32", "float32", "float64", "bool"]),
        st.integers(1, 5),
    ),
)
KEY_VALUES: Final[dict[str, st.SearchStrategy[Any]]] = {
    "int64": _SCALARS["int64"],
    "int32": _SCALARS["int32"],
    # Many zeros and equal beginnings: what an escape could confuse.
    "string": st.text("a\x00b\xff", min_size=1, max_size=4) | TEXTS.filter(bool),
    "bytes": st.lists(st.sampled_from([b"\x00", b"\xff", b"a"]), min_size=1, max_size=4).map(
        b"".join
    ),
}
VERSIONS: Final = st.builds(
    RowVersion,
    st.integers(-(2**63), 2**63 - 1) | st.integers(-2, 2),
    st.integers(0, 2**64 - 1) | st.integers(0, 2),
    st.integers(0, 2**64 - 1) | st.integers(0, 2),
)


def values(kind: ColumnType) -> st.SearchStrategy[Any]:
    """Values of a type, and null."""
    one = _SCALARS[kind.base]
    if kind.length is None:
        return st.none() | one
    return st.none() | st.lists(one, min_size=kind.length, max_size=kind.length)


@st.composite
def tables(draw: st.DrawFn) -> Table:
    """Tables of up to ten columns (more than eight: two bytes of nulls), with any key."""
    names = draw(st.lists(NAMES, unique=True, min_size=3, max_size=14))
    parts = draw(st.integers(1, min(3, len(names) - 2)))
    key = {name: draw(st.sampled_from(sorted(KEY_VALUES))) for name in names[:parts]}
    columns = {name: draw(TYPES).text() for name in names[parts + 1 :]}
    return Table("any", key=key, time=names[parts], columns=columns)


def keys(table: Table) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.tuples(*[KEY_VALUES[kind.base] for kind in table.key_types])


def rows(table: Table) -> st.SearchStrategy[dict[str, Any]]:
    """Values of a row with its key."""
    parts = {
        name: KEY_VALUES[kind.base] for name, kind in zip(table.key, table.key_types, strict=True)
    }
    return st.fixed_dictionaries(
        parts | {column.name: values(column.type) for column in table.living}
    )


def same(found: object, wanted: object) -> bool:
    """Whether they are the same value: NaN is NaN, and a vector is its numbers."""
    if isinstance(wanted, list) or isinstance(found, np.ndarray):
        assert isinstance(found, np.ndarray) and isinstance(wanted, list | np.ndarray)
        return len(found) == len(wanted) and all(
            map(same, found.tolist(), np.asarray(wanted).tolist())
        )
    if isinstance(wanted, float) and math.isnan(wanted):
        return isinstance(found, float) and math.isnan(found)
    return found == wanted and (wanted is None) == (found is None)


def all_same(found: Mapping[str, object], wanted: Mapping[str, object]) -> bool:
    return found.keys() == wanted.keys() and all(same(found[name], wanted[name]) for name in wanted)
