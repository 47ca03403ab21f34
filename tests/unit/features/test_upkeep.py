"""Merging small files, removing old commits and old files: what is due, and what it must not do."""

from __future__ import annotations

import datetime
import os
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.features.history import HistoryWriter, Lake, upkeep
from holdfast.features.history.files import FILE_BYTES_TARGET
from holdfast.features.history.log import CHECKPOINT_COMMITS, LakeLog
from holdfast.features.history.upkeep import HistoryFile, merges, removable
from holdfast.wire.errors import Conflict, Fenced, Missing, Usage
from tests.unit.features.history_made import DAY_US, NOON_US, everything, made, rows, sequences
from tests.unit.features.history_writer import SOURCE, records

DAY = datetime.date(2024, 3, 1)
NOW_MS = 1_709_294_400_000


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Lake]:
    yield made(tmp_path)


# --- what is due ----------------------------------------------------------------------------------


def file(number: int, size_bytes: int = 1_000, age_s: float = 0.0, day: int = 0) -> HistoryFile:
    modified_ms = NOW_MS - int(age_s * 1e3)
    return HistoryFile(f"{number}", size_bytes, modified_ms, 10, DAY + datetime.timedelta(days=day))


def test_files_of_a_day_that_is_written_to_wait_until_there_are_enough_of_one_size() -> None:
    few = [file(number) for number in range(upkeep.MERGE_FILES - 1)]
    assert merges(few, NOW_MS) == []
    assert merges([*few, file(99, size_bytes=8 << 20)], NOW_MS) == []
    assert merges([*few, file(99, day=1)], NOW_MS) == []
    assert merges([*few, file(99)], NOW_MS) == [[*few, file(99)]]


def test_a_day_to_which_nothing_comes_any_more_is_merged_whole() -> None:
    old = upkeep.SETTLED_S + 1
    mixed = [file(1, age_s=old), file(2, size_bytes=8 << 20, age_s=old)]
    assert merges(mixed, NOW_MS) == [mixed[::1]]
    assert merges([file(1, age_s=old)], NOW_MS) == []
    assert merges([*mixed, file(3)], NOW_MS) == []


def test_a_large_file_is_left_as_it_is_and_none_becomes_too_large() -> None:
    large = [file(number, size_bytes=FILE_BYTES_TARGET) for number in range(20)]
    assert merges(large, NOW_MS) == []
    middle = [file(number, size_bytes=20 << 20) for number in range(40)]
    for group in merges(middle, NOW_MS):
        assert sum(each.size_bytes for each in group) <= FILE_BYTES_TARGET


def test_a_day_of_many_appends_has_few_files_and_each_row_is_written_few_times() -> None:
    files: list[HistoryFile] = []
    written = 0
    for number in range(10_000):
        files.append(file(number, size_bytes=20_000))
        for group in merges(files, NOW_MS):
            files = [each for each in files if each not in group]
            size = sum(each.size_bytes for each in group)
            files.append(file(number + 1_000_000, size_bytes=size))
            written += size
    assert len(files) < 60
    assert written < 6 * 10_000 * 20_000


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.integers(0, 150),
    st.integers(1, 30),
    st.lists(st.integers(0, 150), max_size=3),
    st.sampled_from([0.0, 1.0, 100.0, 10_000.0]),
)
def test_what_stays_of_the_log_is_read_without_what_is_removed(
    monkeypatch: pytest.MonkeyPatch, newest: int, step: int, kept: list[int], apart_s: float
) -> None:
    monkeypatch.setattr(upkeep, "LOG_COMMITS_MAX", 20)
    commits = {number: (newest - number) * apart_s for number in range(newest + 1)}
    checkpoints = {number: commits[number] for number in range(0, newest + 1, step)}
    kept = [number for number in kept if number <= newest]
    gone, old = removable(commits, checkpoints, kept)
    left, bases = set(commits) - set(gone), set(checkpoints) - set(old)

    def is_readable(version: int) -> bool:
        base = max(number for number in bases if number <= version)
        return left.issuperset(range(base + 1, version + 1))

    young = [number for number in commits if commits[number] <= upkeep.LOG_S_MIN]
    last = [number for number in commits if number > newest - upkeep.LOG_COMMITS_MAX]
    assert left.issuperset(young), "somebody who stood still may commit there"
    assert all(map(is_readable, [newest, *kept, *young]))
    if apart_s * newest <= upkeep.LOG_S_MAX:
        assert all(map(is_readable, last))
    assert len(left) <= len(young) + len(last) + step * (1 + len(kept))
    assert len(bases) <= len(young) + len(last) + 2 + len(kept)


# --- what is done ---------------------------------------------------------------------------------


