"""What may become of a table: columns are added and retired, and nothing written is lost."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.features.table import Table, TableChange, change
from holdfast.wire.errors import Conflict
from tests.unit.features import made

FIRST = {"trips": "int64", "rating": "float32", "city": "string"}


def declared(columns: dict[str, str], **settings: Any) -> Table:
    given: dict[str, Any] = {"key": "driver_id", "columns": columns}
    return Table("drivers", **(given | settings))


def stored(columns: dict[str, str] = FIRST, **settings: Any) -> Table:
    return change(None, declared(columns, **settings)).table


def names(columns: tuple[Any, ...]) -> list[str]:
    return [column.name for column in columns]


def test_a_new_table_is_stored_as_it_is_declared() -> None:
    found = change(None, declared(FIRST))
    assert found.is_new and not found.is_empty
    assert found.table == declared(FIRST)
    assert found.lines() == ["+ trips: int64", "+ rating: float32", "+ city: string"]


def test_the_same_again_changes_nothing() -> None:
    old = stored()
    found = change(old, declared(FIRST))
    assert found.is_empty and found.table is old
    assert found.lines() == []
    assert names(found.unchanged) == ["trips", "rating", "city"]


def test_another_order_in_the_file_is_no_change() -> None:
    assert change(stored(), declared(dict(reversed(FIRST.items())))).is_empty


def test_an_added_column_has_the_next_number_wherever_it_stands() -> None:
    found = change(stored(), declared({"tips": "float64"} | FIRST))
    assert names(found.added) == ["tips"]
    (tips,) = found.added
    assert (tips.number, tips.since, found.table.schema) == (4, 2, 2)
    assert names(found.unchanged) == ["trips", "rating", "city"]
    assert found.lines() == ["+ tips: float64"]


def test_a_column_is_retired_where_it_stands_or_once_it_is_gone_from_the_file() -> None:
    rest = {"trips": "int64", "rating": "float32"}
    marked = change(stored(), declared(FIRST, retired=["city"]))
    gone = change(stored(), declared(rest, retired="city"))
    assert marked == gone
    assert names(gone.retired) == ["city"] and names(gone.table.living) == ["trips", "rating"]
    assert gone.table.column("city").until == 2
    assert gone.lines() == ["- city: string (retired)"]


def test_what_was_retired_stays_so_whatever_the_file_still_says_of_it() -> None:
    rest = {"trips": "int64", "rating": "float32"}
    old = change(stored(), declared(rest, retired=["city"])).table
    assert change(old, declared(rest)).is_empty
    assert change(old, declared(rest, retired=["city"])).is_empty
    assert change(old, declared(FIRST, retired=["city"])).is_empty


def test_a_new_table_of_a_file_with_retired_columns_has_none_of_them() -> None:
    found = change(None, declared(FIRST, retired=["rating", "long_gone"]))
    assert [(each.number, each.name) for each in found.table.columns] == [(1, "trips"), (2, "city")]
    assert change(found.table, declared(FIRST, retired=["rating", "long_gone"])).is_empty


def test_the_number_of_a_retired_column_is_given_to_no_other() -> None:
    rest = {"trips": "int64", "rating": "float32"}
    old = change(stored(), declared(rest, retired=["city"])).table
    found = change(old, declared(rest | {"town": "string"}))
    assert found.table.column("town").number == 4
    assert found.table.schema == 3


@pytest.mark.parametrize(
    ("columns", "settings", "why", "fix"),
    [
        (FIRST | {"trips": "int32"}, {}, "of the type int64 and not int32", "another name"),
        (FIRST | {"rating": "float32[2]"}, {}, "float32 and not float32[2]", "another name"),
        (
            {"trips": "int64", "city": "string"},
            {},
            "'rating' is not in the file",
            "retired=['rating']",
        ),
        (FIRST, {"key": "driver"}, "driver_id: string and not driver: string", "another table"),
        (
            FIRST,
            {"key": {"driver_id": "int64"}},
            "string and not driver_id: int64",
            "another table",
        ),
        (FIRST, {"key": ["driver_id", "day"]}, "driver_id: string, day: string", "another table"),
        (FIRST, {"time": "seen_at"}, "its time is 'at' and not 'seen_at'", "another table"),
    ],
)
def test_what_would_lose_data_or_read_it_as_something_else_is_refused(
    columns: dict[str, str], settings: dict[str, Any], why: str, fix: str
) -> None:
    with pytest.raises(Conflict) as refused:
        change(stored(), declared(columns, **settings))
    assert why in refused.value.why
    assert fix in refused.value.fix


def test_a_retired_column_does_not_come_back_under_its_name() -> None:
    old = change(stored(), declared(FIRST, retired=["city"])).table
    with pytest.raises(Conflict, match="its old values would come back as new ones"):
        change(old, declared(FIRST))


def test_all_that_is_refused_is_said_at_once() -> None:
    with pytest.raises(Conflict) as refused:
        change(stored(), declared({"trips": "int32"}, key="id"))
    for word in ("its key", "'trips'", "'rating'", "'city'"):
        assert word in refused.value.why


@pytest.mark.parametrize(
    ("before", "after", "line", "warning"),
    [
        ({"ttl": "30d"}, {"ttl": "7d"}, "~ ttl: 30d -> 7d", "rows older than 7d are forgotten"),
        ({}, {"ttl": "7d"}, "~ ttl: for ever -> 7d", "rows older than 7d are forgotten"),
        ({"ttl": "7d"}, {"ttl": "30d"}, "~ ttl: 7d -> 30d", None),
        ({}, {"consistency": "eventual"}, "~ consistency: strong -> eventual", "may miss"),
        ({"consistency": "eventual"}, {}, "~ consistency: eventual -> strong", "a repair"),
        ({}, {"consistency": "bounded: 5s"}, "~ consistency: strong -> bounded: 5s", None),
        ({"home": "eu"}, {"home": "us"}, "~ home: eu -> us", "go to another region"),
        (
            {"home": "eu", "consistency": "eventual"},
            {"home": "us", "consistency": "eventual"},
            "~ home: eu -> us",
            None,
        ),
        ({}, {"copies": 1}, "~ copies: 3 -> 1", "fewer copies"),
        ({}, {"copies": 5}, "~ copies: 3 -> 5", "copies 4 to 5 are empty"),
        ({}, {"skew_max_s": 5.0}, "~ skew_max_s: 60 -> 5", None),
    ],
)
def test_other_settings_are_changed_and_what_follows_from_it_is_said(
    before: dict[str, Any], after: dict[str, Any], line: str, warning: str | None
) -> None:
    found = change(stored(**before), declared(FIRST, **after))
    assert found.lines()[0] == line
    assert found.table.schema == 2
    if warning is None:
        assert found.warnings == ()
    else:
        assert warning in " ".join(found.warnings)


@given(st.data())
def test_numbers_and_schemas_only_grow_whatever_is_applied(data: st.DataObject) -> None:
    found = grown(data)
    for earlier, later in itertools.pairwise(found):
        assert later.schema == earlier.schema + 1
        for column in earlier.columns:
            same = later.column(column.name)
            assert (same.number, same.type, same.since) == (
                column.number,
                column.type,
                column.since,
            )
            if column.retired:
                assert same == column
        numbers = [column.number for column in later.columns]
        assert numbers == sorted(set(numbers))


def grown(data: st.DataObject) -> list[Table]:
    """A table in each of its schemas, after columns were added and retired."""
    columns = data.draw(st.lists(made.TYPES, min_size=1, max_size=4))
    living = {f"c{number}": kind.text() for number, kind in enumerate(columns)}
    found = [change(None, declared(living)).table]
    made_so_far = len(living)
    for _ in range(data.draw(st.integers(1, 3))):
        gone = data.draw(st.sets(st.sampled_from(sorted(living)), max_size=len(living) - 1))
        added = data.draw(st.lists(made.TYPES, min_size=0 if gone else 1, max_size=3))
        living = {name: kind for name, kind in living.items() if name not in gone}
        for kind in added:
            living[f"c{made_so_far}"] = kind.text()
            made_so_far += 1
        step: TableChange = change(found[-1], declared(living, retired=sorted(gone)))
        assert set(names(step.retired)) == gone and len(step.added) == len(added)
        found.append(step.table)
    return found
