"""Definitions as documents: read back, also by a version that knows less, or more."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.features import records
from holdfast.features.table import Table, change
from holdfast.wire.errors import Corrupt
from tests.unit.features import made
from tests.unit.features.made import DRIVERS
from tests.unit.features.test_change import grown

PATH = "/holdfast/features/drivers"


@given(made.tables())
def test_a_table_is_read_back_from_its_document(table: Table) -> None:
    assert records.from_document(PATH, records.to_document(table)) == table
    assert records.from_bytes(PATH, records.to_bytes(table)) == table


@given(st.data())
def test_a_table_with_a_past_is_read_back_with_it(data: st.DataObject) -> None:
    table = grown(data)[-1]
    assert records.from_bytes(PATH, records.to_bytes(table)) == table


def test_a_document_is_plain_and_says_types_as_users_write_them() -> None:
    plain = json.loads(records.to_bytes(DRIVERS))
    assert plain == records.to_document(DRIVERS)
    assert plain["columns"][2] == {
        "name": "taste",
        "type": "float32[64]",
        "number": 3,
        "since": 1,
        "until": None,
    }
    assert (plain["consistency"], plain["key"], plain["ttl_s"]) == (
        "strong",
        ["driver_id"],
        604_800.0,
    )


def test_fields_of_a_newer_version_are_passed_over_and_missing_ones_have_their_defaults() -> None:
    plain = records.to_document(DRIVERS)
    plain["colour"] = "green"
    plain["columns"][0]["unit"] = "km"
    assert records.from_document(PATH, plain) == DRIVERS
    for name in ("skew_max_s", "schema", "copies"):
        del plain[name]
    del plain["columns"][0]["since"]
    assert records.from_document(PATH, plain) == DRIVERS


@pytest.mark.parametrize(
    "changed",
    [
        {"columns": [{"name": "a", "type": "float16", "number": 1}]},
        {"columns": []},
        {"consistency": "sometimes"},
        {"key_types": ["string", "string"]},
        {"key_types": []},
        {"copies": "three"},
        {"format": 2},
        {"name": 7},
    ],
)
def test_a_document_that_is_no_table_is_corrupt_and_names_its_path(changed: dict[str, Any]) -> None:
    with pytest.raises(Corrupt, match=PATH):
        records.from_document(PATH, records.to_document(DRIVERS) | changed)


def test_what_users_still_mark_as_retired_is_not_stored() -> None:
    declared = Table("t", key="id", columns={"a": "int64", "b": "int64"}, retired=["b"])
    stored = change(None, declared).table
    assert records.from_bytes(PATH, records.to_bytes(stored)) == stored
    with pytest.raises(AssertionError):
        records.to_bytes(declared)
