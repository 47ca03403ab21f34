"""One process: its command, its log, and waiting until it says that it is ready.

A *detached* process outlives its starter. A *tied* one ends when its starter ends, also when that
is killed: see `holdfast.cluster.ties`.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

from holdfast.cluster import Cluster, Process, processes
from holdfast.cluster.registry import identified, log_path
from holdfast.cluster.ties import Tie
from holdfast.launch import wanted
from holdfast.supervise import supervisor
from holdfast.supervise import wanted as wanted_here
from holdfast.supervise.spawn import environment, last_words, spawn
from holdfast.supervise.wanted import WantedProcess
from holdfast.topics import hosting
from holdfast.wire.errors import Occupied, TerminalError, TimedOut
from holdfast.wire.limits import UP_LOOK_S, UP_S

# What is shown of the log of a process that ended early.
PROCESS_LOG_LINES_SHOWN: Final = 12

AGENT: Final = "agent"
COORDINATOR: Final = "coordinator"
SERVER: Final = "server"
ROLLOUT_CONTROLLER: Final = "controller"
GATEWAY: Final = "gateway"
ENVOY: Final = "envoy"
TOPICS: Final = hosting.KIND
# Who holds the lock of a name has its record there after so long.
_RECORD_S: Final = 2.0
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class StartedProcess:
    """A process that we have started, or that ran already (`child` None)."""

    cluster: Cluster
    kind: str
    name: str
    child: subprocess.Popen[bytes] | None = None
    command: tuple[str, ...] = ()  # of a child of ours

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
        if self.child is not None and self.child.poll() is not None and not self._was_late():
            raise TerminalError(
                f"the {self.kind} {self.name} ended early (exit code {self.child.returncode})",
                why=last_words(self.log, PROCESS_LOG_LINES_SHOWN) or "it said nothing",
                fix=f"see all of it: less {self.log}",
            )

    def _was_late(self) -> bool:
        """Whether a supervisor was faster: another one runs in its place, or is about to say so."""
        if self.child is None or self.child.returncode != Occupied.exit_code:
            return False
        deadline_s = time.monotonic() + _RECORD_S
        while self.process is None and time.monotonic() < deadline_s:
            time.sleep(UP_LOOK_S)
        return self.process is not None

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
) -> StartedProcess:
    """Start `python -m MODULE --cluster DIR WORDS`. A living one of that kind and name stays."""
    there = StartedProcess(cluster, kind, name)
    if there.process is not None:
        return there
    command = [sys.executable, "-m", module, "--cluster", str(cluster.folder), *words]
    if tie is not None:
        command.append("--tied")
    return _spawned(cluster, kind, name, command, tie)


def start_as_wanted(cluster: Cluster, one: WantedProcess) -> StartedProcess:
    """Start what is wanted and was started before, as it was then. A living one stays."""
    there = StartedProcess(cluster, one.kind, one.name)
    if there.process is not None:
        return there
    # The interpreter in use: that of then may have been replaced.
    return _spawned(cluster, one.kind, one.name, [sys.executable, *one.command[1:]], None)


def keep(cluster: Cluster, started: Sequence[StartedProcess]) -> None:
    """From now on these are wanted here: a supervisor sees to it that they live. Whoever calls it
    is the only one who starts or ends something (`processes.alone`)."""
    asked = []
    for one in started:
        process = one.process
        if one.child is not None and (process is None or process.pid == one.child.pid):
            process = identified(one.kind, one.name, one.child.pid)
        command = one.command or (process.command if process is not None else ())
        if process is not None and command:
            asked.append((process, command))
    wanted_here.want(cluster.folder, asked)
    supervisor.ensure(cluster.folder)


def _spawned(
    cluster: Cluster, kind: str, name: str, command: Sequence[str], tie: Tie | None
) -> StartedProcess:
    stdin = tie.end if tie is not None else subprocess.DEVNULL
    log = log_path(cluster, kind, name)
    child = spawn(cluster.folder, command, log, environment(), stdin=stdin)
    return StartedProcess(cluster, kind, name, child, tuple(command))


def await_all(
    waiting: Sequence[StartedProcess],
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
