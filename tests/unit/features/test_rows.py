"""Rows: what is written is read back, one or many at a time; the larger bytes are the newer row;
what does not fit is refused."""

from __future__ import annotations

import datetime
import struct
import zlib
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.features import rows
from holdfast.features.rows import Row, RowVersion, RowVersions
from holdfast.features.table import ROW_BYTES_MAX, Table, change
from holdfast.features.values import TIME_US_MAX, time_us, times_us
from holdfast.wire.errors import Missing, TooLarge, Usage
from tests.unit.features import made
from tests.unit.features.made import DRIVERS, NOW
from tests.unit.features.test_change import grown

UTC = datetime.UTC
Values = dict[str, Any]
# Of each type one column, and two that can be of any length.
ALL = Table(
    "all",
    key="id",
    columns={
        "i8": "int64",
        "i4": "int32",
        "f4": "float32",
        "f8": "float64",
        "yes": "bool",
        "seen": "timestamp",
        "text": "string",
        "raw": "bytes",
        "v": "float32[3]",
        "w": "int32[2]",
    },
)

SMALL = Table("small", key="id", columns={"a": "int32", "b": "string"})


def features_of(table: Table, values: Values) -> Values:
    return {column.name: values[column.name] for column in table.living}


def versions_of(count: int) -> RowVersions:
    return RowVersions.of(range(count), 1, range(count))


def encoded(table: Table, many: list[Values]) -> list[Row]:
    versions = versions_of(len(many))
    return [rows.encode(table, versions[at], values) for at, values in enumerate(many)]


def columns_of(table: Table, many: list[Values]) -> dict[str, list[Any]]:
    names = [*table.key, *(column.name for column in table.living)]
    return {name: [values[name] for values in many] for name in names}


@st.composite
def written(draw: st.DrawFn) -> tuple[Table, list[Values]]:
    """A table, and what is written into it."""
    table = draw(made.tables())
    return table, draw(st.lists(made.rows(table), min_size=1, max_size=6))


# --- one row --------------------------------------------------------------------------------------


@given(written(), made.VERSIONS)
def test_a_row_is_read_back_as_it_was_written(
    drawn: tuple[Table, list[Values]], version: RowVersion
) -> None:
    table, (values, *_) = drawn
    row = rows.encode(table, version, values)
    assert made.all_same(rows.decode(table, row.data), features_of(table, values))
    assert (row.version, row.at_us, row.deleted) == (version, version.at_us, False)
    assert table.key_of(row.key) == tuple(values[name] for name in table.key)


@given(st.lists(st.tuples(made.VERSIONS, st.booleans(), made.rows(SMALL)), min_size=2, max_size=6))
def test_of_two_rows_the_larger_bytes_are_the_newer(
    drawn: list[tuple[RowVersion, bool, Values]],
) -> None:
    made_rows = [
        rows.deleted(SMALL, version, b"k") if gone else rows.encode(SMALL, version, values)
        for version, gone, values in drawn
    ]
    by_bytes = sorted(made_rows, key=lambda row: row.data)
    assert [row.version for row in by_bytes] == sorted(version for version, _, _ in drawn)


def test_a_deletion_wins_over_a_row_of_the_same_version() -> None:
    row = rows.encode(DRIVERS, NOW, {"driver_id": "a", "trips": -1})
    gone = rows.deleted(DRIVERS, NOW, row.key)
    assert gone.data > row.data
    assert gone.deleted and rows.is_deleted(gone.data) and not rows.is_deleted(row.data)
    assert gone.version == rows.version_of(gone.data) == NOW
    assert rows.decode(DRIVERS, gone.data) == {}


def test_what_is_not_given_is_null_and_a_row_is_always_whole() -> None:
    row = rows.encode(DRIVERS, NOW, {"driver_id": "a", "trips": 3})
    assert rows.decode(DRIVERS, row.data) == {
        "trips": 3,
        "rating": None,
        "taste": None,
        "city": None,
    }
    empty = rows.encode(DRIVERS, NOW, {"driver_id": "a"})
    assert set(rows.decode(DRIVERS, empty.data).values()) == {None}


def test_only_what_is_asked_for_is_decoded() -> None:
    row = rows.encode(DRIVERS, NOW, {"driver_id": "a", "trips": 3, "city": "Köln"})
    assert rows.decode(DRIVERS, row.data, ["city"]) == {"city": "Köln"}
    with pytest.raises(Usage, match="did you mean 'city'"):
        rows.decode(DRIVERS, row.data, ["citi"])


