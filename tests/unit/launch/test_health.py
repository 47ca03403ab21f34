"""What should run and does not is told from the folder alone: since when, why, and what helps."""

from __future__ import annotations

import os
import signal
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from holdfast.cli import absence as telling
from holdfast.cli import output
from holdfast.client import absence
from holdfast.client.opening import Opened
from holdfast.cluster import Cluster, Process, create
from holdfast.cluster.registry import identified, write_record
from holdfast.control.store.plane import ControlPlane
from holdfast.coordination import connect
from holdfast.launch import health
from holdfast.supervise import supervisor, wanted
from holdfast.wire.errors import Unavailable
from tests.servers import EmbeddedServer
from tests.waiting import eventually

COMMAND = ("python", "-m", "holdfast.control")
DEAD = Process("coordinator", "coordinator-1", 1, 1, "of another boot", launched=True)
AT_S = 1_700_000_000.0


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    # An ensemble: no server of its own is missing.
    return create(tmp_path / "cluster", coordination="zk://127.0.0.1:1")


def me(kind: str, name: str, **facts: Any) -> Process:
    """A record of a living process: this one."""
    found = identified(kind, name, os.getpid(), facts=facts)
    assert found is not None
    return found


def keeper(cluster: Cluster, **told: Any) -> None:
    """A supervisor that lives, and what it says of the coordinator."""
    said = {"since_s": AT_S, "again_s": 0.0, "why": "was killed (SIGKILL)", **told}
    facts = {"kept": {"coordinator coordinator-1": said}}
    write_record(cluster, me(supervisor.KIND, supervisor.NAME, **facts))


def test_one_that_waits_for_its_next_start_is_told_with_its_death_and_when_it_comes(
    cluster: Cluster,
) -> None:
    wanted.want(cluster.folder, [(DEAD, COMMAND)])
    keeper(cluster, state="waiting", again_s=AT_S + 8)
    (one,) = health.missing(cluster)
    assert (one.kind, one.state, one.since_s, one.hopeless) == (
        *("coordinator", "waiting", AT_S),
        False,
    )
    assert one.sentence(AT_S + 4, " since 00:12:31 (4s)") == (
        "no coordinator since 00:12:31 (4s): replicas and workers that die are not replaced, and "
        "no job starts; it is started again in 4 s"
    )


def test_what_a_supervisor_that_is_stopped_last_said_is_not_believed(cluster: Cluster) -> None:
    wanted.want(cluster.folder, [(DEAD, COMMAND)])
    with subprocess.Popen(["sleep", "60"]) as frozen:
        try:
            told = {"coordinator coordinator-1": {"state": "running", "since_s": AT_S}}
            record = identified(supervisor.KIND, supervisor.NAME, frozen.pid, facts={"kept": told})
            assert record is not None
            write_record(cluster, record)
            assert [one.state for one in health.missing(cluster)] == ["starting"]
            frozen.send_signal(signal.SIGSTOP)
            eventually(lambda: record.stopped, "it is stopped")
            (one,) = health.missing(cluster)
            assert (one.state, one.hopeless) == ("dead", True)
            assert one.remedy(AT_S) == "`holdfast up` starts it"
        finally:
            frozen.kill()


def test_one_that_was_given_up_is_told_with_its_last_words_and_the_command_that_tries_again(
    cluster: Cluster,
) -> None:
    wanted.want(cluster.folder, [(DEAD, COMMAND)])
    keeper(cluster, state="gave up", why="ended (exit code 11): the port is taken")
    (one,) = health.missing(cluster)
    assert one.hopeless
    told = one.sentence(AT_S, "")
    assert "given up (ended (exit code 11): the port is taken); `holdfast up` tries again" in told


def test_without_a_supervisor_what_was_killed_is_dead_and_so_is_the_supervisor(
    cluster: Cluster,
) -> None:
    write_record(cluster, DEAD)
    (one,) = health.missing(cluster)
    assert (one.state, one.hopeless) == (health.DEAD, True)
    assert one.since_s > 0.0
    wanted.want(cluster.folder, [(DEAD, COMMAND)])
    kinds = [(one.kind, one.state) for one in health.missing(cluster)]
    assert kinds == [("coordinator", "dead"), ("supervisor", "dead")]


