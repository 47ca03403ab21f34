"""The processes of a run: a coordination server, a coordinator and an agent, tied to this one.

They end when we end, however that happens. One that dies while we live is started again: workers
go on meanwhile, and its successor finds them.
"""

from __future__ import annotations

import fcntl
import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from holdfast.agent import log_files
from holdfast.cluster import Cluster, opened
from holdfast.launch import local, processes, wanted
from holdfast.launch.local import AgentSize, Tie
from holdfast.launch.starting import StartedProcess
from holdfast.system import backoff
from holdfast.system.disk import make_folder
from holdfast.system.tasks import start_thread
from holdfast.wire.errors import HoldfastError, Missing, Occupied, Unavailable, Usage
from holdfast.wire.limits import TIED_END_S, TIED_LINGER_S

# A process that died is started again after a pause that doubles: one that cannot start at all
# must not keep a core busy.
RUN_RESTART_S: Final = 0.1
RUN_RESTART_S_MAX: Final = 10.0
# Processes have so long to end by themselves before they are killed.
RUN_END_S: Final = 10.0
# A process of a run that lived so long has started well; one that ends early so often is given up.
RUN_STEADY_S: Final = 10.0
RUN_RESTARTS_MAX: Final = 5
# Sessions of a run's own cluster: all on one machine, so silence of this length is a dead process.
RUN_SESSION_S: Final = 5.0

NODE = "local"
_AGENT: Final = "agent"
# Nobody else is there to take over sooner: the next coordinator waits for the killed one's session.
_COORDINATION: Final = (
    f"embedded:coordination?linger_s={TIED_LINGER_S:g}&timeout_s={RUN_SESSION_S:g}"
)
# Somebody outside did it.
_KILLED: Final = {-signal.SIGKILL, -signal.SIGTERM, -signal.SIGINT, -signal.SIGHUP}


@dataclass
class _KeptProcess:
    """A process that is to live: how it is started, and how that went."""

    what: str
    start: Callable[[], StartedProcess]
    started: StartedProcess
    since_s: float
    deaths: int = 0  # in a row, each soon after its start
    faults: int = 0  # those among them that were its own doing
    again_s: float | None = None  # when it is started again; None: it lives


