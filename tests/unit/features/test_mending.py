"""A history after a power cut: what was acknowledged is there, and what was not is gone whole."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.features.history import HistoryWriter, Lake, mending
from holdfast.features.history.log import CHECKPOINT_COMMITS
from holdfast.storage.folder import drafts_in
from tests.unit.features.history_made import made, rows, sequences
from tests.unit.features.history_writer import SOURCE, records


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Lake]:
    yield made(tmp_path)


def log_folder(lake: Lake) -> Path:
    assert lake.place.folder is not None
    return lake.place.folder / "_delta_log"


def commit_file(lake: Lake, version: int) -> Path:
    return log_folder(lake) / f"{version:020}.json"


@pytest.mark.parametrize("left", ["nothing", "zeros", "half", "whole lines"])
def test_a_torn_commit_is_removed_with_what_follows_it_and_its_records_come_again(
    lake: Lake, left: str
) -> None:
    writer = HistoryWriter(lake, SOURCE)
    for number in range(6):
        writer.commit(records(lake, number, 1))
    path = commit_file(lake, 5)
    data = path.read_bytes()
    lines = data.splitlines(keepends=True)
    path.write_bytes(
        {
            "nothing": b"",
            "zeros": bytes(len(data)),
            "half": data[: len(data) // 2],
            "whole lines": b"".join(lines[:-1]),
        }[left]
    )
    again = HistoryWriter(lake, SOURCE)
    assert (again.position(0), lake.log().version) == (4, 4)
    for number in range(4, 7):
        again.commit(records(lake, number, 1))
    assert sequences(lake) == list(range(7))


def test_a_torn_checkpoint_is_removed_and_what_it_repeats_is_read_instead(lake: Lake) -> None:
    for number in range(CHECKPOINT_COMMITS + 2):
        lake.append(rows(lake.table, [1], first=number))
    (checkpoint,) = log_folder(lake).glob("*.checkpoint.parquet")
    os.truncate(checkpoint, checkpoint.stat().st_size // 2)
    assert sequences(lake) == list(range(CHECKPOINT_COMMITS + 2))
    assert not checkpoint.exists()
    assert not (log_folder(lake) / "_last_checkpoint").exists()


def test_a_whole_log_is_left_as_it_is(lake: Lake) -> None:
    for number in range(CHECKPOINT_COMMITS + 2):
        lake.append(rows(lake.table, [1], first=number))
    before = sorted(path.name for path in log_folder(lake).iterdir())
    assert mending.mend(log_folder(lake)) == []
    assert sorted(path.name for path in log_folder(lake).iterdir()) == before
    assert mending.mend(log_folder(lake) / "nowhere") == []


def test_a_commit_is_acknowledged_when_it_and_all_before_it_are_synced(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: set[str] = set()
    real = os.fsync

    def fsync(handle: int) -> None:
        synced.add(str(Path(f"/proc/self/fd/{handle}").readlink()))
        real(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    first, second = HistoryWriter(lake, SOURCE), HistoryWriter(lake, "topic:other")
    first.commit(records(lake, 0, 1))
    assert {str(commit_file(lake, 0)), str(commit_file(lake, 1))} <= synced
    assert str(log_folder(lake)) in synced
    assert any(name.startswith(str(drafts_in(tmp_path))) for name in synced), (
        "rows, before a commit"
    )
    second.commit(records(lake, 0, 1))
    synced.clear()
    first.commit(records(lake, 1, 1))
    # Also the one that the other writer has made in between.
    assert {str(commit_file(lake, 2)), str(commit_file(lake, 3))} <= synced


def test_whatever_is_torn_at_the_end_the_acknowledged_beginning_is_there(lake: Lake) -> None:
    seed = int(os.environ.get("HOLDFAST_SEED", "0")) or random.SystemRandom().randrange(1 << 32)
    print(f"HOLDFAST_SEED={seed}")
    chance = random.Random(seed)
    expected = 0
    for _ in range(25):
        writer = HistoryWriter(lake, SOURCE)
        position = writer.position(0)
        assert position == expected, f"seed {seed}"
        for number in range(chance.randint(1, 12)):
            writer.commit(records(lake, position + number, 1))
        # From here on nothing was acknowledged.
        newest = lake.log().version
        torn = chance.randint(max(1, newest - 3), newest)
        path = commit_file(lake, torn)
        os.truncate(path, chance.randint(0, path.stat().st_size - 1))
        for checkpoint in log_folder(lake).glob("*.checkpoint.parquet"):
            if int(checkpoint.name[:20]) >= torn:
                os.truncate(checkpoint, chance.randint(0, 100))
        expected = torn - 1
    assert sequences(lake) == list(range(expected)), f"seed {seed}"
