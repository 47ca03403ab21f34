"""The bench of topics works, and calls a miss a miss."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from rich.console import Console

from bench.topics.command import main
from bench.topics.contestants import KAFKA_FLUSH, OURS
from bench.topics.report import AT_LEAST_AS_MUCH, HALF, Goal, Row, table


@pytest.mark.engines
def test_every_section_measures_our_broker_and_leaves_nothing_behind(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    sizes = ["--partitions", "200", "--consumers", "20", "--crowd-s", "1", "--gigabytes", "0.02"]
    where = ["--folder", str(tmp_path / "data"), "--json", str(out)]
    assert main(["--plan", "tiny", "--servers", OURS, *sizes, *where]) == 0
    rows = json.loads(out.read_text())["rows"]
    found = {row["section"] for row in rows}
    assert found == {"start", "produce", "consume", "end to end", "memory", "scale"}
    for row in rows:
        assert row["medians"][OURS] > 0 or "lost" in row["what"], row
        if "lost" in row["what"]:
            assert row["medians"][OURS] == 0, row
    assert not list((tmp_path / "data").iterdir())


@pytest.mark.parametrize(
    ("goal", "ours", "theirs", "verdict"),
    [
        (AT_LEAST_AS_MUCH, 10.0, 10.0, "reached"),
        (AT_LEAST_AS_MUCH, 9.0, 10.0, "missed"),
        (HALF, 5.0, 10.0, "reached"),
        (HALF, 6.0, 10.0, "missed"),
        (HALF, 6.0, None, "not measured"),
        (Goal(3.0, at_least=False), 2.0, None, "reached"),
        (Goal(3.0, at_least=False), 4.0, None, "missed"),
    ],
)
def test_a_miss_is_called_a_miss(
    goal: Goal, ours: float, theirs: float | None, verdict: str
) -> None:
    row = Row("a section", "something", "s", goal)
    row.add(OURS, ours)
    if theirs is not None:
        row.add(KAFKA_FLUSH, theirs)
    assert row.verdict == verdict
    console = Console(width=200)
    with console.capture() as shown:
        console.print(table([row], [OURS, KAFKA_FLUSH]))
    assert verdict in shown.get()


def test_a_median_is_shown_with_the_values_around_it() -> None:
    row = Row("a section", "something", "s")
    for value in (3.0, 1.0, 2.0):
        row.add(OURS, value)
    assert row.shown(OURS) == "2.00 (1.00-3.00)"
