"""One way to a file that is there whole or not at all."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from holdfast.system import process_identity
from holdfast.system.durable import write_file


def test_what_a_killed_writer_left_behind_is_no_way_into_the_file_that_it_had_made(
    tmp_path: Path,
) -> None:
    """It was killed after it had given the file its name, and before it took away the other."""
    folder = os.open(tmp_path, os.O_RDONLY)
    try:
        write_file(folder, "secret", b"first", once=True)
        other = f"secret.{os.getpid()}.{threading.get_ident()}.tmp"
        os.link(tmp_path / "secret", tmp_path / other)
        with pytest.raises(FileExistsError):
            write_file(folder, "secret", b"second", once=True)
    finally:
        os.close(folder)
    assert (tmp_path / "secret").read_bytes() == b"first"
    assert [path.name for path in tmp_path.iterdir()] == ["secret"]


def test_the_number_of_a_process_that_is_a_threads_by_now_is_nobodys() -> None:
    told: list[int] = []
    said, end = threading.Event(), threading.Event()

    def live() -> None:
        told.append(threading.get_native_id())
        said.set()
        end.wait()

    thread = threading.Thread(target=live)
    thread.start()
    try:
        said.wait()
        assert process_identity.hold(told[0], 1, process_identity.boot()) is None
    finally:
        end.set()
        thread.join()
