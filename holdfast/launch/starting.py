"""One process: its command, its log, and waiting until it says that it is ready.

A *detached* process outlives its starter. A *tied* one ends when its starter ends, also when that
is killed: see `holdfast.cluster.ties`.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

from holdfast.cluster import Cluster, Process, processes
from holdfast.cluster.registry import log_path
from holdfast.cluster.ties import Tie
from holdfast.launch import wanted
from holdfast.wire import disk
from holdfast.wire.errors import TerminalError, TimedOut
from holdfast.wire.limits import (
    PROCESS_LOG_BYTES_MAX,
    PROCESS_LOG_LINES_SHOWN,
    UP_LOOK_S,
    UP_S,
)
from holdfast.wire.process import PART_VARIABLE

AGENT: Final = "agent"
COORDINATOR: Final = "coordinator"
SERVER: Final = "server"
CONDUCTOR: Final = "conductor"
GATEWAY: Final = "gateway"
ENVOY: Final = "envoy"
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Started:
    """A process that we have started, or that ran already (`child` None)."""

    cluster: Cluster
    kind: str
    name: str
    child: subprocess.Popen[bytes] | None = None

    @property
    def process(self) -> Process | None:
        """Its record; None: it has not written it yet, or has ended."""
        return next((one for one in processes(self.cluster) if self._is(one)), None)

    @property
    def log(self) -> Path:
        return log_path(self.cluster, self.kind, self.name)

    def _is(self, process: Process) -> bool:
        return (process.kind, process.name) == (self.kind, self.name)

    def check(self) -> None:
        """`TerminalError`, with its last words, if it has ended; `Unavailable` if everything is
        being ended."""
        wanted.check(self.cluster)
        if self.child is not None and self.child.poll() is not None:
            raise TerminalError(
                f"the {self.kind} {self.name} ended early (exit code {self.child.returncode})",
                why=last_words(self.log) or "it said nothing",
                fix=f"see all of it: less {self.log}",
            )

    def end(self, timeout_s: float) -> None:
        """End a child of ours: SIGTERM, then SIGKILL."""
        if self.child is not None and self.child.poll() is None:
            self.child.terminate()
            try:
                self.child.wait(timeout_s)
            except subprocess.TimeoutExpired:
                self.child.kill()
                self.child.wait()


def start(
    cluster: Cluster, kind: str, name: str, module: str, words: Sequence[str], tie: Tie | None
) -> Started:
    """Start `python -m MODULE --cluster DIR WORDS`. A living one of that kind and name stays."""
    there = Started(cluster, kind, name)
    if there.process is not None:
        return there
    command = [sys.executable, "-m", module, "--cluster", str(cluster.folder), *words]
    if tie is not None:
        command.append("--tied")
    cluster.logs_folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    log = log_path(cluster, kind, name)
    if log.exists() and log.stat().st_size > PROCESS_LOG_BYTES_MAX:
        log.replace(log.with_suffix(".log.1"))
    with disk.private(log, "ab") as output:
        child = subprocess.Popen(
            command,
            stdin=tie.end if tie is not None else subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd="/",
            env={**environment(), PART_VARIABLE: str(cluster.folder)},
            # Ctrl-C in the terminal of its starter is for the starter.
            start_new_session=True,
        )
    return Started(cluster, kind, name, child)


def await_all(
    waiting: Sequence[Started],
    ready: Callable[[], T | None],
    what: str,
    timeout_s: float = UP_S,
    look: Callable[[], None] = lambda: None,
) -> T:
    """What `ready` gives, once it gives something. `look` is called meanwhile, again and again."""
    deadline_s = time.monotonic() + timeout_s
    while True:
        found = ready()
        if found is not None:
            return found
        for one in waiting:
            one.check()
        if time.monotonic() > deadline_s:
            logs = [f"{one.log}: {last_words(one.log, 1)}" for one in waiting]
            raise TimedOut(
                f"not within {timeout_s:g} s: {what}",
                why="the machine is slow, or the coordination plane does not answer",
                fix="look at the logs; what was started goes on, and `holdfast status` shows it",
                story=logs,
            )
        look()
        time.sleep(UP_LOOK_S)


def last_words(log: Path, lines: int = PROCESS_LOG_LINES_SHOWN) -> str:
    try:
        text = log.read_bytes()[-16_384:].decode(errors="replace")
    except FileNotFoundError:
        return ""
    return "\n".join(text.strip().splitlines()[-lines:])


def environment() -> dict[str, str]:
    """Ours, with this very package first on the path, wherever it was imported from."""
    root = str(Path(__file__).resolve().parents[2])
    known = os.environ.get("PYTHONPATH")
    words = [root, known] if known else [root]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(words)}