def test_a_nan_is_a_value_and_no_null() -> None:
    row = rows.encode(DRIVERS, NOW, {"driver_id": "a", "rating": float("nan")})
    assert np.isnan(rows.decode(DRIVERS, row.data)["rating"])  # type: ignore[call-overload]
    batch = rows.decode_batch({1: DRIVERS}, [row.data], ["rating"])
    assert batch.valid["rating"].tolist() == [True]


def test_the_time_may_stand_among_the_values_if_it_is_that_of_the_version() -> None:
    at = datetime.datetime.fromtimestamp(NOW.at_us / 1e6, UTC)
    given = {"driver_id": "a", "at": at, "trips": 3}
    assert rows.encode(DRIVERS, NOW, given) == rows.encode(
        DRIVERS, NOW, {"driver_id": "a", "trips": 3}
    )
    with pytest.raises(Usage, match="not that of its version"):
        rows.encode(DRIVERS, NOW, given | {"at": at + datetime.timedelta(microseconds=1)})
    versions = RowVersions.of([NOW.at_us] * 2, 1, [1, 2])
    columns = {"driver_id": ["a", "b"], "trips": [1, 2]}
    assert rows.encode_batch(DRIVERS, versions, columns | {"at": [at, at]})
    with pytest.raises(Usage, match=r"not that of its version \(row 1\)"):
        rows.encode_batch(DRIVERS, versions, columns | {"at": [at, NOW.at_us + 1]})


def test_the_bytes_of_a_row_are_those_that_the_format_says() -> None:
    """Rows outlive the version that wrote them: writer and reader may not change together."""
    columns = {"z": "int32", "text": "string", "a": "float32", "none": "int64", "raw": "bytes"}
    table = Table("t", key="id", columns=columns)
    given = {"id": "k", "z": -2, "text": "ä", "a": 0.5, "none": None, "raw": b"\x00\x01"}
    header = struct.pack(">QQQBI", 2**63 - 5, 6, 7, 0, 1)
    body = b"\x08" + struct.pack("<ifqII", -2, 0.5, 0, 2, 4) + "ä".encode() + b"\x00\x01"
    closed = header + body + struct.pack("<I", zlib.crc32(header + body))
    assert rows.encode(table, RowVersion(-5, 6, 7), given).data == closed
    gone = struct.pack(">QQQBI", 2**63 - 5, 6, 7, 1, 1)
    closed = gone + struct.pack("<I", zlib.crc32(gone))
    assert rows.deleted(table, RowVersion(-5, 6, 7), b"k").data == closed


# --- many rows ------------------------------------------------------------------------------------


@given(written())
def test_many_rows_are_encoded_as_each_of_them_is(drawn: tuple[Table, list[Values]]) -> None:
    table, many = drawn
    found = rows.encode_batch(table, versions_of(len(many)), columns_of(table, many))
    assert found == encoded(table, many)


@given(written())
def test_arrays_are_encoded_as_lists_are(drawn: tuple[Table, list[Values]]) -> None:
    table, many = drawn
    columns: dict[str, Any] = columns_of(table, many)
    for column in table.living:
        given = columns[column.name]
        if column.type.dtype is not None and None not in given:
            zone_free = [
                each.replace(tzinfo=None) if column.type.base == "timestamp" else each
                for each in given
            ]
            columns[column.name] = np.array(zone_free, column.type.dtype.base)
    assert rows.encode_batch(table, versions_of(len(many)), columns) == encoded(table, many)


@given(written(), st.data())
def test_many_rows_are_decoded_as_each_of_them_is(
    drawn: tuple[Table, list[Values]], data: st.DataObject
) -> None:
    table, many = drawn
    found: list[bytes | None] = [row.data for row in encoded(table, many)]
    for at in data.draw(st.sets(st.integers(0, len(found) - 1))):
        gone = rows.deleted(table, RowVersion(at, 1, at), b"k")
        found[at] = data.draw(st.sampled_from([None, gone.data]))
    batch = rows.decode_batch({1: table}, found)
    assert list(batch.columns) == [column.name for column in table.living]
    for at, row in enumerate(found):
        assert batch.present[at] == (row is not None and not rows.is_deleted(row))
        assert batch.at_us[at] == (0 if row is None else rows.version_of(row).at_us)
        assert batch.versions[at] == (RowVersion(0, 0, 0) if row is None else rows.version_of(row))
        wanted = rows.decode(table, row) if row is not None else {}
        for name in batch.columns:
            assert_cell(batch, name, at, wanted.get(name))


