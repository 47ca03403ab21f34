"""A cluster of real processes over a folder, for tests: started, disturbed, and surely ended."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from holdfast.cli.main import app
from holdfast.cluster import Cluster, Process
from holdfast.control.decide.facts import JobRecord
from holdfast.control.decide.spec import JobSpec, Resources
from holdfast.control.store.plane import ControlPlane
from holdfast.launch import local
from holdfast.launch.ending import down
from tests.servers import commands
from tests.waiting import eventually

# Sessions end soon, so that a test need not wait long for a death to be noticed.
PLANE = "embedded:coordination?timeout_s=6&tick_ms=500"
# Sessions that outlive whatever is started again, also on a machine with much else to do.
PATIENT = "embedded:coordination?timeout_s=60&tick_ms=3000"
AGENT_SIZE = local.AgentSize(cpu=8.0, memory_bytes=2**34)


class Home:
    """A cluster's folder, and what a test does to it."""

    def __init__(self, folder: Path, coordination: str = PLANE, **more: Any) -> None:
        self.marks = folder.with_name(f"{folder.name}-marks")
        self.marks.mkdir()
        self.cluster: Cluster = local.make(folder, coordination=coordination, **more)

    def up(self, *, supervised: bool = False, **more: Any) -> local.Up:
        """Unless `supervised`: what a test kills stays dead until it is mended by `up`."""
        return local.up(self.cluster, size=AGENT_SIZE, supervised=supervised, **more)

    def process(self, kind: str, name: str = "") -> Process:
        found = [one for one in local.processes(self.cluster) if one.kind == kind]
        return next(one for one in found if not name or one.name == name)

    def kill(self, kind: str, name: str = "") -> None:
        process = self.process(kind, name)
        assert process.send(signal.SIGKILL)
        assert process.wait(30.0)

    @contextmanager
    def control(self) -> Iterator[ControlPlane]:
        with self.cluster.session() as session:
            yield ControlPlane(session)

    # --- a job that waits until it may end ------------------------------------------------------

    def submit(self, name: str = "waiting") -> None:
        """A job that notes each start of a worker, and ends when `release` was called."""
        mark, go = self.marks / f"{name}.starts", self.marks / f"{name}.go"
        script = f"echo $$ >> {mark}; while [ ! -e {go} ]; do sleep 0.05; done"
        with self.control() as control:
            control.submit(JobSpec(name, ("sh", "-c", script), resources=Resources(cpu=1.0)))

    def starts(self, name: str = "waiting") -> list[int]:
        """The processes that its workers were."""
        mark = self.marks / f"{name}.starts"
        return [int(line) for line in mark.read_text().split()] if mark.exists() else []

    def started(self, name: str = "waiting") -> int:
        """Wait for its first worker; its process."""
        return eventually(lambda: self.starts(name), f"a worker of {name} starts")[0]

    def release(self, name: str = "waiting") -> None:
        (self.marks / f"{name}.go").touch()

    def ended(self, name: str = "waiting") -> JobRecord:
        """The job, when it has ended."""
        with self.control() as control:

            def job() -> JobRecord | None:
                found = control.job(name)
                return found if found.status.phase.final else None

            return eventually(job, f"{name} ends")

    def command(self, *words: str, given: str | None = None) -> str:
        """What `holdfast` prints, carried out in this process; it must end well."""
        asked = [*words, "--cluster", str(self.cluster.folder)]
        done = CliRunner().invoke(app, asked, input=given)
        assert done.exit_code == 0, done.output
        return done.output

    # --- the end --------------------------------------------------------------------------------

    def left(self) -> list[str]:
        """Commands of processes that have to do with this folder."""
        return list(running(self.cluster.folder).values())

    def end(self) -> None:
        """Whatever a test has done, nothing of it is left."""
        for process in local.processes(self.cluster):
            process.send(signal.SIGCONT)
        down(self.cluster, force=True)
        for pid in running(self.cluster.folder):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue


def running(folder: Path) -> dict[int, str]:
    """Living processes whose command or environment names the folder, but for this one."""
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            command = (entry / "cmdline").read_bytes()
            text = command + b"\0" + (entry / "environ").read_bytes()
            state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if str(folder).encode() in text and state != "Z":
            found[int(entry.name)] = command.replace(b"\0", b" ").decode(errors="replace")
    return found


def holdfast(
    *words: str,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    given: str = "",
) -> commands.Result:
    """The command, as a person gives it; with no cluster but the one that it names."""
    known = {key: text for key, text in os.environ.items() if key != "HOLDFAST_CLUSTER"}
    return commands.run(*words, timeout=180, cwd=cwd, given=given, env={**known, **(env or {})})
