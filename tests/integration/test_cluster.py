"""A cluster of real processes: up, a job, down; whoever is killed, `up` mends it."""

from __future__ import annotations

import json
import signal
import socket
from pathlib import Path

from holdfast.agent.holding import Holding
from holdfast.control.decide.facts import Phase
from holdfast.control.store.plane import ControlPlane
from holdfast.coordination import Membership
from holdfast.launch import local
from holdfast.wire.rpc import NODES_PATH
from tests.integration.clusters import PLANE, Home, holdfast
from tests.waiting import eventually


def test_a_job_runs_between_up_and_down_and_nothing_is_left(home: Home) -> None:
    done = home.up()
    assert {one.kind for one in done.processes} == {"server", "coordinator", "agent"}
    assert done.leader.name == "coordinator-1"
    home.submit()
    home.started()
    home.release()
    assert home.ended().status.phase is Phase.SUCCEEDED
    stopped = local.down(home.cluster)
    assert {one.kind for one in stopped.stopped} == {"server", "coordinator", "agent"}
    assert not any(one.killed for one in stopped.stopped)
    assert home.left() == []


def test_up_twice_starts_nothing_twice_and_adds_what_is_missing(home: Home) -> None:
    first = home.up()
    again = home.up()
    assert again.started == ()
    assert [one.pid for one in again.processes] == [one.pid for one in first.processes]
    more = home.up(coordinators=2, agents=2)
    assert set(more.started) == {"coordinator coordinator-2", "agent node-2"}
    with home.cluster.session() as session:
        assert set(Membership(session, NODES_PATH).members()) == {"node-1", "node-2"}


def test_two_agents_of_a_machine_have_ports_of_their_own(home: Home) -> None:
    home.up(agents=2)
    folders = (home.cluster.node_folder(node) for node in ("node-1", "node-2"))
    first, second = ((folder / "ports.json").read_text() for folder in folders)
    assert first != second


def test_down_twice_stops_nothing_the_second_time(home: Home) -> None:
    home.up()
    assert local.down(home.cluster).stopped
    assert local.down(home.cluster).stopped == ()
    assert home.left() == []


def test_down_ends_the_workers_of_a_job_and_the_next_up_goes_on_with_it(home: Home) -> None:
    home.up()
    home.submit()
    home.started()
    assert local.down(home.cluster).workers == 1
    assert home.left() == []
    home.up()
    eventually(lambda: len(home.starts()) == 2, "a second worker starts")
    home.release()
    assert home.ended().status.phase is Phase.SUCCEEDED


def test_an_agent_that_is_killed_finds_its_worker_again_after_up(patient: Home) -> None:
    patient.up()
    patient.submit()
    worker = patient.started()
    patient.kill("agent")
    assert patient.up().started == ("agent node-1",)
    patient.release()
    assert patient.ended().status.phase is Phase.SUCCEEDED
    assert patient.starts() == [worker]


def test_a_leader_that_is_killed_is_replaced_by_up_and_the_job_ends(home: Home) -> None:
    term = home.up().leader.term
    home.submit()
    home.started()
    home.kill("coordinator")
    done = home.up()
    assert done.started == ("coordinator coordinator-1",)
    assert done.leader.term > term
    home.release()
    assert home.ended().status.phase is Phase.SUCCEEDED


def test_a_standby_leads_when_the_leader_is_asked_to_go_and_the_worker_goes_on(
    patient: Home,
) -> None:
    first = patient.up(coordinators=2).leader
    patient.submit()
    worker = patient.started()
    leader = patient.process("coordinator", first.name)
    leader.send(signal.SIGTERM)
    assert leader.wait(60.0)
    patient.release()
    assert patient.ended().status.phase is Phase.SUCCEEDED
    assert patient.starts() == [worker]


def test_a_standby_leads_when_the_leader_is_killed_without_any_help(home: Home) -> None:
    first = home.up(coordinators=2).leader
    home.kill("coordinator", first.name)
    home.submit()
    home.started()
    home.release()
    assert home.ended().status.phase is Phase.SUCCEEDED


def test_a_coordination_server_that_is_killed_comes_back_and_the_worker_goes_on(
    patient: Home,
) -> None:
    patient.up()
    patient.submit()
    worker = patient.started()
    patient.kill("server")
    patient.up()
    patient.release()
    assert patient.ended().status.phase is Phase.SUCCEEDED
    assert patient.starts() == [worker]


