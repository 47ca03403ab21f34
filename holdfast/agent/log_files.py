"""The logs of workers on this machine, as they are read: from the end, from a place, as they grow.

A log is two files, the present one and the one before it (`shim.Log`). A place in it is the number
of a file and an offset. A file that was rotated away meanwhile is still found under its other name.
One that is gone was overwritten, and its reader is told that something is lost.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, NamedTuple

# One piece of a log: large enough to be quick, small beside the agent's own memory.
LOG_PIECE_BYTES: Final = 64 * 1024


OUT: Final = "out"
ERR: Final = "err"


class Source(NamedTuple):
    """One output of one worker."""

    worker: int
    output: str


class LogPosition(NamedTuple):
    """Which file, and how many of its bytes were read. File 0: none yet."""

    file: int
    offset: int


BEGINNING: Final = LogPosition(0, 0)


@dataclass(frozen=True, slots=True)
class Piece:
    """What was read of a source, and the place after it. `lost`: there was more before it."""

    source: Source
    place: LogPosition
    data: bytes
    lost: bool = False


@dataclass(frozen=True, slots=True)
class Query:
    """Which logs. `lines` None: all that is kept. Logs last written to before `since_s` are those
    of a former job of the same name."""

    job: str
    worker: int | None = None
    outputs: tuple[str, ...] = (OUT, ERR)
    lines: int | None = None
    since_s: float = 0.0


class LogFiles:
    """Reads what a query asks for; `more` gives what is there now, and goes on from there."""

    def __init__(
        self, folder: Path, query: Query, known: Mapping[Source, LogPosition] | None = None
    ) -> None:
        self._folder = folder
        self._query = query
        self._places = dict(known or {})
        self._first = True

    def more(self) -> Iterator[Piece]:
        """What was written since the last call. The first call begins `lines` before the end; what
        appears later is read from its beginning."""
        for source in self._sources():
            yield from self._read(source)
        self._first = False

    def _sources(self) -> list[Source]:
        query = self._query
        found = []
        for path, job, worker in _logs_in(self._folder):
            if job != query.job or query.worker not in (None, worker) or self._former(path):
                continue
            found += [Source(worker, output) for output in query.outputs]
        return sorted(found, key=lambda source: source.worker)

    def _former(self, folder: Path) -> bool:
        written_s = [
            found.st_mtime for path in folder.glob("*.log") if (found := _stat(path)) is not None
        ]
        return max(written_s, default=0.0) < self._query.since_s

    def _read(self, source: Source) -> Iterator[Piece]:
        present = self._folder / f"{self._query.job}.{source.worker}" / f"{source.output}.log"
        former = present.with_name(f"{present.name}.1")
        place = self._places.get(source)
        if place is None:
            place = self._start(present, former) if self._first else BEGINNING
        files = {number: path for path in (former, present) if (number := _number(path))}
        lost = place.file != 0 and place.file not in files
        reached = place.file not in files
        for number, path in files.items():
            reached = reached or number == place.file
            if not reached:
                continue
            offset = place.offset if number == place.file else 0
            for piece in _pieces(path, source, LogPosition(number, offset)):
                place = piece.place
                yield replace(piece, lost=lost)
                lost = False
        self._places[source] = place

    def _start(self, present: Path, former: Path) -> LogPosition:
        """The place so many lines before the end."""
        lines = self._query.lines
        if lines is None:
            return BEGINNING
        for path in (present, former):
            number = _number(path)
            if number is None:
                continue
            offset, found = _back(path, lines)
            if found >= lines or path is former:
                return LogPosition(number, offset)
            if _number(former) is None:
                return LogPosition(number, 0)
            lines -= found
        return BEGINNING


def ends(folder: Path) -> dict[str, dict[Source, LogPosition]]:
    """Where the logs of each job end now: what a reader knows who wants only what comes."""
    found: dict[str, dict[Source, LogPosition]] = {}
    for path, job, worker in _logs_in(folder):
        for output in (OUT, ERR):
            present = path / f"{output}.log"
            last = _stat(present) or _stat(present.with_name(f"{present.name}.1"))
            if last is not None:
                end = LogPosition(last.st_ino, last.st_size)
                found.setdefault(job, {})[Source(worker, output)] = end
    return found


def _logs_in(folder: Path) -> Iterator[tuple[Path, str, int]]:
    """Each worker's logs: their folder, its job and its number."""
    for path in folder.glob("*"):
        job, _, number = path.name.rpartition(".")
        if job and number.isdecimal():
            yield path, job, int(number)


def _stat(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except FileNotFoundError:
        return None


def _number(path: Path) -> int | None:
    found = _stat(path)
    return None if found is None else found.st_ino


def _pieces(path: Path, source: Source, place: LogPosition) -> Iterator[Piece]:
    """From the place to the end of the file; nothing if it is not that file any more."""
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return
    with file:
        if os.fstat(file.fileno()).st_ino != place.file:
            return
        file.seek(place.offset)
        while data := file.read(LOG_PIECE_BYTES):
            place = LogPosition(place.file, place.offset + len(data))
            yield Piece(source, place, data)


def _back(path: Path, lines: int) -> tuple[int, int]:
    """The offset so many lines before the end, and how many there were."""
    with path.open("rb") as file:
        end = file.seek(0, os.SEEK_END)
        tail = b""
        while end > 0 and tail.count(b"\n") <= lines:
            size = min(LOG_PIECE_BYTES, end)
            end -= size
            file.seek(end)
            tail = file.read(size) + tail
    rows = tail.splitlines(keepends=True)
    kept = rows[-lines:] if lines else []
    return end + len(tail) - sum(map(len, kept)), len(kept)
