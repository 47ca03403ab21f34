"""The order of the tests names files that are there, and is kept."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.order import SLOW, TOGETHER, Scheduling, place_of

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", sorted({*SLOW, *TOGETHER}))
def test_a_file_that_the_order_names_is_there(name: str) -> None:
    assert (ROOT / name).is_file()


def test_slow_tests_come_first_and_all_others_stay_in_their_order() -> None:
    given = ["tests/b.py::x", f"{SLOW[1]}::y", "tests/a.py::x", f"{SLOW[0]}::x[1]"]
    expected = [given[3], given[1], given[0], given[2]]
    assert sorted(given, key=place_of) == expected


def test_one_process_runs_what_stays_together() -> None:
    config = SimpleNamespace(option=SimpleNamespace(), getvalue=lambda _name: ["popen"])
    scheduling = Scheduling(config, SimpleNamespace(loadscopesched=None))  # type: ignore[arg-type]
    file = next(iter(TOGETHER))
    assert scheduling._split_scope(f"{file}::x[1]") == scheduling._split_scope(f"{file}::y")
    assert scheduling._split_scope("tests/a.py::x") != scheduling._split_scope("tests/a.py::y")
