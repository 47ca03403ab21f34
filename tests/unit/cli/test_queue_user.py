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


# --- limits ---------------------------------------------------------------------------------------


def test_a_limit_of_zero_is_none_at_all_and_the_word_none_is_no_limit() -> None:
    limit = queues._limit("none", "none", "0", "none")
    assert limit is not None and limit.gpu == 0
    assert queues._most(limit) == "0 gpu at most", "whoever sets it reads what it means"
    assert queues._limit("none", "none", "none", "none") is None
    assert queues._most(None) == "no limit"
    nothing = queues._limit("0", "0", "0", "0")
    assert nothing is not None
    assert (nothing.cpu, nothing.memory_bytes, nothing.disk_bytes) == (0, 0, 0)


@pytest.mark.parametrize("text", ["-1", "many", "1.5", "nan", "inf"])
def test_what_is_no_limit_is_refused_with_the_words_that_are(text: str) -> None:
    with pytest.raises(Usage) as refused:
        queues._limit("none", "none", text, "none")
    assert "--limit-gpu none for no limit" in refused.value.fix
