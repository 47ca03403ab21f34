"""One tree of errors: every one says whether to try again, and ends a command with its own code."""

from __future__ import annotations

import inspect
import pickle
from pathlib import Path

import pytest

from holdfast.system.extras import require_extra
from holdfast.wire import errors
from holdfast.wire.errors import BugError, HoldfastError, MissingExtra, RetryError, TerminalError

ALL = [
    found
    for _, found in inspect.getmembers(errors, inspect.isclass)
    if issubclass(found, HoldfastError) and found is not HoldfastError
]


@pytest.mark.parametrize("error", ALL, ids=lambda error: error.__name__)
def test_every_error_is_on_exactly_one_branch_and_says_what_it_means(
    error: type[HoldfastError],
) -> None:
    branches = [
        branch for branch in (RetryError, TerminalError, BugError) if issubclass(error, branch)
    ]
    assert len(branches) == 1
    assert error.__doc__


@pytest.mark.parametrize("error", ALL, ids=lambda error: error.__name__)
def test_the_exit_code_tells_retry_usage_occupied_other_terminal_and_bug_apart(
    error: type[HoldfastError],
) -> None:
    if issubclass(error, RetryError):
        assert error.exit_code == 75
    elif issubclass(error, BugError):
        assert error.exit_code == 70
    elif issubclass(error, errors.Usage):
        assert error.exit_code == 2
    elif issubclass(error, errors.Occupied):
        assert error.exit_code == 11
    else:
        assert error.exit_code == 1


def test_a_message_says_what_why_fix_and_the_story_in_this_order() -> None:
    error = errors.Corrupt(
        "bad record", why="checksum", fix="holdfast coord check", story=["a", "b"]
    )
    assert str(error) == "bad record\nwhy: checksum\nfix: holdfast coord check\n  - a\n  - b"
    assert str(errors.Full("no room")) == "no room"


def test_an_error_survives_the_way_to_another_process() -> None:
    error = errors.Fenced("term 3 is over", why="term 4 leads", fix="stop", story=["elected"])
    found = pickle.loads(pickle.dumps(error))
    assert (type(found), str(found)) == (errors.Fenced, str(error))


def test_a_module_that_is_there_is_simply_imported() -> None:
    assert require_extra("json", "train").dumps({}) == "{}"


def test_a_missing_extra_names_the_command_that_installs_it() -> None:
    with pytest.raises(MissingExtra) as caught:
        require_extra("no_such_package.inner", "train")
    assert caught.value.fix == "pip install 'holdfast[train]'"


def test_a_fault_inside_an_installed_package_is_not_called_a_missing_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "half_broken.py").write_text("import something_it_forgot\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="something_it_forgot"):
        require_extra("half_broken", "train")