def append(lake: Lake, count: int, first: int = 0) -> None:
    for number in range(first, first + count):
        lake.append(rows(lake.table, [number % 3], NOON_US + number, first=number))


def test_a_merge_changes_no_row_and_an_older_version_is_still_there(lake: Lake) -> None:
    append(lake, 10)
    before, version = everything(lake), lake.log().version
    done = upkeep.tend(lake)
    assert (done.merged, done.into) == (10, 1)
    assert everything(lake).equals(before)
    assert (lake.status().files, lake.log(version).files.height) == (1, 10)
    assert upkeep.tend(lake).merged == 0


def test_a_merge_that_another_one_has_made_is_dropped(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(lake, 10)
    real = LakeLog.commit
    others = [1]

    def commit(self: LakeLog, *given_: Any) -> None:
        if others:
            others.clear()
            upkeep.tend(lake)
        real(self, *given_)

    monkeypatch.setattr(LakeLog, "commit", commit)
    assert upkeep.tend(lake).merged == 0
    assert sequences(lake) == list(range(10))


def test_a_merge_beside_another_library_that_merges_doubles_nothing(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(lake, 10)
    real = LakeLog.commit
    others = [1]

    def commit(self: LakeLog, *given_: Any) -> None:
        if others:
            others.clear()
            LakeLog(lake.place)._table.optimize.compact()
        real(self, *given_)

    monkeypatch.setattr(LakeLog, "commit", commit)
    upkeep.tend(lake)
    assert sequences(lake) == list(range(10))


def test_two_commits_on_one_version_are_one_and_a_conflict(lake: Lake) -> None:
    first, second = lake.log(), lake.log()
    first.commit(lake.write(rows(lake.table, [1])))
    with pytest.raises(Conflict):
        second.commit(lake.write(rows(lake.table, [1], first=1)))
    second.refresh()
    second.commit(lake.write(rows(lake.table, [1], first=2)))
    assert sequences(lake) == [0, 2]


def age(folder: Path, seconds: float) -> None:
    """Everything in it is so much older now."""
    then_s = time.time() - seconds
    for path in folder.rglob("*"):
        os.utime(path, (then_s, then_s))


def test_old_commits_go_and_the_offsets_and_rows_stay(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upkeep, "LOG_COMMITS_MAX", 10)
    sleeper = HistoryWriter(lake, SOURCE)
    batch = records(lake, sleeper.position(0), 1)
    writer = HistoryWriter(lake, SOURCE)
    for number in range(2 * CHECKPOINT_COMMITS + 5):
        writer.commit(records(lake, number, 1))
    kept = CHECKPOINT_COMMITS + 3
    lake.keep(kept)
    assert upkeep.tend(lake).removed_commits == 0, "all of them are young"
    assert lake.place.folder is not None
    age(lake.place.folder / "_delta_log", upkeep.LOG_S_MIN + 60)
    assert upkeep.tend(lake).removed_commits >= CHECKPOINT_COMMITS
    total = 2 * CHECKPOINT_COMMITS + 5
    assert sequences(lake) == list(range(total))
    assert HistoryWriter(lake, SOURCE).position(0) == total
    assert lake.log(kept).offset(f"{SOURCE}:0") == kept
    with pytest.raises(Missing):
        lake.log(3)
    # Its place in the log is free again, and it must not be taken.
    with pytest.raises(Fenced):
        sleeper.commit(batch)
    assert sequences(lake) == list(range(total))


def test_the_vacuum_takes_what_no_version_of_the_last_days_needs_and_what_nobody_committed(
    lake: Lake,
) -> None:
    append(lake, 10)
    kept = lake.log().version
    lake.keep(kept)
    upkeep.tend(lake)
    lake.write(rows(lake.table, [1], first=77))  # whoever wrote it was killed
    assert lake.place.folder is not None
    assert len(list(lake.place.folder.glob("_day=*/*"))) == 12
    assert upkeep.vacuum(lake) == 0
    age(lake.place.folder, 30 * 86_400)
    assert upkeep.vacuum(lake) == 1  # the one that nobody committed; the others are removed lately
    assert lake.collect(lake.scan(lake.log(kept))).height == 10
    assert sequences(lake) == list(range(10))
    with pytest.raises(Usage, match="at least"):
        upkeep.vacuum(lake, 60.0)


def test_a_history_of_many_days_is_kept_small(lake: Lake) -> None:
    chance = random.Random(3)
    for number in range(60):
        day = chance.randint(0, 2)
        lake.append(rows(lake.table, [1], NOON_US + day * DAY_US + number, first=number))
        if number % 10 == 9:
            upkeep.tend(lake)
    assert lake.status().files <= 3 * 2 * (upkeep.MERGE_FILES - 1)
    assert sequences(lake) == list(range(60))
