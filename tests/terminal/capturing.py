"""Run a command in a terminal of a given size, and compare what it shows with a golden picture.

    with place() as folder:
        text = picture(["holdfast", "jobs"], SMALL, folder)
        check("jobs", SMALL, text)

What differs from run to run (times, durations, rates, digests, places) is replaced. With
`HOLDFAST_GOLDEN=write` pictures are written instead of compared: look at the difference, then
commit it.
"""

from __future__ import annotations

import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from tests.terminal.screen import Screen
from tests.unit.cli.running import environment

GOLDEN: Final = Path(__file__).parents[1] / "golden" / "terminal"
WRITE_VARIABLE: Final = "HOLDFAST_GOLDEN"
PATIENCE_S: Final = 240.0


class Size(NamedTuple):
    columns: int
    rows: int

    def __str__(self) -> str:
        return f"{self.columns}x{self.rows}"


SMALL: Final = Size(80, 24)
LARGE: Final = Size(160, 50)
SIZES: Final = (SMALL, LARGE)

# What differs between two runs that went alike.
_VARYING: Final[Sequence[tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]]]] = (
    # Of a story the time is shown where it changes: which lines share a second differs.
    (re.compile(r"(?<=\n)\d\d:\d\d:\d\d(?=  \w)"), " " * 8),
    (re.compile(r"\b\d\d:\d\d:\d\d\b"), "HH:MM:SS"),
    (re.compile(r"\b(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun) \d\d \w{3} \d{4}\b"), "DAY"),
    (re.compile(r"\b(in|within|since|left|last) (?:\d+[dhms]){1,2}\b"), r"\1 TIME"),
    (re.compile(r"\b(?:\d+[dhms]){1,2} ago\b"), "TIME ago"),
    (re.compile(r"\((?:\d+[dhms]){1,2}\)"), "(TIME)"),
    # In a table, where it must not move what stands beside it.
    (re.compile(r"(?<=  ) *(?:\d+[dhms]){1,2}(?=  )"), lambda cell: f"{'TIME':>{len(cell[0])}}"),
    (re.compile(r"(?<=  )(?:\d+[dhms]){1,2}(?=\n|$)"), "TIME"),
    (re.compile(r"\b\d+ earlier lines: (.*) -n \d+"), r"N earlier lines: \1 -n N"),
    (re.compile(r" \([\d,.]+ steps/s\)"), ""),  # of a run that is over in a moment none is told
    (re.compile(r"\b[\d,.]+ (steps|samples)/s\b"), r"N \1/s"),
    (re.compile(r"\b(?:[0-9a-f]\n?){63}[0-9a-f]\b"), "DIGEST"),  # broken by the edge, perhaps
    (re.compile(r"\b127\.0\.0\.1:\d+(?=  )"), lambda cell: f"{'ADDRESS':<{len(cell[0])}}"),
    (re.compile(r"\b127\.0\.0\.1:\d+\b"), "ADDRESS"),
    (re.compile(r"\bpid \d+\b"), "pid N"),
)


class Terminal:
    """A command in a terminal of its own."""

    def __init__(self, command: Sequence[str], size: Size, cwd: Path, **more: str) -> None:
        self.screen = Screen(size.columns)
        self._handle, inner = pty.openpty()
        fcntl.ioctl(inner, termios.TIOCSWINSZ, struct.pack("HHHH", size.rows, size.columns, 0, 0))
        words = [sys.executable, "-m", *command] if command[0] == "holdfast" else list(command)
        self.process = subprocess.Popen(
            words,
            stdin=inner,
            stdout=inner,
            stderr=inner,
            cwd=cwd,
            env=environment(TERM="xterm-256color", COLUMNS="", LINES="", **more),
            start_new_session=True,
        )
        os.close(inner)

    def until(self, condition: Callable[[list[str]], bool], what: str) -> None:
        """Take what it writes until its lines are so."""
        deadline_s = time.monotonic() + PATIENCE_S
        while not condition(self.screen.lines):
            assert self._take() and time.monotonic() < deadline_s, (what, self.screen.lines)

    def interrupt(self) -> None:
        self.process.send_signal(signal.SIGINT)

    def ends(self) -> int:
        """Take all that it writes; its exit code."""
        while self._take():
            pass
        os.close(self._handle)
        return self.process.wait(PATIENCE_S)

    def kill(self) -> None:
        """End it, if it has not ended."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    def _take(self) -> bool:
        try:
            data = os.read(self._handle, 65_536)
        except OSError:
            return False  # the other end is closed
        self.screen.feed(data.decode(errors="replace"))
        return bool(data)


@contextmanager
def place() -> Iterator[Path]:
    """An empty folder whose path always has the same length: it decides where lines are broken."""
    with tempfile.TemporaryDirectory(prefix="hf-", dir="/tmp") as folder:
        yield Path(folder)


def picture(
    command: Sequence[str],
    size: Size,
    folder: Path,
    code: int = 0,
    names: Mapping[str, str] | None = None,
) -> str:
    """All that the command shows in a terminal of that size, until it has ended with this code.
    `names`: what else differs from run to run, and what stands for it."""
    return pictures(command, (size,), folder, code, names)[size]


def pictures(
    command: Sequence[str],
    sizes: Sequence[Size],
    folder: Path,
    code: int = 0,
    names: Mapping[str, str] | None = None,
) -> dict[Size, str]:
    """The same in terminals of several sizes, all at once: for a command that changes nothing."""
    places, found = {str(folder): "FOLDER", **(names or {})}, {}
    terminals = {size: Terminal(command, size, folder) for size in sizes}
    try:
        for size, terminal in terminals.items():
            ended = terminal.ends()
            found[size] = normalized(terminal.screen.lines, places)
            assert ended == code, found[size]
    finally:
        for terminal in terminals.values():
            terminal.kill()
    return found


def normalized(lines: Sequence[str], places: Mapping[str, str]) -> str:
    """What would be the same in another run that went alike."""
    text = "\n".join(lines)
    for place, name in sorted(places.items(), key=lambda each: -len(each[0])):
        # A long one is broken over lines by the terminal.
        text = re.sub(r"\n?".join(map(re.escape, place)), name, text)
    for pattern, instead in _VARYING:
        text = pattern.sub(instead, text)
    return "\n".join(line.rstrip() for line in text.splitlines()) + "\n"


def check(name: str, size: Size, text: str) -> None:
    """It is the picture that is kept; or it is kept now."""
    path = GOLDEN / f"{name}.{size}.txt"
    if os.environ.get(WRITE_VARIABLE) == "write":
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert path.exists(), f"no picture {path.name} yet: {WRITE_VARIABLE}=write\n{text}"
    assert text == path.read_text()
