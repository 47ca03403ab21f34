"""Where tests write."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests import scratch


def of(free_bytes: int, flags: int = 0) -> SimpleNamespace:
    return SimpleNamespace(f_bavail=free_bytes, f_frsize=1, f_flag=flags)


@pytest.mark.parametrize(
    ("found", "is_chosen"),
    [
        (of(scratch.FREE_BYTES_MIN), True),
        (of(scratch.FREE_BYTES_MIN - 1), False),
        (of(scratch.FREE_BYTES_MIN, os.ST_NOEXEC), False),
    ],
    ids=["roomy", "small", "no program starts from it"],
)
def test_memory_is_chosen_where_it_has_the_room_and_programs_start_from_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, found: SimpleNamespace, is_chosen: bool
) -> None:
    monkeypatch.setattr(os, "statvfs", lambda _: found)
    monkeypatch.setattr(scratch, "_available_bytes", lambda: scratch.FREE_BYTES_MIN)
    assert (scratch.chosen(str(tmp_path)) == str(tmp_path)) is is_chosen


def test_memory_that_others_use_is_not_chosen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "statvfs", lambda _: of(1 << 40))
    monkeypatch.setattr(scratch, "_available_bytes", lambda: scratch.FREE_BYTES_MIN - 1)
    assert scratch.chosen(str(tmp_path)) is None


def test_a_folder_that_is_not_there_is_not_chosen(tmp_path: Path) -> None:
    assert scratch.chosen(str(tmp_path / "none")) is None


def test_what_somebody_has_said_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(scratch.VARIABLE, "/somewhere")
    scratch.choose()
    assert os.environ[scratch.VARIABLE] == "/somewhere"
