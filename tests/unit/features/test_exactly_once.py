"""Rows and the offsets of their source in one commit: each record is once in the history, whoever
stops, dies or comes back."""

from __future__ import annotations

import itertools
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from holdfast.features.history import HistoryWriter, Lake, SourceRows, upkeep
from holdfast.features.history.log import LakeLog
from holdfast.wire.errors import Conflict, Fenced, Unavailable, Usage
from tests.unit.features.history_made import made, rows, sequences
from tests.unit.features.history_writer import SOURCE, records
from tests.waiting import PATIENCE_S, eventually


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Lake]:
    yield made(tmp_path)


def test_a_batch_that_is_given_again_is_left_out_and_one_that_overlaps_is_cut(lake: Lake) -> None:
    writer = HistoryWriter(lake, SOURCE)
    assert writer.position(0) == 0
    assert writer.commit(records(lake, 0, 10)).rows == 10
    again = writer.commit(records(lake, 0, 10))
    assert (again.rows, again.repeated) == (0, 10)
    part = writer.commit(records(lake, 5, 10))
    assert (part.rows, part.repeated) == (5, 5)
    assert (writer.position(0), HistoryWriter(lake, SOURCE).position(0)) == (15, 15)
    assert sequences(lake) == list(range(15))


def test_what_became_no_row_is_passed_over_and_not_read_again(lake: Lake) -> None:
    writer = HistoryWriter(lake, SOURCE)
    nothing = records(lake, 0, 0)
    writer.commit(SourceRows(nothing.frame, [], [], {0: 3}))
    assert HistoryWriter(lake, SOURCE).position(0) == 3
    two = SourceRows(rows(lake.table, [1, 2], first=3), [0, 0], [3, 5], {0: 9})
    writer.commit(two)
    assert HistoryWriter(lake, SOURCE).position(0) == 9
    assert sequences(lake) == [3, 4]


def test_a_writer_that_stopped_between_reading_and_committing_is_fenced_when_it_is_woken(
    lake: Lake,
) -> None:
    first = HistoryWriter(lake, SOURCE)
    begin = first.position(0)
    batch = records(lake, begin, 10)  # read, and now it stands still
    second = HistoryWriter(lake, SOURCE)
    second.commit(records(lake, second.position(0), 25))
    with pytest.raises(Fenced, match="another writer") as stopped:
        first.commit(batch)
    assert "is at 25, and was at 0" in stopped.value.why
    with pytest.raises(Fenced):
        first.commit(records(lake, 25, 5))
    first.reread()
    assert first.position(0) == 25
    first.commit(records(lake, 25, 5))
    with pytest.raises(Fenced):
        second.commit(records(lake, 25, 5))
    assert sequences(lake) == list(range(30))


def test_a_commit_for_another_partition_does_not_hide_that_the_first_one_moved(lake: Lake) -> None:
    first = HistoryWriter(lake, SOURCE)
    batch = records(lake, first.position(0), 10)
    second = HistoryWriter(lake, SOURCE)
    second.commit(records(lake, 0, 10))
    # This reads the newest version, in which partition 0 has moved.
    first.commit(records(lake, 100, 3, partition=1))
    with pytest.raises(Fenced):
        first.commit(batch)
    assert sequences(lake) == [*range(10), *range(100, 103)]


def test_a_lower_offset_is_never_committed(lake: Lake) -> None:
    writer = HistoryWriter(lake, SOURCE)
    writer.commit(records(lake, 0, 20))
    both = SourceRows(
        rows(lake.table, [1, 2, 3], first=200),
        [0, 1, 1],
        [3, 0, 1],
        {0: 4, 1: 2},
    )
    assert writer.commit(both).rows == 2
    assert [HistoryWriter(lake, SOURCE).position(each) for each in (0, 1)] == [20, 2]