class RunProcesses:
    """Starts and keeps what a run needs over a cluster's folder. Close it, and nothing is left."""

    def __init__(self, cluster: Cluster, size: AgentSize, lock: int) -> None:
        self.cluster = cluster
        self.logs = cluster.node_folder(NODE) / "logs"
        # Nothing runs yet: what is in the logs is of former runs.
        self.log_ends = log_files.ends(self.logs)
        self._lock = lock
        self._tie = Tie()
        self._kept: list[_KeptProcess] = []
        self.died: list[str] = []  # what was started again, by its kind
        # Beside the others: they need a moment until they ask for it.
        self._server = start_thread(self._start_server, "server")
        try:
            self._keep("coordinator", lambda: local.start_coordinator(cluster, tie=self._tie))
            self._keep(_AGENT, lambda: local.start_agent(cluster, size, node=NODE, tie=self._tie))
        except BaseException:
            self.close()
            raise

    @classmethod
    def over(cls, folder: Path, size: AgentSize, note: Callable[[str], None]) -> Self:
        """Take the folder, made if it is missing, and start everything. Returns at once.

        `Occupied`: a cluster or another run is at work there.
        """
        cluster = _cluster(folder)
        lock = _take(cluster)
        try:
            _await_former(cluster, note)
            wanted.begins(cluster)
            return cls(cluster, size, lock)
        except BaseException:
            os.close(lock)
            raise

    def restart_dead(self) -> list[str]:
        """Start again what has died; sentences about it.

        Raises the last words of a process that cannot live: it ended early by itself too often.
        Whoever kills it from outside may do so for ever; `holdfast down` ends the run.
        """
        if wanted.ended(self.cluster):
            raise Unavailable(
                "the processes of this run were ended",
                why="by holdfast down",
                fix="run it again: it goes on from its last checkpoint",
            )
        notes, now_s = [], time.monotonic()
        for kept in self._kept:
            child = kept.started.child
            if kept.again_s is not None:
                if now_s >= kept.again_s:
                    kept.started, kept.since_s, kept.again_s = kept.start(), now_s, None
            elif child is not None and child.poll() is not None:
                steady = now_s >= kept.since_s + RUN_STEADY_S
                kept.deaths = 1 if steady else kept.deaths + 1
                kept.faults = (0 if steady else kept.faults) + (child.returncode not in _KILLED)
                if kept.faults >= RUN_RESTARTS_MAX:
                    kept.started.check()
                pause_s = backoff.pause_s(kept.deaths, RUN_RESTART_S, RUN_RESTART_S_MAX)
                kept.again_s = now_s + pause_s
                self.died.append(kept.what)
                notes.append(f"the {kept.what} {_end(child.returncode)}; it is started again")
        return notes

    def close(self) -> None:
        """End everything, workers too, and wait until it has ended. May be called twice."""
        kept, self._kept = self._kept, []
        for one in kept:
            if one.started.child is not None and one.started.child.poll() is None:
                one.started.child.terminate()
        for one in kept:
            one.started.end(RUN_END_S)
        self._server.join(RUN_END_S)
        server = processes.server_of(self.cluster)
        if server is not None and server.send(signal.SIGTERM) and not server.wait(RUN_END_S):
            server.send(signal.SIGKILL)
        if self._lock >= 0:
            self._tie.cut()
            os.close(self._lock)
            self._lock = -1

    def kill(self) -> None:
        """End everything at once: no notice for workers. The tie does the rest."""
        for one in self._kept:
            if one.started.child is not None:
                at_once = signal.SIGQUIT if one.what == _AGENT else signal.SIGINT
                one.started.child.send_signal(at_once)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _keep(self, what: str, start: Callable[[], StartedProcess]) -> None:
        self._kept.append(_KeptProcess(what, start, start(), time.monotonic()))

    def _start_server(self) -> None:
        # What is wrong with it is found by whoever connects, and told there.
        with suppress(HoldfastError):
            local.start_server(self.cluster)


def _cluster(folder: Path) -> Cluster:
    try:
        cluster = opened(folder)
    except Missing:
        with suppress(Occupied):  # another run was a moment faster, and will have its lock
            return local.make(folder, coordination=_COORDINATION, tied=True)
        cluster = opened(folder)
    if cluster.embedded is None:
        raise Usage(
            f"{folder} belongs to a cluster of several machines",
            why=f"its coordination plane is {cluster.coordination}",
            fix="submit the script there (holdfast submit), or give this run a --dir of its own",
        )
    return cluster


def _take(cluster: Cluster) -> int:
    """Be the only run over this folder."""
    make_folder(cluster.run_folder, 0o700)
    handle = os.open(cluster.run_folder / "run.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(handle)
        raise Occupied(
            f"another `holdfast run` is at work over {cluster.folder}",
            why="a folder has one run at a time",
            fix="wait for it, end it with Ctrl-C, or give this one a --dir of its own",
        ) from error
    return handle


def _await_former(cluster: Cluster, note: Callable[[str], None]) -> None:
    """Wait for what a run that was killed has left: it ends by itself. `Occupied`: something else
    runs here."""
    deadline_s = time.monotonic() + 2 * TIED_END_S
    noted = False
    while True:
        living = [one for one in processes.processes(cluster) if one.kind != "server"]
        if not living:
            return
        if any("--tied" not in one.command for one in living) or time.monotonic() > deadline_s:
            names = ", ".join(f"{one.kind} {one.name}" for one in living)
            raise Occupied(
                f"a cluster is up over {cluster.folder}",
                why=f"these run: {names}",
                fix=f"submit the script to it (holdfast submit), end it (holdfast down --cluster"
                f" {cluster.folder}), or give this run a --dir of its own",
            )
        if not noted:
            note("the last run was killed; its processes are ending")
            noted = True
        time.sleep(0.05)


def _end(code: int) -> str:
    if code >= 0:
        return f"ended (exit code {code})"
    with suppress(ValueError):
        return f"was killed ({signal.Signals(-code).name})"
    return f"was ended by signal {-code}"
