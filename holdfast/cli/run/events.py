"""The history of a job as it happens, as events for people. Pure.

`HistoryReader` finds what is new in a history that is read again and again; `event_of` says which
decisions are worth a line, and how it reads.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import holdfast
from holdfast.wire.causes import TRACEBACK, cause_of
from holdfast.wire.history import HistoryEntry
from holdfast.wire.limits import RUN_SETTLE_S
from holdfast.wire.reports import ExitKind

# Steps towards something that gets a line of its own when it has come about.
_QUIET: Final = frozenset(
    {
        "AbandonCheckpoint",
        "BeginCheckpoint",
        "DrainWorker",
        "DropCheckpoint",
        "Forget",
        "GiveSettings",
        "GiveView",
        "PlaceWorker",
        "StartWorker",
        "StopWorker",
        "TakeShare",
    }
)
_GONE: Final = re.compile(r"worker (\d+) is gone \((\w+)\)(?:: (.*))?", re.S)
_SIGNAL: Final = re.compile(r"it was ended by (\w+)")
_FRAME: Final = re.compile(r'^  File "([^"]+)", line \d+')
# Where a worker has a copy of the code for itself: what it writes there is counted.
_OWN_COPY: Final = re.compile(r"/[^\s\"']*/workers/[^\s\"'/]+/code(?=/)")
_STATUS: Final = "SetStatus"
_FAILURE_WAIT: Final = " after failure "
_FAILED: Final = "failed: "
_EXPECTED: Final = frozenset({ExitKind.LEFT.value, ExitKind.STOPPED.value})
_PACKAGE: Final = Path(holdfast.__file__).parent
_LOUD: Final = frozenset({"Trouble", "MarkCheckpointUnreadable", "RecoverCheckpoints"})


@dataclass(frozen=True, slots=True)
class RunEvent:
    """A line of the story. `detail` has several lines: a traceback, for instance.

    `loss`: a worker went that nobody had asked to go. `loud`: somebody should look at it.
    """

    at_s: float
    kind: str
    text: str
    detail: str = ""
    worker: int | None = None
    loss: bool = False
    loud: bool = False


class HistoryReader:
    """Gives each entry of a history once, however often the history is read."""

    def __init__(self, known: Sequence[HistoryEntry] = ()) -> None:
        self._last: HistoryEntry | None = known[-1] if known else None

    def news(self, history: Sequence[HistoryEntry]) -> list[HistoryEntry]:
        """What has come since the last call. Entries that went round before are lost."""
        if not history:
            return []
        last, self._last = self._last, history[-1]
        if last is None:
            return list(history)
        for at in range(len(history) - 1, -1, -1):
            if history[at] == last:
                return list(history[at + 1 :])
        return [entry for entry in history if entry.at_s >= last.at_s]


class StatusFilter:
    """Holds a status back until it has lasted a moment: most are passed through at once, and only
    where a job comes to rest is worth a line. That a failure is waited out is told at once."""

    def __init__(self) -> None:
        self._held: tuple[float, RunEvent] | None = None
        self._last_text = ""

    def passed(self, events: Sequence[RunEvent], now_s: float) -> list[RunEvent]:
        """What is to be told now, in order."""
        shown: list[RunEvent] = []
        for event in events:
            if event.kind != _STATUS:
                shown.append(event)
            elif _FAILURE_WAIT in event.text:
                self._held = None
                shown.append(event)
            else:
                self._held = (now_s, event)
        if self._held is not None and now_s >= self._held[0] + RUN_SETTLE_S:
            shown.append(self._held[1])
            self._held = None
        # A decision and the status that it leads to may read alike.
        fresh = []
        for event in shown:
            if event.kind != _STATUS or event.text != self._last_text:
                fresh.append(event)
            self._last_text = event.text
        return fresh


def event_of(entry: HistoryEntry, places: Mapping[str, str]) -> RunEvent | None:
    """The line for this decision; None: nobody needs one. `places` renames paths in tracebacks."""
    if entry.what in _QUIET:
        return None
    if entry.what == "UnplaceWorker":
        return _gone(entry, places)
    text = in_one_line(entry.reason)
    if _FAILURE_WAIT in text:
        # Why it failed was told with the worker that did.
        text = f"{text.partition(':')[0]}, then tries again"
    return RunEvent(entry.at_s, entry.what, text, loud=entry.what in _LOUD)


def _gone(entry: HistoryEntry, places: Mapping[str, str]) -> RunEvent | None:
    found = _GONE.fullmatch(entry.reason)
    if found is None:
        return RunEvent(entry.at_s, entry.what, entry.reason.partition("\n")[0], loss=True)
    worker, kind, detail = int(found[1]), found[2], found[3] or ""
    if kind in _EXPECTED:
        return None  # the view that it left in says so
    loss = kind != ExitKind.DONE.value
    *own, fact = detail.strip().split("\n") if detail else [""]
    wrong = cause_of(detail).text
    text = f"worker {worker} {_how(kind, fact, wrong)}"
    shown = own_traceback("\n".join(own), places) if loss else ""
    # What a killed process said last is not why it went; what a failed one said is.
    if kind == ExitKind.SIGNAL.value:
        shown = ""
    return RunEvent(entry.at_s, entry.what, text, shown, worker, loss)


def _how(kind: str, fact: str, wrong: str) -> str:
    signal = _SIGNAL.search(fact)
    match kind:
        case "signal" if signal:
            return f"was killed ({signal[1]})"
        case "signal" | "lost":
            return f"was lost: {fact}" if fact else "was lost"
        case "error" | "refused":
            return f"failed: {wrong}" if wrong else "failed"
        case "memory":
            met = fact.startswith("it met its memory limit")
            return fact.removeprefix("it ") if met else "needed more memory than it had"
        case "disk":
            return fact.removeprefix("it ")
        case "hung":
            return "hung: it made no progress, and was ended"
        case "done":
            return "has finished"
        case _:
            return f"is gone ({kind})"


def in_one_line(reason: str) -> str:
    """A reason in one line: of a failure, that it is one, its cause, and the remark at its end."""
    lines = [line for line in reason.splitlines() if line.strip()]
    if len(lines) < 2:
        return lines[0] if lines else ""
    start = _FAILED if reason.startswith(_FAILED) else ""
    remark = lines[-1] if lines[-1].startswith("(") else ""
    return f"{start}{cause_of(reason).text} {remark}".strip()


def own_traceback(text: str, places: Mapping[str, str]) -> str:
    """A traceback without the frames that are not its user's, with its paths as the user knows
    them. Text that is no traceback stays as it is."""
    lines: list[str] = []
    hidden = False
    for line in text.splitlines():
        frame = _FRAME.match(line)
        if frame is not None:
            hidden = _ours(frame[1])
        elif not line.startswith("    "):
            hidden = False
        if not hidden:
            lines.append(line)
    shown = "\n".join(lines).strip("\n")
    for place, name in places.items():
        shown = name.join(_OWN_COPY.split(shown.replace(place, name)))
    return shown


def is_traceback_start(line: str) -> bool:
    """Also of a script that cannot be parsed: of that Python shows the place alone."""
    return line.strip() == TRACEBACK or _FRAME.match(line) is not None


def _ours(path: str) -> bool:
    return path.startswith("<frozen ") or Path(path).is_relative_to(_PACKAGE)
