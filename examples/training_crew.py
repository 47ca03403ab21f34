"""The processes of the training demo: a whole cluster on this machine, and who in it is killed.

Everything is started with what `holdfast up` and `holdfast run` use. All of it is tied to the demo:
should that be killed itself, nothing stays behind.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from holdfast.agent import keeper, processes
from holdfast.agent.folders import Folders
from holdfast.cli.run.progress import RunProgress, StepRate, progress_of, step_of
from holdfast.cli.run.runner import JobObserver
from holdfast.client.credentials import credentials_of
from holdfast.cluster import Cluster, opened
from holdfast.control.decide.spec import CheckpointPolicy, JobSpec
from holdfast.control.rpc.observer import LeaderObserver
from holdfast.control.store.plane import ControlPlane
from holdfast.coordination import Election, Leader, Session
from holdfast.launch import local
from holdfast.launch.local import AgentSize, Tie
from holdfast.storage import bundles
from holdfast.wire.errors import HoldfastError, Missing
from holdfast.wire.names import LEADER_PATH

JOB: Final = "digits"
LANES: Final = 8
WORKERS: Final = 4
EVERY_STEPS: Final = 20
# The cluster trains so slowly that there is time to kill somebody; in the second half, should
# more be left to do then, much more slowly; and as fast as it can when all are killed that are.
STROLL_S: Final = 0.06
CRAWL_S: Final = 1.0
RUN_S: Final = 0.0
NODE: Final = "node-1"
COORDINATORS: Final = ("coordinator-1", "coordinator-2")
EXAMPLES: Final = Path(__file__).resolve().parent
# Short, so that the demo is: a leader that is silent for so long is replaced.
COORDINATION: Final = "embedded:coordination?timeout_s=3&linger_s=5"


@dataclass(frozen=True, slots=True)
class Victim:
    """Somebody who was killed."""

    name: str
    pid: int


class Crew:
    """The cluster over a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.cluster: Cluster = local.make(folder, coordination=COORDINATION, tied=True)
        self._tie = Tie()

    def start(self) -> None:
        """Start whatever does not run."""
        local.start_server(self.cluster)
        for name in COORDINATORS:
            local.start_coordinator(self.cluster, name, tie=self._tie)
        local.start_agent(self.cluster, AgentSize(cpu=float(WORKERS)), node=NODE, tie=self._tie)

    def submit(self, session: Session, epochs: int) -> None:
        code = bundles.push(self.cluster.blobs(), EXAMPLES)
        spec = JobSpec(
            JOB,
            (sys.executable, "digits.py"),
            bundle=code.digest,
            lanes=LANES,
            workers_max=WORKERS,
            checkpoint=CheckpointPolicy(every_steps=EVERY_STEPS, every_s=None),
            settings={"epochs": str(epochs), "pause_s": str(STROLL_S)},
        )
        ControlPlane(session).submit(spec)

    def pace(self, session: Session, pause_s: float) -> None:
        """From now on it rests so long after each step."""
        ControlPlane(session).change_setting(JOB, "pause_s", str(pause_s))

    def end(self) -> None:
        """Nothing is left running."""
        local.down(self.cluster, force=True)
        self._tie.cut()

    # --- who is there ----------------------------------------------------------------------------

    def names(self) -> list[str]:
        """Those that run, but for workers."""
        return [one.name for one in local.processes(self.cluster)]

    def workers(self) -> dict[int, int]:
        """The workers' processes, by number: what their shims look after."""
        found = {}
        folders = Folders(self.cluster.node_folder(NODE))
        for key in folders.present() if folders.workers.is_dir() else ():
            shim = folders.claim(key)
            for pid in _children(shim.pid) if shim is not None else ():
                if _leads_its_session(pid):
                    found[key.worker] = pid
        return found

    def words(self) -> Iterator[str]:
        """What all workers have printed."""
        for log in sorted((self.cluster.node_folder(NODE) / "logs").glob(f"{JOB}.*/out.log")):
            yield from log.read_text(errors="replace").splitlines()

    # --- killing ---------------------------------------------------------------------------------

    def kill_a_worker(self) -> Victim:
        number, pid = sorted(self.workers().items())[1]
        os.kill(pid, signal.SIGKILL)
        return Victim(f"worker {number}", pid)

    def kill(self, name: str) -> Victim:
        found = next(one for one in local.processes(self.cluster) if one.name == name)
        found.send(signal.SIGKILL)
        found.wait(10.0)
        return Victim(found.name, found.pid)

    def kill_everything(self) -> list[Victim]:
        """kill -9 of each process there is: as if the machine had lost its power."""
        handles, struck = [], []
        home = self.cluster.node_folder(NODE)
        for one in local.processes(self.cluster):
            one.send(signal.SIGKILL)
            struck.append(Victim(one.name, one.pid))
        zygote = keeper.zygote_of(home)
        handles += [] if zygote is None else [zygote]
        workers = self.workers()
        folders = Folders(home)
        for key in folders.present():
            shim = folders.claim(key)
            handle = None if shim is None else processes.hold(shim)
            handles += [] if handle is None else [handle]
        for handle in handles:
            processes.send(handle, signal.SIGKILL)
            select.select([handle], [], [], 10.0)
            os.close(handle)
        # A worker dies with its shim, which was its parent.
        struck += [Victim(f"worker {number}", pid) for number, pid in sorted(workers.items())]
        for victim in struck:
            _await_end(victim.pid)
        return struck


class Eyes:
    """What can be seen of the job, by the coordination plane and by the leader's word."""

    def __init__(self, session: Session, looking: JobObserver, watching: LeaderObserver) -> None:
        self.session = session
        self._looking = looking
        self._watching = watching
        self._election = Election(session, LEADER_PATH)

    def picture(self, pace: StepRate) -> RunProgress:
        job = self._looking.seen().job
        latest = self._watching.latest
        observation = latest.observation if latest is not None else None
        now_s = time.monotonic()
        if observation is not None and observation.nodes:
            pace.saw(now_s, step_of(job, observation))
        return progress_of(job, observation, pace, wall_s=time.time(), now_s=now_s)

    def leader(self) -> Leader | None:
        """Who leads; None: nobody, or the plane does not answer just now."""
        try:
            return self._election.current_leader()
        except HoldfastError:
            return None


def end_former(folder: Path) -> None:
    """End what a demo that was killed may have left over this folder."""
    try:
        former = opened(folder)
    except Missing:
        return
    local.down(former, force=True)


@contextmanager
def opened_eyes(cluster: Cluster, session: Session) -> Iterator[Eyes]:
    """Look at the job until the end of the block."""
    with ExitStack() as stack:
        plane = ControlPlane(session)
        looking = stack.enter_context(JobObserver(plane, plane.job(JOB), [], lambda: None))
        credentials = partial(credentials_of, cluster)
        watching = stack.enter_context(LeaderObserver(session, credentials, JOB, lambda: None))
        yield Eyes(session, looking, watching)


def _children(pid: int) -> list[int]:
    try:
        return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def _leads_its_session(pid: int) -> bool:
    try:
        return os.getsid(pid) == pid
    except ProcessLookupError:
        return False


def _await_end(pid: int) -> None:
    deadline_s = time.monotonic() + 10.0
    while processes.identify(pid) is not None and time.monotonic() < deadline_s:
        time.sleep(0.01)