def assert_cell(batch: rows.RowBatch, name: str, at: int, wanted: object) -> None:
    """What stands there is this value; for null, what nobody takes for one."""
    column, valid = batch.columns[name], batch.valid[name]
    assert bool(valid[at]) == (wanted is not None)
    if isinstance(column, list):
        assert column[at] == wanted
    elif wanted is None:
        blank = column[at]
        kind = column.dtype.kind
        assert (
            np.isnan(blank).all()
            if kind == "f"
            else np.isnat(blank)
            if kind == "M"
            else (not np.any(blank))
        )
    elif isinstance(wanted, datetime.datetime):
        assert column[at] == np.datetime64(wanted.replace(tzinfo=None), "us")
    else:
        assert made.same(column[at] if column.ndim > 1 else column[at].item(), wanted)


def test_columns_come_as_arrays_of_their_types_that_may_be_changed() -> None:
    row = rows.encode(ALL, NOW, {"id": "a", "v": [1, 2, 3], "text": "ä", "raw": b"\x00"})
    for found in ([row.data] * 2, [row.data], [row.data, None], [None], []):
        batch = rows.decode_batch({1: ALL}, found)
        assert len(batch) == len(found)
        for column in ALL.columns:
            value = batch.columns[column.name]
            if column.type.dtype is None:
                assert isinstance(value, list) and len(value) == len(found)
                continue
            assert isinstance(value, np.ndarray) and value.flags.writeable
            assert value.dtype == column.type.dtype.base
            assert value.shape == (len(found), *column.type.dtype.shape)
            assert value.flags.c_contiguous


def test_nothing_is_decoded_of_what_nobody_asks_for() -> None:
    row = rows.encode(DRIVERS, NOW, {"driver_id": "a", "trips": 3})
    batch = rows.decode_batch({1: DRIVERS}, [row.data, None], [])
    assert (batch.columns, batch.present.tolist()) == ({}, [True, False])


def test_a_batch_without_rows_is_one() -> None:
    assert rows.encode_batch(DRIVERS, versions_of(0), {"driver_id": [], "trips": []}) == []


def test_masked_values_and_times_that_are_none_are_null() -> None:
    masked = np.ma.MaskedArray([1, 2], [False, True])
    vectors = np.ma.MaskedArray(np.ones((2, 3), "f4"), [[False] * 3, [True] * 3])
    seen = np.array(["2026-01-01", "NaT"], "M8[s]")
    texts = np.ma.MaskedArray(np.array(["a", "b"], object), [False, True])
    found = rows.encode_batch(
        ALL,
        versions_of(2),
        {"id": ["a", "b"], "i8": masked, "v": vectors, "seen": seen, "text": texts},
    )
    first, second = (rows.decode(ALL, row.data) for row in found)
    assert (first["i8"], first["seen"]) == (1, datetime.datetime(2026, 1, 1, tzinfo=UTC))
    assert made.same(first["v"], [1.0, 1.0, 1.0]) and first["text"] == "a"
    assert set(second.values()) == {None}
    # What lay under the mask is in no byte of the row.
    assert found[1] == rows.encode(ALL, versions_of(2)[1], {"id": "b"})


def test_a_users_arrays_stay_as_they_are() -> None:
    seen = np.array(["2026-01-01", "NaT"], "M8[us]")
    masked = np.ma.MaskedArray([1.5, 2.5], [False, True])
    rows.encode_batch(ALL, versions_of(2), {"id": np.array(["a", "b"]), "seen": seen, "f8": masked})
    assert np.isnat(seen[1]) and masked.data.tolist() == [1.5, 2.5]


@pytest.mark.parametrize("dtype", ["i1", "u2", "i8", ">i8", "u8"])
def test_numbers_of_any_width_are_taken_where_they_fit(dtype: str) -> None:
    numbers = np.array([0, 1, 100], dtype)
    given = {"id": ["a", "b", "c"], "i8": numbers, "i4": numbers, "f4": numbers, "f8": numbers}
    for row, number in zip(rows.encode_batch(ALL, versions_of(3), given), (0, 1, 100), strict=True):
        found = rows.decode(ALL, row.data, ["i8", "i4", "f4", "f8"])
        assert set(found.values()) == {number}


