"""Reading logs of workers: tails, following, rotation, and logs of a former job."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from holdfast.agent.log_files import ERR, OUT, LogFiles, Query, Source, ends
from holdfast.agent.shim import Log


def log_of(folder: Path, worker: int = 1, output: str = OUT, bytes_max: int = 1 << 20) -> Log:
    home = folder / f"job.{worker}"
    home.mkdir(exist_ok=True)
    return Log(str(home / f"{output}.log"), bytes_max)


FIRST = Source(1, OUT)


def text(files: LogFiles, source: Source = FIRST) -> bytes:
    return b"".join(piece.data for piece in files.more() if piece.source == source)


def test_all_that_is_kept_is_read_once_and_then_only_what_is_new(tmp_path: Path) -> None:
    log = log_of(tmp_path)
    log.write(b"one\ntwo\n")
    files = LogFiles(tmp_path, Query("job"))
    assert text(files) == b"one\ntwo\n"
    assert text(files) == b""
    log.write(b"three\n")
    assert text(files) == b"three\n"


@pytest.mark.parametrize(
    ("lines", "expected"),
    [(0, b""), (1, b"d\n"), (2, b"c\nd\n"), (3, b"b\nc\nd\n"), (4, b"a\nb\nc\nd\n"), (9, None)],
)
def test_the_last_lines_are_found_over_a_rotation(
    tmp_path: Path, lines: int, expected: bytes | None
) -> None:
    log = log_of(tmp_path, bytes_max=4)
    log.write(b"a\nb\n")
    log.write(b"c\nd\n")
    found = text(LogFiles(tmp_path, Query("job", lines=lines)))
    assert found == (b"a\nb\nc\nd\n" if expected is None else expected)


def test_the_last_lines_of_long_logs_and_of_lines_without_an_end(tmp_path: Path) -> None:
    log = log_of(tmp_path)
    log.write(b"".join(b"%d %s\n" % (number, b"x" * 500) for number in range(1_000)))
    log.write(b"unfinished")
    found = text(LogFiles(tmp_path, Query("job", lines=2)))
    assert found.startswith(b"999 ")
    assert found.endswith(b"\nunfinished")


def test_a_reader_that_follows_misses_and_repeats_nothing_over_rotations(tmp_path: Path) -> None:
    seed = random.randrange(1 << 32)
    print("seed", seed)
    chance = random.Random(seed)
    log = log_of(tmp_path, bytes_max=200)
    files = LogFiles(tmp_path, Query("job"))
    written = read = b""
    unread = 0
    for number in range(500):
        line = b"line %d %s\n" % (number, b"." * chance.randrange(40))
        log.write(line)
        written += line
        unread += 1
        if chance.random() < 0.7 or unread == 3:  # never does a whole file go by unread
            unread, read = 0, read + text(files)
    read += text(files)
    # What was overwritten between two looks is lost; nothing is repeated or out of order.
    assert set(read.splitlines()) <= set(written.splitlines())
    rows = [int(row.split()[1]) for row in read.splitlines() if row.startswith(b"line ")]
    assert rows == sorted(set(rows))
    assert rows[-1] == 499


def test_a_reader_that_comes_back_goes_on_where_it_was_also_after_a_rotation(
    tmp_path: Path,
) -> None:
    log = log_of(tmp_path, bytes_max=8)
    log.write(b"one\n")
    first = list(LogFiles(tmp_path, Query("job", lines=10)).more())
    known = {piece.source: piece.place for piece in first}
    log.write(b"two\n")
    log.write(b"three\n")
    assert text(LogFiles(tmp_path, Query("job", lines=1), known)) == b"two\nthree\n"


def test_a_reader_whose_place_was_overwritten_is_told_so(tmp_path: Path) -> None:
    log = log_of(tmp_path, bytes_max=4)
    log.write(b"abcd")
    place = next(iter(LogFiles(tmp_path, Query("job")).more())).place
    for word in (b"efgh", b"ijkl", b"mnop"):
        log.write(word)
    gone = place._replace(file=place.file + 1_000_000)
    pieces = list(LogFiles(tmp_path, Query("job"), {Source(1, OUT): gone}).more())
    assert [piece.lost for piece in pieces] == [True, False]
    assert b"".join(piece.data for piece in pieces) == b"ijklmnop"


def test_only_what_was_asked_for_is_read(tmp_path: Path) -> None:
    for worker in (1, 2, 11):
        for output in (OUT, ERR):
            log_of(tmp_path, worker, output).write(b"%d %s\n" % (worker, output.encode()))
    (tmp_path / "other.job.1").mkdir()
    (tmp_path / "other.job.1" / "out.log").write_bytes(b"of another job\n")
    every = [piece.source for piece in LogFiles(tmp_path, Query("job")).more()]
    assert every == [Source(worker, output) for worker in (1, 2, 11) for output in (OUT, ERR)]
    errors = LogFiles(tmp_path, Query("job", worker=2, outputs=(ERR,)))
    assert [piece.data for piece in errors.more()] == [b"2 err\n"]


def test_logs_that_nobody_wrote_to_since_the_job_was_submitted_are_of_a_former_one(
    tmp_path: Path,
) -> None:
    log_of(tmp_path, 1).write(b"former\n")
    os.utime(tmp_path / "job.1" / "out.log", (1_000, 1_000))
    log_of(tmp_path, 2).write(b"present\n")
    found = [piece.data for piece in LogFiles(tmp_path, Query("job", since_s=2_000)).more()]
    assert found == [b"present\n"]


def test_a_worker_that_starts_later_is_read_from_its_beginning(tmp_path: Path) -> None:
    log_of(tmp_path, 1).write(b"a\nb\nc\n")
    files = LogFiles(tmp_path, Query("job", lines=1))
    assert text(files) == b"c\n"
    log_of(tmp_path, 2).write(b"x\ny\n")
    assert text(files, Source(2, OUT)) == b"x\ny\n"


def test_a_reader_that_knows_the_ends_reads_only_what_comes_also_after_a_rotation(
    tmp_path: Path,
) -> None:
    log = log_of(tmp_path, bytes_max=8)
    log.write(b"former\n")
    log_of(tmp_path, 1, ERR).write(b"error\n")
    (tmp_path / "job.x").mkdir()
    known = ends(tmp_path)
    assert set(known) == {"job"}
    assert {source: place.offset for source, place in known["job"].items()} == {
        Source(1, OUT): 7,
        Source(1, ERR): 6,
    }
    files = LogFiles(tmp_path, Query("job"), known["job"])
    assert list(files.more()) == []
    log.write(b"present\n")
    log_of(tmp_path, 2).write(b"another\n")
    assert {piece.source: piece.data for piece in files.more()}[Source(2, OUT)] == b"another\n"
    assert ends(tmp_path / "nowhere") == {}


def test_what_comes_after_a_known_end_is_read_whole_over_a_rotation(tmp_path: Path) -> None:
    log = log_of(tmp_path, bytes_max=8)
    log.write(b"former\n")
    files = LogFiles(tmp_path, Query("job"), ends(tmp_path)["job"])
    log.write(b"present\n")
    assert text(files) == b"present\n"
