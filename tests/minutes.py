"""How long each group of tests took: a group is a folder of `tests/`, or a file beside them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Final

FILES_SHOWN: Final = 25
# Of a run on two cores with nothing beside it, by what `-m` says: `make test` takes 15 minutes with
# two for what it installs, `make test-engines` 20. Both together must end well before 45.
EXPECTED_MIN: Final = {"not engines": 13, "engines": 20}


def group_of(nodeid: str) -> str:
    """Of `tests/faults/test_disk.py::test_x`, `tests/faults`; of unit tests, the folder below."""
    folders = nodeid.partition("::")[0].split("/")[:-1]
    return "/".join(folders[: 3 if folders[1:2] == ["unit"] else 2])


def table(took: Iterable[tuple[str, float]]) -> list[str]:
    """Lines for people, of tests with the seconds that each took: the groups, then the files that
    took most. Workers run beside one another: minutes of all of them together."""
    groups: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    files: dict[str, float] = defaultdict(float)
    seen = set()
    for nodeid, seconds in took:
        groups[group_of(nodeid)][0] += seconds
        if nodeid not in seen:
            seen.add(nodeid)
            groups[group_of(nodeid)][1] += 1
        files[nodeid.partition("::")[0]] += seconds
    lines = [
        f"{seconds / 60:6.1f} min  {int(count):5d} tests  {name}"
        for name, (seconds, count) in sorted(groups.items(), key=lambda each: -each[1][0])
    ]
    slowest = sorted(files.items(), key=lambda each: -each[1])[:FILES_SHOWN]
    return [*lines, *(f"{seconds / 60:6.1f} min  {name}" for name, seconds in slowest)]


def expectation(marks: str, seconds: float) -> str:
    """A line for people: how long all of it took, and how long it should on two cores."""
    expected = EXPECTED_MIN.get(marks)
    told = "" if expected is None else f", expected on two cores: at most {expected}"
    return f"{seconds / 60:6.1f} min  from its begin to its end{told}"
