"""A user's function as a handler: one of which nothing would run is no handler."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.topics.subscriber import _check_ran, _words, handler_of
from holdfast.wire.errors import Usage

CODE = """
def yields(record):
    yield record

async def yields_later(record):
    yield record

async def later(record):
    return None

def now(record):
    return 5
"""


def test_a_function_with_a_yield_is_refused(tmp_path: Path) -> None:
    (tmp_path / "handlers.py").write_text(CODE)
    for name in ("yields", "yields_later"):
        with pytest.raises(Usage, match="has a `yield`"):
            handler_of(f"{tmp_path}/handlers.py:{name}")
    for name in ("now", "later"):
        handler_of(f"{tmp_path}/handlers.py:{name}")


def test_a_result_that_is_still_to_be_run_is_no_success() -> None:
    async def later() -> None: ...

    for unfinished in ((n for n in range(3)), later()):
        with pytest.raises(Usage, match="of which nothing has run"):
            _check_ran(unfinished)
    for result in (None, [1], "text"):
        _check_ran(result)


def test_an_error_that_cannot_say_itself_has_words() -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no")

    assert "RuntimeError" in _words(Mute())
    assert _words(ValueError("\ud800")) == "\ud800"
