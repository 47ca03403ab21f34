"""`holdfast run` as its users have it: a process, what it prints, and the processes below it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from holdfast.cluster import opened, processes
from tests.unit.cli.running import environment
from tests.waiting import eventually

ROOT = Path(__file__).parents[2]
COUNTER = ROOT / "examples" / "counter.py"
PATIENCE_S = 240.0


def soon(condition: Callable[[], Any], what: str, patience_s: float = PATIENCE_S) -> Any:
    """What the condition gives, once it gives something."""
    return eventually(condition, what, patience_s)


class Run:
    """A running `holdfast run`. Its output goes to a file, as in a pipe."""

    def __init__(self, folder: Path, *words: str, cwd: Path | None = None) -> None:
        self.folder = folder
        self.printed = folder.parent / f"printed-{time.monotonic_ns()}.txt"
        with self.printed.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "holdfast", "run", "--dir", str(folder), *words],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment(),
                cwd=cwd,
                start_new_session=True,
            )

    @property
    def text(self) -> str:
        return self.printed.read_text(errors="replace")

    def says(self, words: str) -> None:
        """Wait until it has printed this."""

        def look() -> bool:
            assert words in self.text or self.process.poll() is None, self.text
            return words in self.text

        try:
            soon(look, f"it says {words!r}")
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.text}") from error

    def ends(self, patience_s: float = PATIENCE_S) -> int:
        try:
            return self.process.wait(patience_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it does not end:\n{self.text}") from None

    def interrupt(self) -> None:
        self.process.send_signal(signal.SIGINT)

    def worker_pids(self) -> dict[int, int]:
        """Living workers' processes, by worker: the children of their shims."""
        found = {}
        for claim in (self.folder / "nodes" / "local" / "workers").glob("*/claim"):
            try:
                shim = int(json.loads(claim.read_text())["pid"])
                children = Path(f"/proc/{shim}/task/{shim}/children").read_text().split()
            except (FileNotFoundError, ProcessLookupError, ValueError):
                continue
            if children:
                found[int(claim.parent.name.rpartition(".")[2])] = int(children[0])
        return found

    def pid_of(self, kind: str) -> int:
        """The agent's or the coordinator's process, by the record that it wrote of itself."""
        cluster = opened(self.folder)
        living = soon(
            lambda: [one for one in processes(cluster) if one.kind == kind], f"the {kind} lives"
        )
        return int(living[0].pid)


@contextmanager
def running(folder: Path, *words: str, cwd: Path | None = None) -> Iterator[Run]:
    """Start it, and leave nothing behind whatever the test does."""
    run = Run(folder, *words, cwd=cwd)
    try:
        yield run
    finally:
        if run.process.poll() is None:
            run.process.kill()
            run.process.wait()
        nothing_is_left(folder)


def nothing_is_left(folder: Path, patience_s: float = 120.0) -> None:
    """Wait until no process of that folder lives; those that do are named, and then ended."""
    try:
        eventually(lambda: not of_folder(folder), "no process is left", patience_s)
    except AssertionError:
        living = of_folder(folder)
        for pid in living:
            os.kill(pid, signal.SIGKILL)
        raise AssertionError(f"these are left: {living}") from None


def of_folder(folder: Path) -> dict[int, str]:
    """Processes whose command or environment names the folder, zombies not counted."""
    mark = os.fsencode(folder)
    found = {}
    for place in Path("/proc").glob("[0-9]*"):
        try:
            command = (place / "cmdline").read_bytes()
            named = mark in command or mark in (place / "environ").read_bytes()
            state = (place / "stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
        if named and state != "Z" and int(place.name) != os.getpid():
            found[int(place.name)] = command.replace(b"\0", b" ").decode(errors="replace")
    return found


def expected(steps: int, lanes: int, *more: str) -> dict[str, Any]:
    """The right answer of the counter, computed without any of it."""
    words = ["--steps", str(steps), "--lanes", str(lanes), "--expected", *more]
    done = subprocess.run(
        [sys.executable, str(COUNTER), *words],
        capture_output=True,
        text=True,
        check=True,
        env=environment(),
    )
    answer: dict[str, Any] = json.loads(done.stdout.removeprefix("answer "))
    return answer


def answer_in(file: Path) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(file.read_text())
    return answer


def step_in(text: str) -> int:
    """The last step that a worker of the counter has printed."""
    steps = [line.split() for line in text.splitlines() if "] step " in line]
    return max((int(words[2]) for words in steps if words[2].isdigit()), default=0)
