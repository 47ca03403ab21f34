"""Children that are tied to their parent end with it, however it ends."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.cluster import opened
from holdfast.control.decide.spec import JobSpec
from holdfast.control.store.plane import ControlPlane
from holdfast.launch import local
from holdfast.launch.ending import down
from tests.integration.clusters import running
from tests.waiting import eventually

PARENT = """
import sys, time
from pathlib import Path
from holdfast.launch import local

cluster = local.make(Path(sys.argv[1]), tied=True)
tie = local.Tie()
local.start_server(cluster)
started = [
    local.start_coordinator(cluster, tie=tie),
    local.start_agent(cluster, local.AgentSize(cpu=4.0, memory_bytes=2**33), tie=tie),
]
with cluster.session() as session:
    local.await_ready(cluster, session, started)
print("ready", flush=True)
time.sleep(600)
"""


@pytest.fixture
def parent(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process with a tied cluster in `tmp_path/tied`, which is ready."""
    folder = tmp_path / "tied"
    words = [sys.executable, "-c", PARENT, str(folder)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        try:
            yield process
        finally:
            process.kill()
            down(opened(folder), force=True)


def submit(folder: Path) -> None:
    """A job whose worker never ends, and has a child of its own."""
    mark = folder.with_name("started")
    script = f"sleep 600 & echo x >> {mark}; wait"
    with opened(folder).session() as session:
        ControlPlane(session).submit(JobSpec("endless", ("sh", "-c", script)))
    eventually(mark.exists, "its worker starts")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_nothing_is_left_of_a_cluster_whose_parent_was_ended(
    parent: subprocess.Popen[str], tmp_path: Path, number: signal.Signals
) -> None:
    folder = tmp_path / "tied"
    submit(folder)
    assert running(folder)
    parent.send_signal(number)
    parent.wait()
    eventually(lambda: not running(folder), "nothing of it runs")


def test_workers_end_also_when_the_tied_agent_was_killed_with_its_parent(
    parent: subprocess.Popen[str], tmp_path: Path
) -> None:
    folder = tmp_path / "tied"
    submit(folder)
    agents = [one for one in local.processes(opened(folder)) if one.kind == "agent"]
    for process in agents:
        process.send(signal.SIGKILL)
    parent.kill()
    parent.wait()
    eventually(lambda: not running(folder), "nothing of it runs")
