"""The order of the tests names files that are there, and is kept."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.order import LARGE, SLOW, TOGETHER, Scheduling, is_large, place_of

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", sorted({*SLOW, *TOGETHER}))
def test_a_file_that_the_order_names_is_there(name: str) -> None:
    assert (ROOT / name).is_file()


@pytest.mark.parametrize("file", LARGE)
def test_a_large_test_is_there(file: str) -> None:
    text = (ROOT / file).read_text()
    for name in LARGE[file]:
        assert f"def test_{name.partition('[')[0]}" in text, name
        assert is_large(f"{file}::test_{name}x")
    assert not is_large(f"{file[:-3]}_other.py::test_x")


def test_slow_tests_come_first_and_all_others_stay_in_their_order() -> None:
    given = ["tests/b.py::x", f"{SLOW[1]}::y", "tests/a.py::x", f"{SLOW[0]}::x[1]"]
    expected = [given[3], given[1], given[0], given[2]]
    assert sorted(given, key=place_of) == expected


class Node:
    """What a scheduler knows of a process that runs tests."""

    def __init__(self) -> None:
        self.gateway = SimpleNamespace(id="gw")
        self.given: list[int] = []
        self.shutting_down = False

    def send_runtest_some(self, indices: list[int]) -> None:
        self.given.extend(indices)

    def shutdown(self) -> None:
        self.shutting_down = True


def scheduling(nodes: int) -> Scheduling:
    config = SimpleNamespace(option=SimpleNamespace(), getvalue=lambda _name: ["popen"] * nodes)
    log = SimpleNamespace(loadscopesched=lambda *_: None)
    return Scheduling(config, log)  # type: ignore[arg-type]


def test_one_process_runs_what_stays_together() -> None:
    made = scheduling(1)
    file = next(iter(TOGETHER))
    assert made._split_scope(f"{file}::x[1]") == made._split_scope(f"{file}::y")
    assert made._split_scope("tests/a.py::x") != made._split_scope("tests/a.py::y")


def test_every_test_is_run_once_from_both_ends_and_what_is_done_is_forgotten() -> None:
    made, nodes = scheduling(2), [Node(), Node()]
    names = [f"tests/a.py::{index}" for index in range(20)]
    for node in nodes:
        made.add_node(node)
        made.add_node_collection(node, names)
    made.schedule()
    for index in range(20):
        for node in nodes:
            if index < len(node.given):
                made.mark_test_complete(node, node.given[index])
        held = [len(given) for given in made.assigned_work.values()]
        assert max(held) <= 4, held
    assert sorted([*nodes[0].given, *nodes[1].given]) == list(range(20))
    assert nodes[0].given == sorted(nodes[0].given)
    assert nodes[1].given == sorted(nodes[1].given, reverse=True)
    assert not made.has_pending and all(node.shutting_down for node in nodes)
