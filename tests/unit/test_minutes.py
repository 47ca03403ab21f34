"""Where a run's minutes went."""

from __future__ import annotations

from tests.minutes import expectation, table


def test_minutes_are_summed_by_folder_and_the_slowest_comes_first() -> None:
    took = [
        ("tests/unit/cli/test_a.py::test_x", 30.0),
        ("tests/faults/test_b.py::test_x", 1.0),
        ("tests/faults/test_b.py::test_x", 119.0),
        ("tests/faults/test_c.py::test_y[1]", 60.0),
        ("tests/test_d.py::test_z", 6.0),
    ]
    assert table(took) == [
        "   3.0 min      2 tests  tests/faults",
        "   0.5 min      1 tests  tests/unit/cli",
        "   0.1 min      1 tests  tests",
        "   2.0 min  tests/faults/test_b.py",
        "   1.0 min  tests/faults/test_c.py",
        "   0.5 min  tests/unit/cli/test_a.py",
        "   0.1 min  tests/test_d.py",
    ]


def test_a_run_says_how_long_it_took_and_how_long_it_should() -> None:
    assert expectation("engines", 1260.0) == (
        "  21.0 min  from its begin to its end, expected on two cores: at most 20"
    )
    assert expectation("", 60.0) == "   1.0 min  from its begin to its end"
