"""`holdfast queue set --user`: what cannot be one is refused before anything is written."""

from __future__ import annotations

import pytest

from holdfast.cli import queues
from holdfast.wire.errors import Usage


@pytest.mark.parametrize("name", ["root", "no such", "-x", "a:b", "x" * 40])
def test_root_and_what_is_no_name_are_refused(name: str) -> None:
    with pytest.raises(Usage) as refused:
        queues._user(name)
    assert "NAME" in refused.value.fix


@pytest.mark.parametrize("name", ["trials", "", "_x.y-z9"])
def test_a_name_or_none_is_taken(name: str) -> None:
    assert queues._user(name) == name