def test_a_commit_whose_answer_was_lost_is_in_once(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = LakeLog.commit
    outcomes: list[Exception] = [
        Unavailable("no answer"),
        Conflict("the library tried again, and met itself"),
    ]

    def lost(self: LakeLog, *given: Any) -> None:
        real(self, *given)
        if outcomes:
            raise outcomes.pop()

    monkeypatch.setattr(LakeLog, "commit", lost)
    writer = HistoryWriter(lake, SOURCE)
    assert writer.commit(records(lake, 0, 10)).rows == 10  # it found itself
    with pytest.raises(Unavailable):
        writer.commit(records(lake, 10, 10))
    assert writer.commit(records(lake, 10, 10)).rows == 0
    assert writer.commit(records(lake, 20, 5)).rows == 5
    assert sequences(lake) == list(range(25))


def test_writers_of_different_partitions_work_side_by_side_with_merges_and_appends(
    lake: Lake,
) -> None:
    merged, over = threading.Semaphore(0), threading.Event()

    def write(partition: int) -> range:
        writer = HistoryWriter(lake, SOURCE)
        first = begin = 1_000_000 * partition
        while first < begin + 60 or not over.is_set():
            writer.commit(records(lake, first, 5, partition))
            first += 5
        return range(begin, first)

    def merge() -> None:
        while not over.is_set():
            if upkeep.tend(lake).merged:
                merged.release()

    def append() -> None:
        for number in range(8):
            lake.append(rows(lake.table, [1], first=9_000_000 + number))

    with ThreadPoolExecutor(6) as pool:
        writing = [pool.submit(write, each) for each in range(4)]
        others = [pool.submit(merge), pool.submit(append)]
        try:
            assert all(merged.acquire(timeout=PATIENCE_S) for _ in range(3)), "nothing was merged"
        finally:
            over.set()
        expected = [number for future in writing for number in future.result()]
        for future in others:
            future.result()
    assert sequences(lake) == [*expected, *range(9_000_000, 9_000_008)]


def test_many_writers_of_one_partition_fence_each_other_and_none_doubles(lake: Lake) -> None:
    total = 60

    def write(seed: int) -> None:
        chance = random.Random(seed)
        writer = HistoryWriter(lake, SOURCE)
        while (begin := writer.position(0)) < total:
            count = min(chance.randint(1, 7), total - begin)
            try:
                writer.commit(records(lake, begin, count))
            except Fenced:
                writer.reread()

    with ThreadPoolExecutor(4) as pool:
        for future in [pool.submit(write, seed) for seed in range(4)]:
            future.result()
    assert sequences(lake) == list(range(total))


# --- a real process, killed -----------------------------------------------------------------------

KILLS = 20
RECORDS = 2_000


class WriterProcesses:
    """Starts processes that write, one after the other; see `history_writer`."""

    def __init__(self, lake: Lake) -> None:
        assert lake.place.folder is not None
        root = Path(__file__).parents[3]
        module = "tests.unit.features.history_writer"
        self._host = subprocess.Popen(
            [sys.executable, "-m", module, str(lake.place.folder.parents[1]), str(RECORDS)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
            cwd=root,
            env={**os.environ, "PYTHONPATH": str(root)},
        )
        self.living: list[int] = []

    def start(self) -> int:
        """The process that writes from now on."""
        assert self._host.stdin is not None
        self._host.stdin.write("go\n")
        found = self.lines(lambda line: line.startswith("process "))[-1]
        self.living.append(int(found.split()[1]))
        return self.living[-1]

    def lines(self, last: Callable[[str], bool]) -> list[str]:
        """What is said until a line of which `last` is true."""
        assert self._host.stdout is not None
        said = []
        for line in self._host.stdout:
            said.append(line.strip())
            if last(said[-1]):
                return said
        raise AssertionError(f"it ended, having said {said}")

    def end(self) -> None:
        for process in self.living:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        self._host.kill()
        self._host.communicate()


@pytest.fixture
def processes(lake: Lake) -> Iterator[WriterProcesses]:
    made_ = WriterProcesses(lake)
    try:
        yield made_
    finally:
        made_.end()


def test_a_writer_that_is_killed_again_and_again_writes_each_record_once(
    lake: Lake, processes: WriterProcesses
) -> None:
    seed = int(os.environ.get("HOLDFAST_SEED", "0")) or random.SystemRandom().randrange(1 << 32)
    print(f"HOLDFAST_SEED={seed}")
    chance = random.Random(seed)
    for number in range(KILLS):
        process = processes.start()
        batches = itertools.count(1)
        wanted = chance.randint(1, 8)
        said = processes.lines(lambda _, n=batches, w=wanted: next(n) == w)  # type: ignore[misc]
        time.sleep(chance.uniform(0.0, 0.05))  # pause: the moment of the kill
        os.kill(process, signal.SIGKILL)
        eventually(lambda p=process: is_gone(p), "the process is gone")  # type: ignore[misc]
        found = sequences(lake)
        assert found == list(range(len(found))), f"seed {seed}, kill {number}"
        acknowledged = max(int(line) for line in said if line.isdigit())
        assert len(found) > acknowledged, f"seed {seed}: an acknowledged batch is gone"
    processes.start()
    processes.lines(lambda line: line == "done")
    assert sequences(lake) == list(range(RECORDS)), f"seed {seed}"


def is_gone(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return True
    return False


def test_a_writer_process_that_was_stopped_is_fenced_when_it_goes_on(
    lake: Lake, processes: WriterProcesses
) -> None:
    process = processes.start()
    processes.lines(str.isdigit)
    os.kill(process, signal.SIGSTOP)
    other = HistoryWriter(lake, SOURCE)

    def committed() -> bool:
        # What it had begun before it was stopped is its own.
        try:
            other.commit(records(lake, other.position(0), 50))
        except Fenced:
            other.reread()
            return False
        return True

    eventually(committed, "the second writer has the partition")
    os.kill(process, signal.SIGCONT)
    assert processes.lines(lambda line: line.startswith("ended"))[-1] == "ended by Fenced"
    found = sequences(lake)
    assert found == list(range(len(found)))


# --- what is refused ------------------------------------------------------------------------------

BAD: dict[str, tuple[Callable[[Lake], SourceRows], str]] = {
    "too few offsets": (
        lambda lake: SourceRows(rows(lake.table, [1, 2]), [0], [0], {0: 2}),
        "2 rows have 1",
    ),
    "a row behind the end": (
        lambda lake: SourceRows(rows(lake.table, [1]), [0], [5], {0: 5}),
        "read up to 5",
    ),
    "no place to go on at": (
        lambda lake: SourceRows(rows(lake.table, [1]), [0], [5], {}),
        "read up to anywhere",
    ),
    "another partition": (
        lambda lake: SourceRows(rows(lake.table, [1]), [3], [5], {0: 9}),
        "partition 3",
    ),
    "fractions": (
        lambda lake: SourceRows(rows(lake.table, [1]), [0.5], [5.0], {0: 9}),
        "whole numbers",
    ),
    "rows of another table": (
        lambda lake: SourceRows(rows(lake.table, [1]).drop("city"), [0], [0], {0: 1}),
        "missing: city",
    ),
}


@pytest.mark.parametrize("what", BAD)
def test_a_bad_batch_is_refused_and_nothing_of_it_is_written(lake: Lake, what: str) -> None:
    make, words = BAD[what]
    writer = HistoryWriter(lake, SOURCE)
    with pytest.raises(Usage) as refused:
        writer.commit(make(lake))
    assert words in str(refused.value)
    assert (lake.log().version, HistoryWriter(lake, SOURCE).position(0)) == (0, 0)


def test_a_source_has_a_name(lake: Lake) -> None:
    with pytest.raises(Usage):
        HistoryWriter(lake, "")
