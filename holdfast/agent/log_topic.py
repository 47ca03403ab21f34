"""`logs.<job>`: the output of workers on this machine, for jobs that ask for it.

Workers write to their log files as ever, and wait for nobody. A thread reads the files of those
that are marked, gives each line to the topic, and notes in the mark how far that is. So an agent
that is started again goes on there, and while topics are away lines wait in the files; what was
rotated away meanwhile is told as lost.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from holdfast.agent.folders import Folders
from holdfast.agent.log_files import LogFiles, LogPosition, Piece, Query, Source
from holdfast.system import logs
from holdfast.system.retries import Retries
from holdfast.system.tasks import OwnedThread, start_thread
from holdfast.wire.errors import HoldfastError

if TYPE_CHECKING:
    from holdfast.topics import Connection, Producer

TOPIC: Final = "logs."
MARK: Final = "topic"  # a file beside a worker's logs: they go to the topic
LOG_TOPIC_EVERY_S: Final = 0.5
# A longer line is told in parts.
LOG_LINE_BYTES_MAX: Final = 64 * 1024
# Topics that have not answered by then are away.
LOG_TOPIC_TOLD_S: Final = 10.0
LOG_TOPIC_AWAY_S: Final = 5.0

log = logs.get(__name__)


class ToldLine(msgspec.Struct, frozen=True, omit_defaults=True):
    """One record. `lost`: lines before it were overwritten before they could be told."""

    job: str
    worker: int
    node: str
    output: str
    line: str
    at_s: float
    lost: bool = False


@dataclass(slots=True)
class MarkedLog:
    """A worker's log that goes to the topic: how far it was told. `rest`: the beginning of a line
    that is not complete yet."""

    job: str
    worker: int
    files: LogFiles
    places: dict[Source, LogPosition] = field(default_factory=dict)
    rest: dict[Source, bytes] = field(default_factory=dict)


def lines_of(rest: dict[Source, bytes], piece: Piece) -> Iterator[bytes]:
    """The lines that are complete now; what is not yet stays in `rest`. No I/O."""
    *lines, left = (rest.pop(piece.source, b"") + piece.data).split(b"\n")
    while len(left) > LOG_LINE_BYTES_MAX:
        lines.append(left[:LOG_LINE_BYTES_MAX])
        left = left[LOG_LINE_BYTES_MAX:]
    if left:
        rest[piece.source] = left
    for line in lines:
        for start in range(0, max(len(line), 1), LOG_LINE_BYTES_MAX):
            yield line[start : start + LOG_LINE_BYTES_MAX]


class LogTopic:
    """A thread of an agent; a `with` around its run. `connect`: None while the cluster has no
    topics."""

    def __init__(
        self, folders: Folders, node: str, connect: Callable[[], Connection | None]
    ) -> None:
        self._folders = folders
        self._node = node
        self._connect = connect
        self._marked: dict[Path, MarkedLog] = {}
        self._connection: Connection | None = None
        self._producer: Producer | None = None
        self._ended = threading.Event()
        self._thread: OwnedThread | None = None

    def __enter__(self) -> None:
        self._thread = start_thread(self._run, "log-topic")

    def __exit__(self, *exc: object) -> None:
        self._ended.set()
        if self._thread is not None:
            self._thread.join(LOG_TOPIC_TOLD_S)

    def _run(self) -> None:
        retries = Retries("telling workers' output")
        while not self._ended.wait(LOG_TOPIC_EVERY_S):
            try:
                self.tell()
            except HoldfastError as error:
                log.warning("workers' output waits for topics", reason=str(error))
                self._close()
                self._ended.wait(LOG_TOPIC_AWAY_S)
            except Exception as error:  # a bug: workers do not need it
                self._close()
                self._ended.wait(retries.failed(error))
            else:
                retries.well()
        self._close()

    def tell(self) -> None:
        """Give the topic what was written since the last time."""
        marks = sorted(self._folders.logs.glob(f"*/{MARK}"))
        for gone in self._marked.keys() - set(marks):
            del self._marked[gone]
        for mark in marks:
            producer = self._producer or self._open()
            if producer is None:
                return
            marked = self._marked.get(mark) or self._begin(mark)
            job, worker = marked.job, marked.worker
            over = not (self._folders.workers / f"{job}.{worker}").is_dir()
            told = self._send(producer, marked, over=over)
            if told:
                producer.flush(LOG_TOPIC_TOLD_S)
                self._note(mark, marked)
            elif over:
                mark.unlink(missing_ok=True)
                del self._marked[mark]

    def _send(self, producer: Producer, marked: MarkedLog, *, over: bool) -> bool:
        """Whether there was anything. `over`: no more will be written."""
        told = False
        for piece in marked.files.more():
            marked.places[piece.source] = piece.place
            told = self._send_piece(producer, marked, piece) or told
        for source in list(marked.rest) if over else ():
            rest = Piece(source, marked.places[source], b"\n")
            told = self._send_piece(producer, marked, rest) or told
        return told

    def _send_piece(self, producer: Producer, marked: MarkedLog, piece: Piece) -> bool:
        topic, key, lost = f"{TOPIC}{marked.job}", str(marked.worker), piece.lost
        told = False
        for line in lines_of(marked.rest, piece):
            producer.send(topic, self._record(marked, piece, line, lost), key=key)
            told, lost = True, False
        return told

    def _record(self, marked: MarkedLog, piece: Piece, line: bytes, lost: bool) -> bytes:
        text, output = line.decode(errors="replace"), piece.source.output
        told = ToldLine(marked.job, marked.worker, self._node, output, text, time.time(), lost)
        return msgspec.json.encode(told)

    def _begin(self, mark: Path) -> MarkedLog:
        job, _, worker = mark.parent.name.rpartition(".")
        places: dict[Source, LogPosition] = {}
        with suppress(OSError, ValueError, TypeError):  # a torn note: told again from the beginning
            for output, place in json.loads(mark.read_bytes() or b"{}").items():
                places[Source(int(worker), output)] = LogPosition(*place)
        files = LogFiles(self._folders.logs, Query(job, int(worker)), places)
        marked = self._marked[mark] = MarkedLog(job, int(worker), files, dict(places))
        if self._connection is not None:
            self._connection.admin.ensure(f"{TOPIC}{job}")
        return marked

    def _note(self, mark: Path, marked: MarkedLog) -> None:
        """Not synced: lines told twice after a power cut are no harm."""
        places = {
            source.output: [place.file, place.offset - len(marked.rest.get(source, b""))]
            for source, place in marked.places.items()
        }
        mark.write_text(json.dumps(places))

    def _open(self) -> Producer | None:
        self._connection = self._connect()
        if self._connection is not None:
            self._producer = self._connection.producer(delivery_s=LOG_TOPIC_TOLD_S)
        return self._producer

    def _close(self) -> None:
        """What was not noted is read again."""
        connection, producer = self._connection, self._producer
        self._connection = self._producer = None
        self._marked.clear()
        if producer is not None:
            producer.abandon()
        if connection is not None:
            connection.close()
