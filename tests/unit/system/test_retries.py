"""A part that is tried again: bounded, later each time, and seen by people."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from holdfast.cli.cluster.status import _tried_again
from holdfast.supervise import records
from holdfast.system.retries import RETRY_S_MAX, Retries


def test_a_part_that_fails_is_tried_later_each_time_and_not_for_ever() -> None:
    retries = Retries("the sweep", most=12, pause_s=0.5)
    pauses = [retries.failed(ValueError("a bug")) for _ in range(11)]
    assert pauses[:4] == [0.5, 1.0, 2.0, 4.0]
    assert pauses[-1] == RETRY_S_MAX
    with pytest.raises(ValueError, match="the last"):
        retries.failed(ValueError("the last"))


def test_a_part_that_is_well_again_may_fail_as_often_as_before() -> None:
    retries = Retries("the sweep", most=2, pause_s=0.5)
    for _ in range(5):
        assert retries.failed(ValueError("a bug")) == 0.5
        retries.well()
    assert (retries.told.count, retries.told.in_a_row) == (5, 0)


def test_what_fails_in_a_process_and_why_is_shown_by_status(tmp_path: Path) -> None:
    with records.register(tmp_path, "coordinator", "c1") as registration:
        registration.note(term=3)
        retries = Retries("the sweep of the store")
        retries.failed(ValueError("a bug\nin many lines"))
        retries.failed(ValueError("a bug\nin many lines"))
        assert registration.process.facts["term"] == 3
        (line,) = _shown(tmp_path)
        assert line.startswith("coordinator c1: the sweep of the store has failed 2 times, last at")
        assert line.endswith("(ValueError: a bug); it is tried again")
        retries.well()
        (line,) = _shown(tmp_path)
        assert line.endswith("it is well again")
        _grow_old(tmp_path)
        assert _shown(tmp_path) == [], "that is no news any more"
    retries.failed(ValueError("after the end"))
    assert not records.record_path(tmp_path, "coordinator", "c1").exists()


def _shown(folder: Path) -> list[str]:
    """Other tests of this process may have left something that fails."""
    found = _tried_again(records.processes(folder))
    return [line for line in found if "the sweep of the store" in line]


def _grow_old(folder: Path) -> None:
    path = records.record_path(folder, "coordinator", "c1")
    process = records.read(path)
    assert process is not None
    retried: list[dict[str, Any]] = process.facts["retried"]
    for told in retried:
        told["at_s"] -= 3_600.0
    records.write(path, process)
