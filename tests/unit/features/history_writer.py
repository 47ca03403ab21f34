"""A program that writes records into a history, for tests that kill it.

    python -m tests.unit.features.history_writer FOLDER RECORDS

For each line of its input it forks a process that writes until all records are in, and says which
process that is and how far it has come. Importing takes most of the time of such a short life: so
that is done once, before anything has threads.
"""

from __future__ import annotations

import os
import signal
import sys

import numpy as np

from holdfast.features.history import HistoryWriter, Lake, SourceRows, upkeep
from tests.unit.features.history_made import drivers, rows

SOURCE = "topic:drivers"
BATCH = 7


def records(lake: Lake, first: int, count: int, partition: int = 0) -> SourceRows:
    """Records of a topic: the sequence of each row is its offset."""
    offsets = np.arange(first, first + count)
    frame = rows(lake.table, (offsets % 5).tolist(), first=first)
    return SourceRows(frame, np.full(count, partition), offsets, {partition: first + count})


def write(folder: str, total: int) -> None:
    lake = Lake(folder, drivers())
    writer = HistoryWriter(lake, SOURCE)
    while (begin := writer.position(0)) < total:
        writer.commit(records(lake, begin, min(BATCH, total - begin)))
        say(f"{begin}")
        if begin // BATCH % 9 == 0:
            upkeep.tend(lake)
    say("done")


def say(text: str) -> None:
    # One write: a process that is killed says a line or nothing.
    os.write(1, f"{text}\n".encode())


def main(folder: str, total: int) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for _ in sys.stdin:
        if not (child := os.fork()):
            try:
                write(folder, total)
            except BaseException as error:
                say(f"ended by {type(error).__name__}")
            finally:
                os._exit(0)
        say(f"process {child}")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
