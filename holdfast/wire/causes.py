"""The cause of a failure, from what is told of it. Pure.

A worker's end is told in many lines: its own last words (a traceback), then the fact (a status or
a signal), then perhaps a remark of whoever decided upon it. People first want one sentence of it,
with the place in their own code; and for what Holdfast itself refused, what to do about it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from holdfast.wire.errors import GpuFault

TRACEBACK: Final = "Traceback (most recent call last):"
_GROUP: Final = re.compile(r"^[ |+-]*\+ Exception Group Traceback \(most recent call last\):$")
_BAR: Final = re.compile(r"^\s*\| ")  # before each line of a group
_FRAME: Final = re.compile(r'^\s*File "([^"]+)", line (\d+)(, in )?')
_EXCEPTION: Final = re.compile(r"^((?:\w+\.)*[A-Za-z_]\w*)(?::\s?(.*))?$")
_STATUS: Final = re.compile(r"it ended with (status \d+)")
# What an agent says of an end that the worker's own words do not explain (`agent.exits`).
_FACTS: Final = (
    "it ended before the job was done",
    "it made no progress, and was killed",
    "it met its memory limit",
    "it met its disk limit",
    "the environment could not be made",
    "it was asked to stop",
    "it was ended by ",
    "somebody had paused it",
)
# What a coordinator adds to them (`control.decide.lifecycle`).
_BEFORE: Final = "failed: "
_REMARK: Final = re.compile(r"\(worker \d+; .*\)")
_BUNDLE: Final = re.compile(r"^.*/(?:bundles/[0-9a-f]+/files|workers/[^/]+/code)/")
_STRANGE: Final = re.compile(r"^<|/(?:site|dist)-packages/|/lib(?:64)?/python\d")
_OURS: Final = str(Path(__file__).resolve().parents[1]) + "/"
_SYNTAX: Final = frozenset({"SyntaxError", "IndentationError", "TabError"})
_IMPORT: Final = frozenset({"ImportError", "ModuleNotFoundError"})
# Said by the interpreter itself, of a script or a module (`-m`) that is not there.
_NO_SCRIPT: Final = re.compile(
    r"can't open file '[^']*': \[Errno 2\]|^\S*python[\d.]*: No module named ", re.MULTILINE
)


@dataclass(frozen=True, slots=True)
class Cause:
    """Why it failed. `text` is one line. `why` and `fix` are there if Holdfast itself refused."""

    text: str
    kind: str = ""  # the exception's class, if there was one
    why: str = ""
    fix: str = ""

    @property
    def line(self) -> str:
        """All that a table has room for: the cause, then what to do about it."""
        return f"{self.text}; fix: {self.fix}" if self.fix else self.text


def cause_of(told: str) -> Cause:
    """The cause in what was told of a failure, however much of it is there."""
    lines = [line for line in told.strip().removeprefix(_BEFORE).splitlines() if line.strip()]
    if len(lines) > 1 and _REMARK.fullmatch(lines[-1]):
        lines.pop()
    if not lines:
        return Cause("")
    if lines[-1].startswith(_FACTS):
        return Cause(lines[-1])
    status = _STATUS.fullmatch(lines[-1])
    own = lines[:-1] if status and len(lines) > 1 else lines
    found = _raised(own)
    if found is not None:
        return found
    return Cause(f"{own[-1].strip()} ({status[1]})" if status and own is not lines else own[-1])


def is_gpu_fault(told: str) -> bool:
    """Whether a GPU's own fault has ended it."""
    return cause_of(told).kind == GpuFault.__name__


def remark_of(told: str) -> str:
    """What was decided upon it, such as `the job failed 3 times in a row`; empty: not told."""
    last = told.strip().rpartition("\n")[2]
    return last[1:-1].partition("; ")[2] if _REMARK.fullmatch(last) else ""


def comes_again(own: str) -> bool:
    """Whether whoever tries the same code again must fail the same way: it cannot be read, or what
    it imports or is to run is not there. `own`: the worker's last words."""
    return cause_of(own).kind in _SYNTAX | _IMPORT or bool(_NO_SCRIPT.search(own))


def _raised(lines: list[str]) -> Cause | None:
    """The exception that ended it, with the place in its user's code; None: there was none."""
    starts = [at for at, line in enumerate(lines) if line.strip() == TRACEBACK]
    groups = [at for at, line in enumerate(lines) if _GROUP.match(line)]
    if groups and (not starts or groups[0] < starts[-1]):
        # The first lines of a group's traceback say what failed; below are its parts.
        lines = [_BAR.sub("", line) for line in lines]
        starts = groups[:1]
    after = lines[starts[-1] + 1 :] if starts else lines
    at = next((at for at, line in enumerate(after) if not line.startswith((" ", "\t"))), None)
    if not starts:
        # Of a script that cannot be parsed Python shows the place, and no traceback.
        at = next((at for at, line in enumerate(after) if _kind(line) in _SYNTAX), None)
    named = _EXCEPTION.match(after[at]) if at is not None else None
    if at is None or named is None:
        return None
    place = _place(after[:at], syntax=_kind(after[at]) in _SYNTAX)
    if named[1].startswith("holdfast."):
        rest = {key: text for key, _, text in (line.partition(": ") for line in after[at + 1 :])}
        text = named[2] or named[1].rpartition(".")[2]
        return Cause(f"{text}{place}", _kind(after[at]), rest.get("why", ""), rest.get("fix", ""))
    return Cause(f"{after[at].strip()}{place}", _kind(after[at]))


def _kind(line: str) -> str:
    named = _EXCEPTION.match(line)
    return named[1].rpartition(".")[2] if named else ""


def _place(lines: list[str], *, syntax: bool) -> str:
    """` (train.py, line 3)`: the last frame that is its user's own; of what cannot be parsed, the
    last one whosever it is. Empty: there is none."""
    frames = [(found[1], found[2]) for line in lines if (found := _FRAME.match(line))]
    own = [frame for frame in frames if _BUNDLE.match(frame[0])]
    own = own or [
        frame
        for frame in frames
        if not _STRANGE.search(frame[0]) and not frame[0].startswith(_OURS)
    ]
    chosen = frames if syntax else own
    if not chosen:
        return ""
    path, line = chosen[-1]
    return f" ({_BUNDLE.sub('', path)}, line {line})"
