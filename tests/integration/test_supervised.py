"""A cluster of real processes that are killed, and nobody helps."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from holdfast.cli.cluster.commands import systemd_unit
from holdfast.cluster import processes
from holdfast.control.decide.facts import Phase
from holdfast.launch import local
from holdfast.supervise import supervisor, wanted
from holdfast.wire.errors import Unavailable
from tests.integration.clusters import Home, holdfast
from tests.waiting import eventually

WAIT_S = 240.0


def kinds(home: Home) -> list[str]:
    return sorted(one.kind for one in local.processes(home.cluster))


def test_all_but_an_agent_killed_at_once_come_back_with_nobody_to_help_and_the_job_ends(
    home: Home,
) -> None:
    home.up(supervised=True, agents=2)
    home.submit()
    worker = home.started()
    before = {one.name: one.pid for one in local.processes(home.cluster)}
    assert kinds(home) == ["agent", "agent", "coordinator", "server", "supervisor"]
    spared = "node-2"
    for process in local.processes(home.cluster):
        if process.name != spared:
            process.send(signal.SIGKILL)

    def back() -> bool:
        now = {one.name: one.pid for one in local.processes(home.cluster)}
        return now.keys() == before.keys() and all(
            (now[name] == pid) == (name == spared) for name, pid in before.items()
        )

    eventually(back, "all of them run again", WAIT_S)
    home.release()
    assert home.ended().status.phase is Phase.SUCCEEDED
    assert home.starts() == [worker], "the worker of the agent that was killed went on"
    told = json.loads(holdfast("status", "--json", "--cluster", str(home.cluster.folder)).stdout)
    assert told["missing"] == []
    local.down(home.cluster)
    assert home.left() == []
    assert wanted.read(home.cluster.folder) == {}


def test_nothing_is_left_by_down_although_supervisors_are_killed_and_come_back_meanwhile(
    home: Home,
) -> None:
    home.up(supervised=True)
    stop, killed = threading.Event(), set[int]()

    def kill() -> None:
        while not stop.wait(0.05):
            for one in processes(home.cluster):
                if one.kind in (supervisor.KIND, "coordinator") and one.send(signal.SIGKILL):
                    killed.add(one.pid)

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        eventually(lambda: len(killed) >= 4, "some were killed, and came back", WAIT_S)
        local.down(home.cluster)
        assert home.left() == []
    finally:
        stop.set()
        killer.join()


def test_who_is_missing_is_told_with_what_that_means_and_nobody_waits_for_him_for_ever(
    home: Home,
) -> None:
    home.up()  # nobody keeps it: what is killed stays dead
    home.submit()
    home.started()
    folder = str(home.cluster.folder)
    home.kill("coordinator")
    seen = holdfast("status", "--cluster", folder).stdout
    assert "dead" in seen and "no coordinator since" in seen, seen
    assert "that die are not replaced" in seen and "`holdfast up` starts it" in seen
    why = holdfast("why", "waiting", "--cluster", folder)
    assert "no coordinator since" in why.stderr, why
    waits = holdfast("stop", "waiting", "--wait", "--cluster", folder)
    assert waits.returncode == Unavailable.exit_code, waits
    assert "no coordinator since" in waits.stderr and "holdfast up" in waits.stderr
    home.up()
    assert "no coordinator" not in holdfast("status", "--cluster", folder).stdout


@pytest.mark.engines
def test_up_in_the_foreground_ends_when_the_cluster_is_ended_and_says_so_to_a_service_manager(
    home: Home,
) -> None:
    words = ["up", "--foreground", "--cluster", str(home.cluster.folder)]
    command = [sys.executable, "-u", "-m", "holdfast", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as main:
        assert main.stdout is not None
        assert main.stdout.readline(), "it says that it is up"
        eventually(lambda: "supervisor" in kinds(home), "there is one", WAIT_S)
        home.process("supervisor").send(signal.SIGKILL)
        eventually(lambda: "supervisor" in kinds(home), "there is one again", WAIT_S)
        assert holdfast("down", *words[2:]).returncode == 0
        assert main.wait(WAIT_S) == supervisor.ENDED
    assert home.left() == []


def test_a_unit_names_the_program_in_use_and_the_folder(tmp_path: Path) -> None:
    folder = tmp_path / "my cluster 100%"
    text = systemd_unit(folder, ["up", "--agents", "2", "--cluster", "x", "--systemd"])
    command = next(line for line in text.splitlines() if line.startswith("ExecStart="))
    assert command.endswith(f' up --agents 2 --cluster "{folder}%" --foreground')
    assert Path(command.removeprefix("ExecStart=").split()[0]).is_absolute()
    path = tmp_path / "holdfast.service"
    path.write_text(text)
    checked = _systemd_says(path)
    assert checked in (None, ""), checked


def _systemd_says(path: Path) -> str | None:
    """What systemd finds wrong with a unit; None: there is no systemd here."""
    try:
        done = subprocess.run(
            ["systemd-analyze", "verify", str(path)], capture_output=True, text=True, check=False
        )
    except FileNotFoundError:
        return None
    lines = done.stderr.splitlines()
    return "\n".join(line for line in lines if path.name in line)
