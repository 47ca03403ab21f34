"""Filters: what a condition says of a record, and what is refused."""

from __future__ import annotations

import json
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.wire.errors import Usage
from holdfast.wire.record_filter import (
    FILTER_CHARACTERS_MAX,
    ParsedRecord,
    json_or_none,
    parse_filter,
)

ORDER = ParsedRecord(
    value={"amount": 120, "country": "de", "user": {"id": 7, "tags": ["a", "b c"]}, "paid": True},
    key="k1",
    headers={"kind": "order", "trace-id": "x"},
    partition=2,
    offset=40,
    at=1_000,
)


@pytest.mark.parametrize(
    "text",
    [
        "value.amount > 100",
        "value.amount >= 120 and value.amount <= 120",
        'value.country in ["de", "fr"]',
        "headers.kind == 'order' and headers.trace-id == \"x\"",
        "value.user.id == 7 or value.nothing == 1",
        "not (value.amount < 100)",
        'value.user.tags[0] == "a"',
        'value["user"]["tags"][-1] == "b c"',
        "'b c' in value.user.tags",
        "value.paid",
        "value.paid == true",
        "value.missing == null",
        "value.paid != 1",
        "key == 'k1' and partition == 2 and offset == 40 and at == 1e3",
        "'or' in headers.kind",
        "'amount' in value",
    ],
)
def test_a_condition_that_is_true_of_the_record_matches(text: str) -> None:
    assert parse_filter(text).matches(ORDER)


@pytest.mark.parametrize(
    "text",
    [
        "value.amount > '100'",
        "value.amount == '120'",
        "value.missing > 1",
        "value.paid == 1",
        "value.user.tags[9] == 'a'",
        "value.country.de",
        "value.amount < 100 or headers.kind == 'refund'",
        "true and false",
        "value.user > 3",
        "value.amount in value.country",
    ],
)
def test_what_is_not_there_or_of_another_kind_matches_nothing(text: str) -> None:
    assert not parse_filter(text).matches(ORDER)


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("", "character 1"),
        ("value.amount >", "its end"),
        ("value.amount > 100 value", "`value`"),
        ("import os", "`import`"),
        ("__import__('os')", "`__import__`"),
        ("value.a(1)", "`(`"),
        ("value..a", "`.`"),
        ("(value.a", "its end"),
        ("value.a == [1, value.b]", "`value`"),
        ("value.a ; 1", "character 8"),
        ("value[1.5]", "`1.5`"),
        ("(" * 100 + "1", "32 brackets"),
        ('value.a == "\\x"', "escape"),
    ],
)
def test_what_is_no_condition_is_refused_with_its_place(text: str, place: str) -> None:
    with pytest.raises(Usage) as caught:
        parse_filter(text)
    assert place in str(caught.value.why)


def test_a_condition_has_a_bound() -> None:
    with pytest.raises(Usage):
        parse_filter("1 or " * FILTER_CHARACTERS_MAX + "1")


def test_the_value_is_decoded_only_for_a_condition_that_looks_at_it() -> None:
    assert parse_filter("value.a == 1").reads_value
    assert not parse_filter("headers.value == 'a'").reads_value


@given(st.text(max_size=60))
def test_any_text_is_a_condition_or_refused(text: str) -> None:
    with suppress(Usage):
        parse_filter(text).matches(ORDER)


@given(st.binary())
def test_any_bytes_are_a_value_or_none(data: bytes) -> None:
    record = ParsedRecord(value=json_or_none(data))
    parse_filter("value.a.b[0] > 1 or value == 'x'").matches(record)


@given(st.integers(), st.integers())
def test_numbers_are_ordered_as_numbers(left: int, right: int) -> None:
    record = ParsedRecord(value=json.loads(json.dumps({"a": left})))
    assert parse_filter(f"value.a < {right}").matches(record) == (left < right)
