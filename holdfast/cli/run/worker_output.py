"""What workers print, line by line, as it is written to their logs on this machine.

Only of this run: what was in the logs when it began is known by its place. A time would not do: a
run may begin in the moment in which the one before it has ended.

A traceback on stderr is held back for a moment: if its worker ends by it, the run shows it once,
with what happens next, and not here as well. Nor there, if it was shown here before.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from holdfast.agent.log_files import ERR, OUT, LogFiles, LogPosition, Query, Source
from holdfast.cli.run.events import is_traceback_start

# A worker's line without an end is shown in pieces of this size.
RUN_LINE_BYTES_MAX: Final = 64 * 1024
# A traceback of a worker that has not ended by then was only logged.
RUN_TRACEBACK_S: Final = 3.0

_OUTPUTS: Final = (OUT, ERR)


@dataclass(frozen=True, slots=True)
class OutputLine:
    """One line of one worker, without its end."""

    worker: int
    output: str
    text: str


@dataclass
class _HeldTraceback:
    """Lines of a traceback, and when the first came. `whole`: its last line was seen."""

    since_s: float
    lines: list[OutputLine]
    whole: bool = False


class WorkerOutput:
    """The output of a job's workers under `logs`, from the places in `known` on (`ends`)."""

    def __init__(
        self,
        logs: Path,
        job: str,
        known: Mapping[Source, LogPosition],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._logs = logs
        self._files = LogFiles(logs, Query(job, outputs=_OUTPUTS), known)
        self._clock = clock
        self._partial: dict[Source, bytes] = {}
        self._held: dict[int, _HeldTraceback] = {}
        self._told: set[int] = set()
        self._shown: dict[int, str] = {}  # the last line of the last traceback that was shown

    def more(self, *, last: bool = False) -> list[OutputLine]:
        """Lines that came since the last call. `last`: also those without an end; tracebacks that
        are held then are of workers that went down with the job."""
        found: list[OutputLine] = []
        if self._logs.is_dir():
            for piece in self._files.more():
                found += self._split(piece.source, piece.data)
        if last:
            for source, rest in self._partial.items():
                found += [_line(source, rest)] if rest else []
            self._partial.clear()
        shown = [line for line in found if not self._hold(line)]
        return [*self._released(), *shown]

    def ended(self, workers: Iterable[int]) -> None:
        """These workers' ends are told with their tracebacks: they need not be shown here, be they
        read already or not."""
        self._told.update(workers)

    def has_shown(self, worker: int, traceback: str) -> bool:
        """Whether this traceback, by which the worker has ended, was shown among its lines."""
        return bool(traceback) and self._shown.get(worker) == _last_line(traceback.splitlines())

    def _split(self, source: Source, data: bytes) -> list[OutputLine]:
        *lines, rest = (self._partial.pop(source, b"") + data).split(b"\n")
        if len(rest) > RUN_LINE_BYTES_MAX:
            lines, rest = [*lines, rest], b""
        if rest:
            self._partial[source] = rest
        return [_line(source, line) for line in lines]

    def _hold(self, line: OutputLine) -> bool:
        """Whether the line is part of a traceback that waits."""
        if line.output != ERR:
            return False
        held = self._held.get(line.worker)
        if is_traceback_start(line.text):
            if held is None:
                self._held[line.worker] = held = _HeldTraceback(self._clock(), [])
            held.whole = False
        if held is None or (held.whole and line.text.strip()):
            return False
        held.lines.append(line)
        held.whole = bool(line.text) and not line.text.startswith((" ", "Traceback"))
        return True

    def _released(self) -> list[OutputLine]:
        """Tracebacks whose workers live on: somebody has logged them."""
        now_s = self._clock()
        due = [
            worker for worker, held in self._held.items() if now_s >= held.since_s + RUN_TRACEBACK_S
        ]
        shown: list[OutputLine] = []
        for worker in due:
            lines = self._held.pop(worker).lines
            if worker not in self._told:
                shown += lines
                self._shown[worker] = _last_line([line.text for line in lines])
        return shown


def _last_line(lines: Iterable[str]) -> str:
    return next((line for line in reversed([*lines]) if line.strip()), "")


def _line(source: Source, data: bytes) -> OutputLine:
    text = data.decode("utf-8", "replace").rstrip("\r")
    # A progress bar draws over its line: what it drew last is what a person would see.
    text = text.rpartition("\r")[2]
    return OutputLine(source.worker, source.output, text)
