"""The ways through the modules that docs/architecture.md describes name modules that are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "architecture.md"
ROW = re.compile(r"^\| (\d+) \| `([^`]+\.py)` \|", re.MULTILINE)


@pytest.mark.parametrize(
    ("way", "below", "at_most"),
    [("a gradient", "holdfast/train", 12), ("a checkpoint", "holdfast", 24)],
)
def test_the_modules_on_a_way_are_there_and_numbered(way: str, below: str, at_most: int) -> None:
    section = PAGE.read_text().partition(f"### The way of {way}\n")[2].partition("\n### ")[0]
    rows = ROW.findall(section.partition("\n## ")[0])
    assert [int(number) for number, _ in rows] == list(range(1, len(rows) + 1))
    assert 1 < len(rows) <= at_most, "it has become longer"
    assert not [name for _, name in rows if not (ROOT / below / name).is_file()]
