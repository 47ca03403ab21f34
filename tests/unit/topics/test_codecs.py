"""Values as bytes: what a codec cannot say is refused, and never becomes another value."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast import topics
from holdfast.wire.errors import Usage


@pytest.mark.parametrize(
    "value", [float("nan"), {"a": [1.0, float("inf")]}, [{"b": float("-inf")}], object()]
)
def test_json_refuses_what_it_cannot_say(value: Any) -> None:
    with pytest.raises(Usage):
        topics.JSON.encode(value)


@pytest.mark.parametrize("value", [{"a": None}, "null", [None, 1.5], "nan", {"null": 1e308}])
def test_json_takes_null_where_it_is_meant(value: Any) -> None:
    assert topics.JSON.decode(topics.JSON.encode(value)) == value


def test_text_that_utf_8_cannot_say_is_refused() -> None:
    with pytest.raises(Usage, match="UTF-8"):
        topics.TEXT.encode("\ud800")
