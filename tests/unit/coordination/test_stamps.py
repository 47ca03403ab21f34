"""Marks of the last writers: a writer in doubt finds out, or learns that nobody can tell."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.coordination.stamps import EMPTY, STAMPS_KEPT, Stamped, decoded, happened, new_stamp
from holdfast.wire.errors import Corrupt, Usage


@given(after=st.integers(0, 3 * STAMPS_KEPT), done=st.booleans())
def test_a_writer_in_doubt_is_never_told_wrong(after: int, done: bool) -> None:
    mine = new_stamp()
    value, version = EMPTY.written(0, new_stamp()), 1
    before = version
    if done:
        value, version = value.written(1, mine), version + 1
    for _ in range(after):
        value, version = value.written(2, new_stamp()), version + 1
    answer = happened(before, mine, version, value)
    assert answer in (done, None)
    if version - before <= STAMPS_KEPT:
        assert answer is done


def test_a_value_comes_back_as_it_was_written() -> None:
    value = EMPTY.written({"a": [1, None, "ü"]}, "mark")
    assert decoded("/x", value.encoded("/x")) == value


def test_foreign_bytes_and_impossible_values_are_named() -> None:
    for data in (b"", b"[]", b"{}", b"\xff", b'{"value": 1}'):
        with pytest.raises(Corrupt, match="/x"):
            decoded("/x", data)
    with pytest.raises(Usage, match="/x"):
        Stamped(object(), ()).encoded("/x")


def test_text_that_is_not_unicode_is_refused_before_anybody_has_to_read_it() -> None:
    with pytest.raises(Usage, match="not Unicode") as told:
        Stamped({"command": ["python", "caf\udce9.txt"]}, ()).encoded("/x")
    assert str(told.value).encode(), "and what is said of it can be written"
