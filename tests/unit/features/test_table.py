"""Tables: what may be declared, what is refused and in which words, and the bytes of keys."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.features.columns import ColumnType
from holdfast.features.consistency import duration_of, seconds_of
from holdfast.features.keys import KEY_BYTES_MAX
from holdfast.features.table import COLUMNS_MAX, Consistency, Level, Table
from holdfast.wire.errors import Corrupt, TooLarge, Usage
from tests.unit.features import made
from tests.unit.features.made import DRIVERS


def table(**changed: Any) -> Table:
    given: dict[str, Any] = {"key": "id", "columns": {"a": "int64"}}
    return Table(changed.pop("name", "things"), **(given | changed))


# --- declaring ------------------------------------------------------------------------------------


def test_a_table_has_what_its_user_wrote() -> None:
    assert (DRIVERS.name, DRIVERS.key, DRIVERS.time) == ("drivers", ("driver_id",), "at")
    assert DRIVERS.key_types == (ColumnType("string"),)
    assert [(each.number, each.name, str(each.type)) for each in DRIVERS.columns] == [
        (1, "trips", "int64"),
        (2, "rating", "float32"),
        (3, "taste", "float32[64]"),
        (4, "city", "string"),
    ]
    assert (DRIVERS.ttl_s, DRIVERS.home, DRIVERS.copies) == (7 * 86_400.0, "eu", 3)
    assert (DRIVERS.schema, DRIVERS.skew_max_s) == (1, 60.0)
    assert DRIVERS.consistency == Consistency(strong=True)


def test_what_is_not_written_has_a_safe_default() -> None:
    plain = table()
    assert (plain.time, plain.ttl_s, plain.home, plain.copies) == ("at", None, None, 3)
    assert plain.read_level is plain.write_level is Level.STRONG


def test_a_key_may_have_several_parts_and_types_of_their_own() -> None:
    assert table(key=["user", "item"]).key_types == (ColumnType("string"),) * 2
    assert table(key={"user": "int64", "item": "bytes"}).key_types == (
        ColumnType("int64"),
        ColumnType("bytes"),
    )


def test_a_changed_copy_of_a_table_is_checked_as_the_table_was() -> None:
    assert replace(DRIVERS, copies=5).copies == 5
    assert replace(DRIVERS) == DRIVERS
    with pytest.raises(Usage, match="copies"):
        replace(DRIVERS, copies=0)


@pytest.mark.parametrize(
    "text", ["strong", "eventual", "bounded: 5s", "bounded: 1m", "bounded: 250ms"]
)
def test_a_consistency_is_read_back_from_its_text(text: str) -> None:
    assert Consistency.parse(text).text() == text


def test_a_bounded_table_is_read_and_written_strongly() -> None:
    bounded = table(consistency="bounded: 5s")
    assert bounded.consistency == Consistency(strong=True, age_max_s=5.0)
    assert bounded.read_level is bounded.write_level is Level.STRONG
    assert table(consistency="eventual").read_level is Level.EVENTUAL


@given(made.TYPES)
def test_a_type_is_read_back_from_its_text(kind: ColumnType) -> None:
    assert ColumnType.parse(kind.text()) == kind
    dtype = kind.dtype
    assert kind.width_bytes == (0 if dtype is None else dtype.itemsize)


@given(st.integers(1, 10**9).map(lambda count: count / 1_000))
def test_a_duration_is_read_back_from_its_text(seconds: float) -> None:
    assert seconds_of("ttl", duration_of(seconds)) == seconds


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"name": "Drivers"}, "'Drivers' cannot be the name of a table"),
        ({"name": "d" * 49}, "cannot be the name of a table"),
        ({"columns": {"Über": "int64"}}, "cannot be the name of a column"),
        ({"columns": {"_a": "int64"}}, "cannot be the name of a column"),
        ({"columns": {"a": "flaot32"}}, "did you mean 'float32'"),
        ({"columns": {"a": "double"}}, "write float64"),
        ({"columns": {"a": "string[4]"}}, "a string has any length"),
        ({"columns": {"a": "float32[0]"}}, "a vector has 1 to"),
        ({"columns": {"a": "float32[9999999]"}}, "a vector has 1 to"),
        ({"columns": {"a": "timestamp[3]"}}, "vectors of numbers"),
        ({"columns": {"a": 7}}, "'7' is no type"),
        ({"columns": {}}, "there is no column"),
        ({"columns": {"id": "int64"}}, "'id' is the name of two things"),
        ({"columns": {"at": "int64"}}, "'at' is the name of two things"),
        ({"time": "id"}, "'id' is the name of two things"),
        ({"columns": {f"c{n}": "bool" for n in range(COLUMNS_MAX + 1)}}, "at most 500"),
        ({"columns": {f"c{n}": "float64[65536]" for n in range(2)}}, "at most 1048576 bytes"),
        ({"key": []}, "the key has no part"),
        ({"key": ["id", "id"]}, "is there twice"),
        ({"key": {"id": "float64"}}, "equal, or not, beyond doubt"),
        ({"key": {"id": "int64[2]"}}, "cannot be of the type int64[2]"),
        ({"ttl": "7"}, "'7' is not a duration"),
        ({"ttl": 7}, "7 is not a duration"),
        ({"ttl": "0s"}, "at least 1s"),
        ({"ttl": "9999d"}, "at most 7300d"),
        ({"consistency": "storng"}, "did you mean 'strong'"),
        ({"consistency": "bounded"}, "did you mean 'bounded: 5s'"),
        ({"consistency": "bounded: 0s"}, "more than 0s"),
        ({"consistency": "bounded: 5"}, "'5' is not a duration"),
        ({"consistency": "eventual: 5s"}, "no consistency"),
        ({"home": "e u"}, "cannot be the home"),
        ({"copies": 0}, "a whole number from 1 to 9"),
        ({"copies": True}, "a whole number from 1 to 9"),
        ({"copies": 3.0}, "a whole number from 1 to 9"),
        ({"skew_max_s": float("nan")}, "skew_max_s cannot be nan"),
        ({"skew_max_s": -1.0}, "skew_max_s cannot be -1.0"),
        ({"retired": ["A"]}, "'A' cannot be the name of a column"),
    ],
)
def test_what_cannot_be_is_refused_in_the_words_of_whoever_wrote_it(
    changed: dict[str, Any], words: str
) -> None:
    with pytest.raises(Usage) as refused:
        table(**changed)
    assert words in str(refused.value)
    if "name" not in changed:
        assert refused.value.what.startswith("table 'things': ")


def test_an_unknown_column_is_refused_with_the_nearest_one() -> None:
    with pytest.raises(Usage, match="did you mean 'rating'"):
        DRIVERS.column("ratings")


def test_whoever_only_lists_tables_does_not_wait_for_numpy() -> None:
    program = "import sys, holdfast.features; sys.exit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


# --- keys -----------------------------------------------------------------------------------------


@given(made.tables().flatmap(lambda one: st.tuples(st.just(one), made.keys(one))))
def test_a_key_is_read_back_from_its_bytes(drawn: tuple[Table, tuple[Any, ...]]) -> None:
    one, key = drawn
    assert one.key_of(one.key_bytes(*key)) == key


@given(
    made.tables().flatmap(
        lambda one: st.tuples(st.just(one), st.lists(made.keys(one), min_size=2, max_size=8))
    )
)
def test_two_keys_have_the_same_bytes_only_if_they_are_equal_and_are_ordered_by_their_parts(
    drawn: tuple[Table, list[tuple[Any, ...]]],
) -> None:
    one, many = drawn
    # Texts are ordered as their bytes are.
    plain = [
        tuple(part.encode() if isinstance(part, str) else part for part in key) for key in many
    ]
    data = [one.key_bytes(*key) for key in many]
    order = range(len(many))
    assert sorted(order, key=plain.__getitem__) == sorted(order, key=data.__getitem__)
    assert len(set(data)) == len(set(plain))


@given(
    made.tables().flatmap(lambda one: st.tuples(st.just(one), st.lists(made.keys(one), max_size=8)))
)
def test_many_keys_have_the_bytes_that_each_of_them_has(
    drawn: tuple[Table, list[tuple[Any, ...]]],
) -> None:
    one, many = drawn
    columns = {name: [key[place] for key in many] for place, name in enumerate(one.key)}
    assert one.keys_bytes(columns) == [one.key_bytes(*key) for key in many]


@given(made.tables(), st.binary(max_size=24))
def test_bytes_are_the_key_that_has_them_or_are_refused(one: Table, data: bytes) -> None:
    try:
        key = one.key_of(data)
    except Corrupt:
        return
    assert one.key_bytes(*key) == data


def test_the_parts_of_a_key_cannot_be_shifted() -> None:
    pair = table(key=["user", "item"])
    assert pair.key_bytes("a", "bc") != pair.key_bytes("ab", "c")
    assert pair.key_bytes("a\x00", "b") != pair.key_bytes("a", "\x00b")


def test_a_key_of_one_text_is_this_text() -> None:
    assert DRIVERS.key_bytes("Köln") == "Köln".encode()


def test_numbers_of_numpys_are_keys_like_pythons() -> None:
    numbered = table(key={"id": "int64"})
    wanted = [numbered.key_bytes(number) for number in (-1, 0, 2**40)]
    array = np.array([-1, 0, 2**40])
    assert numbered.keys_bytes(array) == wanted
    assert [numbered.key_bytes(number) for number in array] == wanted
    assert numbered.keys_bytes(list(array)) == wanted
    assert DRIVERS.keys_bytes(np.array(["a", "b"])) == [b"a", b"b"]


@pytest.mark.parametrize(
    ("kind", "value", "words"),
    [
        ("string", None, "it is None"),
        ("string", float("nan"), "it is NaN"),
        ("string", np.float32("nan"), "it is NaN"),
        ("string", "", "it is empty"),
        ("string", 7, "it is of the type int"),
        ("string", b"a", "it is of the type bytes"),
        ("string", "\ud800", "half of a character"),
        ("bytes", b"", "it is empty"),
        ("bytes", "a", "it is of the type str"),
        ("int64", None, "it is None"),
        ("int64", float("nan"), "it is NaN"),
        ("int64", 1.0, "it is of the type float"),
        ("int64", True, "it is of the type bool"),
        ("int64", np.True_, "it is of the type bool"),
        ("int64", "1", "it is of the type str"),
        ("int64", 2**63, "int64 goes from"),
        ("int64", np.array([1, 2]), "it is of the type ndarray"),
        ("int32", 2**31, "int32 goes from"),
    ],
)
def test_what_is_no_key_is_refused(kind: str, value: object, words: str) -> None:
    one = table(key={"id": kind})
    with pytest.raises(Usage) as refused:
        one.key_bytes(value)
    assert words in refused.value.why
    with pytest.raises(Usage) as refused:
        one.keys_bytes([value])
    assert words in refused.value.why
    pair = table(key={"id": kind, "other": "string"})
    with pytest.raises(Usage, match="'id' of a key"):
        pair.keys_bytes({"id": [value], "other": ["x"]})


def test_a_key_has_all_its_parts_and_no_more() -> None:
    pair = table(key=["user", "item"])
    with pytest.raises(Usage, match="2 parts, not 1"):
        pair.key_bytes("a")
    with pytest.raises(Usage, match="1 part, not 2"):
        DRIVERS.key_bytes("a", "b")
    with pytest.raises(Usage, match="give the values of each part by its name"):
        pair.keys_bytes(["a"])
    with pytest.raises(Usage, match="'item' of the key is missing"):
        pair.keys_bytes({"user": ["a"]})


def test_a_key_has_at_most_a_kibibyte() -> None:
    assert DRIVERS.key_bytes("x" * KEY_BYTES_MAX)
    with pytest.raises(TooLarge, match="1025 bytes"):
        DRIVERS.key_bytes("x" * (KEY_BYTES_MAX + 1))
    with pytest.raises(TooLarge, match="1025 bytes"):
        DRIVERS.keys_bytes(["a", "x" * (KEY_BYTES_MAX + 1)])


def test_a_key_is_read_as_people_write_it() -> None:
    mixed = table(key={"user": "int64", "item": "string", "raw": "bytes"})
    assert mixed.key_from_text("-3", "x y", "00ff") == (-3, "x y", b"\x00\xff")
    with pytest.raises(Usage, match="'three' cannot be 'user' of a key"):
        mixed.key_from_text("three", "x", "00")
    with pytest.raises(Usage, match="3 parts, not 1"):
        mixed.key_bytes(*mixed.key_from_text("3"))