@pytest.mark.parametrize("unit", ["Y", "M", "D", "h", "s", "ms", "us", "ns"])
def test_times_are_taken_in_any_unit(unit: str) -> None:
    times = np.array(["2026-01-01", "1969-01-01"], f"M8[{unit}]")
    found = rows.encode_batch(ALL, versions_of(2), {"id": ["a", "b"], "seen": times})
    assert [rows.decode(ALL, row.data)["seen"] for row in found] == [
        datetime.datetime(2026, 1, 1, tzinfo=UTC),
        datetime.datetime(1969, 1, 1, tzinfo=UTC),
    ]


# --- schemas --------------------------------------------------------------------------------------


@given(st.data())
def test_the_newest_definition_reads_the_rows_of_every_schema(data: st.DataObject) -> None:
    schemas = grown(data)
    newest = schemas[-1]
    kept = []
    for table in schemas:
        kept.append((table, data.draw(made.rows(table))))
    found = [rows.encode(table, NOW, values).data for table, values in kept]
    everything = [column.name for column in newest.columns]
    for known in ({newest.schema: newest}, {table.schema: table for table in schemas}):
        batch = rows.decode_batch(known, found, everything)
        for at, (table, values) in enumerate(kept):
            there = features_of(table, values)
            for name in everything:
                assert (not batch.valid[name][at]) == (there.get(name) is None)
            alone = rows.decode(newest, found[at], everything)
            assert made.all_same(alone, {name: there.get(name) for name in everything})
            for name in everything:
                assert_cell(batch, name, at, alone[name])
    assert list(rows.decode_batch(known, found).columns) == [each.name for each in newest.living]


def evolved() -> tuple[Table, Table]:
    old = change(None, Table("t", key="id", columns={"a": "int64", "b": "string"})).table
    declared = Table("t", key="id", columns={"a": "int64", "c": "float32"}, retired=["b"])
    return old, change(old, declared).table


def test_a_row_has_the_columns_of_its_own_schema_and_no_others() -> None:
    _, new = evolved()
    assert [column.name for column in new.layout(1).columns] == ["a", "b"]
    assert [column.name for column in new.layout(2).columns] == ["a", "c"]


def test_a_column_that_came_later_is_null_in_older_rows() -> None:
    old, new = evolved()
    row = rows.encode(old, NOW, {"id": "x", "a": 1, "b": "kept"})
    assert rows.decode(new, row.data) == {"a": 1, "c": None}


def test_a_retired_column_is_not_returned_but_what_was_written_in_it_can_be_read() -> None:
    old, new = evolved()
    data = rows.encode(old, NOW, {"id": "x", "a": 1, "b": "kept"}).data
    later = rows.encode(new, NOW, {"id": "x", "a": 2, "c": 0.5}).data
    assert rows.decode(new, data, ["b"]) == {"b": "kept"}
    assert rows.decode(new, later, ["b"]) == {"b": None}
    batch = rows.decode_batch({2: new}, [data, later])
    assert list(batch.columns) == ["a", "c"]
    assert rows.decode_batch({2: new}, [data, later], ["b"]).columns["b"] == ["kept", None]
    with pytest.raises(Usage, match="is retired"):
        rows.encode(new, NOW, {"id": "x", "b": "again"})


def test_a_row_of_a_newer_definition_asks_for_that_definition() -> None:
    old, new = evolved()
    data = rows.encode(new, NOW, {"id": "x", "a": 2}).data
    for read in (
        lambda: rows.decode(old, data),
        lambda: rows.decode_batch({1: old}, [None, data]),
    ):
        with pytest.raises(Missing, match="is not known in schema 2"):
            read()
    gone = rows.deleted(new, NOW, b"x").data
    assert rows.decode_batch({1: old}, [gone]).present.tolist() == [False]


def test_a_row_of_a_removed_table_of_the_same_name_is_not_there() -> None:
    old, _ = evolved()
    left = rows.encode(old, NOW, {"id": "x", "a": 1, "b": "left"}).data
    plain = Table("t", key="id", columns={"a": "string"})
    columns = tuple(replace(column, since=2) for column in plain.columns)
    new = replace(plain, columns=columns, schema=2)
    own = rows.encode(new, NOW, {"id": "x", "a": "own"}).data
    assert rows.decode(new, left) == {}
    for found in ([left, own], [left, own, None]):
        batch = rows.decode_batch({2: new}, found)
        assert batch.columns["a"] == [None, "own", None][: len(found)]
        assert batch.present.tolist() == [False, True, False][: len(found)]
        assert batch.versions[0] == RowVersion(0, 0, 0)
    assert rows.decode_batch({2: new}, [left]).present.tolist() == [False]


