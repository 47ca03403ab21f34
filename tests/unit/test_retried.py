"""What `.ci/run` tries again: what is listed with a reason, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.retried import LIST, again, listed

ROOT = Path(__file__).parents[2]
TEXT = "# a comment\n\ntests/a.py::test_x[1]  # the kernel\ntests/b.py::test_y  # the disk\n"


def test_only_what_is_listed_is_tried_again() -> None:
    assert again({"tests/b.py::test_y"}, TEXT) == ["tests/b.py::test_y"]
    both = {"tests/b.py::test_y", "tests/a.py::test_x[1]"}
    assert again(both, TEXT) == sorted(both)
    assert again({*both, "tests/c.py::test_z"}, TEXT) == [], "one that is not listed has failed"
    assert again({"tests/a.py::test_x[2]"}, TEXT) == []
    assert again(set(), TEXT) == []


@pytest.mark.parametrize(
    "wrong",
    ["tests/a.py::test_x", "tests/a.py::test_x  # ", "".join(f"t{n}  # r\n" for n in "1234")],
)
def test_a_test_without_a_reason_and_a_fourth_are_refused(wrong: str) -> None:
    with pytest.raises(ValueError, match=r"no reason|at most 3"):
        listed(wrong)


def test_what_is_listed_is_there() -> None:
    for name in listed(LIST.read_text()):
        file, _, test = name.partition("::")
        assert f"def {test.partition('[')[0]}(" in (ROOT / file).read_text(), name
