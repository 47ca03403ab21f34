"""Writing a file whole, or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.system import disk
from holdfast.wire.errors import Full
from tests.faults.file_limit import files_no_larger_than


def test_a_file_that_cannot_be_written_stays_as_it_was_and_leaves_no_part_of_the_new_one(
    tmp_path: Path,
) -> None:
    path = tmp_path / "file"
    disk.replace_durably(path, b"good")
    with files_no_larger_than(100), pytest.raises(Full, match="no room") as caught:
        disk.replace_durably(path, bytes(1_000))
    assert "df" in caught.value.fix
    assert path.read_bytes() == b"good"
    assert list(tmp_path.iterdir()) == [path]
    disk.replace_durably(path, bytes(1_000))
    assert path.read_bytes() == bytes(1_000)


def test_what_is_no_lack_of_room_stays_what_it_is(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), disk.room_for(tmp_path):
        (tmp_path / "nobody").read_bytes()