# --- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("i8", 1.0, "type float"),
        ("i8", True, "type bool"),
        ("i8", np.True_, "type bool"),
        ("i8", "1", "type str"),
        ("i8", float("nan"), "it is NaN"),
        ("i8", 2**63, "int64 goes from"),
        ("i8", 10**30, "int64 goes from"),
        ("i8", [1], "type list"),
        ("i4", 2**31, "int32 goes from"),
        ("i4", -(2**31) - 1, "int32 goes from"),
        ("f4", 1e39, "too large for float32"),
        ("f4", True, "type bool"),
        ("f4", "0.5", "type str"),
        ("f8", 10**400, "too large for float64"),
        ("f8", np.array([1.0, 2.0]), "an array of the shape (2,)"),
        ("yes", 1, "type int"),
        ("yes", "true", "type str"),
        ("seen", datetime.datetime(2026, 1, 1), "no time zone"),
        ("seen", "2026-01-01T00:00:00", "no time zone"),
        ("seen", "yesterday", "it is not written as"),
        ("seen", 1.5, "type float"),
        ("seen", TIME_US_MAX + 1, "year is not 1 to 9999"),
        ("seen", np.datetime64(300_000, "Y"), "year is not 1 to 9999"),
        ("seen", np.datetime64(2**62, "us"), "year is not 1 to 9999"),
        ("text", b"a", "type bytes"),
        ("text", 7, "type int"),
        ("text", "\ud800", "half of a character"),
        ("raw", "a", "type str"),
        ("v", [1.0, 2.0], "its shape is (2,)"),
        ("v", [1.0, 2.0, None], "only the whole may be"),
        ("v", [1.0, 2.0, 1e39], "too large for float32"),
        ("v", [[1.0, 2.0, 3.0]], "type list"),
        ("v", np.ones((1, 3)), "its shape is (1, 3)"),
        ("v", 1.0, "type float"),
        ("v", "abc", "type str"),
        ("w", [1, 2.5], "type float"),
        ("w", np.array([1.0, 2.0]), "numpy's type float64"),
        ("w", [1, 2**31], "int32 goes from"),
    ],
)
def test_a_value_that_does_not_fit_is_refused_with_its_column_and_row(
    name: str, value: object, words: str
) -> None:
    with pytest.raises(Usage) as refused:
        rows.encode(ALL, NOW, {"id": "a", name: value})
    assert words in refused.value.why and repr(name) in refused.value.what
    with pytest.raises(Usage) as refused:
        rows.encode_batch(ALL, versions_of(2), {"id": ["a", "b"], name: [None, value]})
    assert words in refused.value.why
    assert f"{name!r} (row 1)" in refused.value.what


@pytest.mark.parametrize(
    ("name", "values", "words"),
    [
        ("i8", np.array([1.0, 2.0]), "numpy's type float64"),
        ("i8", np.array([1, 2**63], "u8"), "int64 goes from"),
        ("i4", np.array([1, 2**31]), "int32 goes from"),
        ("f4", np.array([1.0, 1e39]), "too large for float32"),
        ("f4", np.array([True, False]), "numpy's type bool"),
        ("yes", np.array([0, 1]), "numpy's type int64"),
        ("seen", np.array([0.0, 1.0]), "numpy's type float64"),
        ("seen", np.array([0, 300_000], "M8[Y]"), "year is not 1 to 9999"),
        ("raw", np.array([b"a", b"b"]), "drops zeros"),
        ("v", np.ones((2, 2), "f4"), "the shape is (2, 2)"),
        ("v", np.ones(2, "f4"), "the shape is (2,)"),
        ("v", np.array([[0.0] * 3, [1e39] * 3]), "too large for float32"),
        ("i8", np.ones((2, 2), "i8"), "type list"),
    ],
)
def test_an_array_that_does_not_fit_is_refused(
    name: str, values: np.ndarray[Any, Any], words: str
) -> None:
    with pytest.raises(Usage) as refused:
        rows.encode_batch(ALL, versions_of(2), {"id": ["a", "b"], name: values})
    assert words in refused.value.why and repr(name) in refused.value.what