def test_nothing_is_missing_after_down_nor_while_all_live(cluster: Cluster) -> None:
    mine = me("coordinator", "coordinator-1")
    wanted.want(cluster.folder, [(mine, COMMAND)])
    keeper(cluster, state="running")
    assert health.missing(cluster) == [], "it has no record yet, but lives"
    write_record(cluster, replace(DEAD, name="coordinator-2"))
    assert health.missing(cluster) == [], "nobody wants that one"
    wanted.end(cluster.folder)
    write_record(cluster, DEAD)
    assert health.missing(cluster) == []


class World:
    """Who is absent, for a command that waits, and a clock of its own."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 1_000.0
        self.absence: absence.Absence | None = None
        monkeypatch.setattr(absence, "absent", lambda _found, _kind: self.absence)
        self.said: list[str] = []
        monkeypatch.setattr(output, "err", lambda: self)

    def print(self, text: object) -> None:
        self.said.append(str(text))

    def waiting(self) -> absence.WaitReporter:
        found: Any = None  # nothing is asked of it
        lines = telling.ProgressLines(clock=lambda: self.now_s)
        return absence.WaitReporter(
            found, absence.ROLLOUT_CONTROLLER, progress=lines, clock=lambda: self.now_s
        )


def test_a_command_waits_without_a_word_or_goes_on_waiting_for_who_does_not_come(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(monkeypatch)
    said = world.said
    waiting = world.waiting()
    assert waiting.report("2 of 3 replicas are ready") == "2 of 3 replicas are ready"
    assert said == [], "most is done within a moment"
    world.now_s += 2.0
    waiting.report("2 of 3 replicas are ready")
    assert said == ["waiting: 2 of 3 replicas are ready"]
    world.absence = absence.Absence(
        absence.ROLLOUT_CONTROLLER, "no rollout controller: it is being started"
    )
    world.now_s += 5.0
    assert waiting.report("…") == "no rollout controller: it is being started"
    assert said[-1] == "waiting: no rollout controller: it is being started"
    world.now_s += 29.0
    waiting.report("…")
    world.absence = None  # he came
    world.now_s += 2.0
    assert waiting.report("…") == "…"
    world.absence = absence.Absence(absence.ROLLOUT_CONTROLLER, "no rollout controller")
    world.now_s += 2.0
    waiting.report("…")
    world.now_s += 31.0
    with pytest.raises(Unavailable, match="no rollout controller"):
        waiting.report("…")


def test_a_command_does_not_wait_at_all_for_who_was_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(monkeypatch)
    waiting = world.waiting()
    world.absence = absence.Absence(absence.ROLLOUT_CONTROLLER, "given up", hopeless=True)
    world.now_s += 2.0
    with pytest.raises(Unavailable, match="given up") as stopped:
        waiting.report("…")
    assert "holdfast up" in stopped.value.fix


def test_a_coordinator_that_a_signal_has_paused_is_not_said_to_take_over_soon(
    cluster: Cluster, tmp_path: Path
) -> None:
    with EmbeddedServer(tmp_path / "plane") as server, subprocess.Popen(["sleep", "60"]) as paused:
        try:
            record = identified("coordinator", "coordinator-1", paused.pid, facts={"term": 1})
            assert record is not None
            write_record(cluster, record)
            with connect(f"zk://{server.hosts}") as session:
                found = Opened(cluster, session, ControlPlane(session))
                one = absence.absent(found, absence.COORDINATOR)
                assert one is not None and "takes over soon" in one.text
                paused.send_signal(signal.SIGSTOP)
                eventually(lambda: record.stopped, "it is paused")
                one = absence.absent(found, absence.COORDINATOR)
                assert one is not None and "takes over soon" not in one.text
                assert "paused by a signal" in one.text
                assert one.fix == f"kill -CONT {paused.pid}"
        finally:
            paused.kill()
