"""Pictures and tables of the model: well-formed, small, and those that are in the docs."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest

from simulation.scale import charts
from simulation.scale.__main__ import show
from simulation.scale.costs import MEASURED, Costs
from simulation.scale.pictures import HEIGHT, WIDTH, Chart, Line, svg

DOCS = Path(__file__).parents[3] / "docs"
SVG = "{http://www.w3.org/2000/svg}"


def test_a_curve_goes_up_where_its_values_do_and_stays_on_the_paper() -> None:
    chart = Chart("t", "x", "y", (Line("a & b", [(1, 1), (10, 10), (1_000, 10_000)]),), (5.0, "<5"))
    root = ElementTree.fromstring(svg(chart))
    curve = next(path for path in root.iter(f"{SVG}path") if path.get("stroke") == "#0072b2")
    places = [tuple(map(float, pair.split())) for pair in (curve.get("d") or "")[1:].split("L")]
    assert [x for x, _ in places] == sorted(x for x, _ in places)
    assert [y for _, y in places] == sorted((y for _, y in places), reverse=True)
    assert all(0 < x < WIDTH and 0 < y < HEIGHT for x, y in places)
    words = [text.text for text in root.iter(f"{SVG}text")]
    assert {"a & b", "<5", "t", "x", "y"} <= set(words)


def test_an_axis_without_a_power_of_ten_has_marks_all_the_same() -> None:
    chart = Chart("t", "x", "y", (Line("a", [(30, 1), (95, 10)]),))
    words = {text.text for text in ElementTree.fromstring(svg(chart)).iter(f"{SVG}text")}
    assert {"30", "50", "70"} <= words


def test_the_same_chart_is_the_same_bytes() -> None:
    chart = Chart("t", "x", "y", (Line("a", [(1, 0.1), (2, 3.0)]),))
    assert svg(chart) == svg(chart)


# The others take seconds to simulate.
@pytest.mark.parametrize(
    ("name", "draw"),
    [
        ("leader", charts.leader),
        ("view-change", charts.view_change),
        ("exchange", charts.exchange),
        ("checks", charts.checks),
    ],
)
def test_pictures_in_the_docs_are_what_the_costs_and_limits_give(
    name: str, draw: Callable[[Costs], Chart]
) -> None:
    there = (DOCS / "pictures" / f"{name}.svg").read_text()
    assert there == svg(draw(MEASURED)), "python -m simulation.scale --plots docs/pictures"


def test_the_docs_show_every_picture_and_no_other() -> None:
    shown = set(re.findall(r"pictures/([a-z-]+)\.svg", (DOCS / "scale.md").read_text()))
    there = {path.stem for path in (DOCS / "pictures").glob("*.svg")}
    assert shown == there


def test_the_command_prints_tables_and_the_same_as_json(
    capsys: pytest.CaptureFixture[str],
) -> None:
    command = [sys.executable, "-m", "simulation.scale", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    told = json.loads(done.stdout)
    assert told["costs"]["report_s"]["source"].startswith("python -m bench.")
    show(MEASURED)
    table = capsys.readouterr().out
    for title, rows in told.items():
        if title not in ("costs", "facts"):
            assert title in table
            assert all(row["part"] in table for row in rows)