def test_the_row_that_is_at_fault_in_an_array_is_named() -> None:
    columns: dict[str, Any] = {"id": ["a", "b", "c"], "i4": np.array([1, 2**31, 2**32])}
    with pytest.raises(Usage, match=r"'i4' \(row 1\)"):
        rows.encode_batch(ALL, versions_of(3), columns)


def test_a_name_that_the_table_does_not_have_is_refused_with_the_nearest_one() -> None:
    with pytest.raises(Usage, match="did you mean 'trips'"):
        rows.encode(DRIVERS, NOW, {"driver_id": "a", "trip": 1})
    with pytest.raises(Usage, match="did you mean 'driver_id'"):
        rows.encode_batch(DRIVERS, versions_of(1), {"driver": ["a"], "trips": [1]})
    with pytest.raises(Usage, match="'driver_id' of the key is missing"):
        rows.encode_batch(DRIVERS, versions_of(1), {"trips": [1]})
    with pytest.raises(Usage, match="None cannot be 'driver_id'"):
        rows.encode(DRIVERS, NOW, {"trips": 1})


def test_columns_of_different_lengths_are_refused() -> None:
    with pytest.raises(Usage, match="'trips' has 1 values, and there are 2"):
        rows.encode_batch(DRIVERS, versions_of(2), {"driver_id": ["a", "b"], "trips": [1]})


def test_a_row_has_at_most_a_mebibyte() -> None:
    table = Table("t", key="id", columns={"a": "string"})
    most = "x" * (ROW_BYTES_MAX - 29 - 1 - 4 - 4)
    row = rows.encode(table, NOW, {"id": "k", "a": most})
    assert len(row.data) == ROW_BYTES_MAX
    assert rows.encode_batch(table, versions_of(1), {"id": ["k"], "a": [most]})
    with pytest.raises(TooLarge, match=f"{ROW_BYTES_MAX + 1} bytes"):
        rows.encode(table, NOW, {"id": "k", "a": most + "x"})
    with pytest.raises(TooLarge, match=f"{ROW_BYTES_MAX + 1} bytes"):
        rows.encode_batch(table, versions_of(2), {"id": ["j", "k"], "a": ["", most + "x"]})


def test_a_version_has_numbers_of_its_types() -> None:
    assert RowVersion(np.int64(-5), np.uint64(2**63), np.int64(1)) == RowVersion(-5, 2**63, 1)  # type: ignore[arg-type]
    for wrong in ((2**63, 0, 0), (0, -1, 0), (0, 0, 2**64)):
        with pytest.raises(Usage, match="there is no version"):
            RowVersion(*wrong)
        with pytest.raises(Usage, match="no versions of rows"):
            RowVersions.of(*wrong)
    for odd in ([1.5], ["a"], [None]):
        with pytest.raises(Usage, match="no versions of rows"):
            RowVersions.of(odd, 0, 0)
    with pytest.raises(Usage, match="no versions of rows"):
        RowVersions.of([1, 2], [1, 2, 3], 0)


@pytest.mark.parametrize("at_us", [NOW.at_us + 60_000_001, np.array([0, NOW.at_us + 60_000_001])])
def test_an_event_too_far_in_the_future_is_refused(at_us: Any) -> None:
    with pytest.raises(Usage, match="in the future"):
        rows.check_time(DRIVERS, at_us, NOW.at_us)
    rows.check_time(DRIVERS, at_us - 1, NOW.at_us)
    rows.check_time(DRIVERS, np.zeros(0, np.int64), NOW.at_us)


def test_a_time_is_understood_in_every_spelling_that_has_a_zone() -> None:
    noon = datetime.datetime(2026, 1, 31, 12, tzinfo=UTC)
    wanted = 1_769_860_800_000_000
    east = noon.astimezone(datetime.timezone(datetime.timedelta(hours=5)))
    spellings: list[object] = [
        noon,
        east,
        wanted,
        np.int64(wanted),
        "2026-01-31T12:00:00Z",
        "2026-01-31T17:00:00+05:00",
        np.datetime64("2026-01-31T12"),
    ]
    assert [time_us(each) for each in spellings] == [wanted] * len(spellings)
    found, null = times_us([*spellings, None, np.datetime64("NaT")])
    assert found.tolist()[:-2] == [wanted] * len(spellings)
    assert null.tolist() == [False] * len(spellings) + [True, True]
    assert time_us(None) is None and time_us(np.datetime64("NaT")) is None
    with pytest.raises(Usage, match="is no time"):
        time_us("noon")