def test_everything_that_is_killed_at_once_comes_back_with_up_and_the_job_ends(home: Home) -> None:
    home.up(coordinators=2)
    home.submit()
    home.started()
    for process in local.processes(home.cluster):
        home.kill(process.kind, process.name)
    home.up(coordinators=2)
    home.release()
    assert home.ended().status.phase is Phase.SUCCEEDED


def test_down_also_ends_workers_whose_agent_was_killed(home: Home) -> None:
    home.up()
    home.submit()
    home.started()
    home.kill("agent")
    assert local.down(home.cluster).workers == 1
    assert home.left() == []


def test_what_a_killed_agent_held_of_the_machine_is_not_free_while_its_worker_lives(
    home: Home, tmp_path: Path
) -> None:
    home.up()
    home.submit()
    home.started()
    name = f"ports-{(home.cluster.node_folder('node-1') / 'ports.json').read_text()}"
    home.kill("agent")
    assert not Holding(tmp_path / "other").take(name)
    local.down(home.cluster)
    assert Holding(tmp_path / "other").take(name)


def test_a_server_with_a_port_of_its_own_comes_back_there(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    made = Home(tmp_path / "cluster", f"{PLANE}&listen=127.0.0.1:{port}")
    try:
        made.up()
        assert made.process("server").facts["address"] == f"127.0.0.1:{port}"
        made.kill("server")
        made.up()
        assert made.process("server").facts["address"] == f"127.0.0.1:{port}"
    finally:
        made.end()


def test_down_ends_an_agent_that_is_paused(home: Home) -> None:
    home.up()
    home.process("agent").send(signal.SIGSTOP)
    local.down(home.cluster)
    assert home.left() == []


def test_sigterm_to_an_agent_leaves_its_worker_alone_and_the_next_one_adopts_it(
    patient: Home,
) -> None:
    patient.up()
    patient.submit()
    worker = patient.started()
    agent = patient.process("agent")
    agent.send(signal.SIGTERM)
    assert agent.wait(30.0)
    assert Path(f"/proc/{worker}").exists()
    patient.up()
    patient.release()
    assert patient.ended().status.phase is Phase.SUCCEEDED
    assert patient.starts() == [worker]


def test_a_process_that_ends_early_is_an_error_with_its_last_words(home: Home) -> None:
    home.cluster.node_credentials_folder("node-1").mkdir(parents=True)
    (home.cluster.node_credentials_folder("node-1") / "credentials.json").write_text("{")
    done = holdfast("up", "--cluster", str(home.cluster.folder))
    assert done.returncode == 1
    assert "the agent node-1 ended early" in done.stderr
    assert "credentials.json is damaged" in done.stderr


def test_the_commands_say_what_was_started_and_what_was_stopped(tmp_path: Path) -> None:
    folder = str(tmp_path / "made")
    try:
        shown = holdfast("up", "--cluster", folder, "--cpu", "16")
        assert shown.returncode == 0, shown.stderr
        assert "coordinator-1" in shown.stdout
        assert "16 cpu" in shown.stdout
        assert "holdfast down" in shown.stdout
        listed = json.loads(holdfast("status", "--cluster", folder, "--json").stdout)
        kinds = [one["kind"] for one in listed["processes"]]
        assert kinds == ["server", "coordinator", "agent", "supervisor"]
        other = holdfast("up", "--cluster", folder, "--store", "s3://elsewhere/x")
        assert other.returncode == 2
        assert "does not change" in other.stderr
    finally:
        ended = holdfast("down", "--cluster", folder)
    assert ended.returncode == 0, ended.stderr
    assert "stopped" in ended.stdout
    assert "nothing of" in holdfast("down", "--cluster", folder).stdout


def test_a_folder_without_a_cluster_is_told_with_the_command_that_makes_one(tmp_path: Path) -> None:
    shown = holdfast("status", cwd=tmp_path, env={"HOME": str(tmp_path)})
    assert shown.returncode == 1
    assert "holdfast up" in shown.stderr


def test_the_job_of_a_user_is_seen_by_whoever_opens_the_folder(home: Home) -> None:
    home.up()
    home.submit("seen")
    with home.cluster.session() as session:
        assert set(ControlPlane(session).jobs()) == {"seen"}
    home.release("seen")
    home.ended("seen")
