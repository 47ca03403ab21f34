"""The bench of histories works, and its contestants agree."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.features.asof import main


@pytest.mark.engines
def test_every_contestant_gives_the_same_answer_and_nothing_is_left_behind(tmp_path: Path) -> None:
    pytest.importorskip("duckdb")
    out = tmp_path / "out.json"
    folder = tmp_path / "data"
    folder.mkdir()
    sizes = ["--rows", "30000", "--keys", "300", "--entities", "5000", "--append-rows", "4000"]
    more = ["--batch", "100", "--folder", str(folder), "--json", str(out)]
    assert main([*sizes, *more]) == 0
    found = json.loads(out.read_text())
    assert {one["name"] for one in found["join"]} == {"holdfast", "duckdb", "polars join_asof"}
    assert len({one["answer"] for one in found["join"]}) == 1
    assert found["append"][0]["commits"] == 40
    assert not list(folder.iterdir())
