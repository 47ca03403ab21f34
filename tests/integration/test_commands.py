"""The commands about jobs, as a person gives them, over a cluster of real processes."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from safetensors.numpy import load_file

from holdfast.control.decide.facts import Phase
from holdfast.control.store.plane import ControlPlane
from holdfast.storage.manifests import read_manifest
from tests.integration.clusters import Home
from tests.integration.person import WAIT_S, Person
from tests.unit.cli.running import ROOT


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Home]:
    made = Home(tmp_path_factory.mktemp("commands") / "cluster")
    try:
        made.up()
        yield made
    finally:
        made.end()


@pytest.fixture(scope="module")
def control(home: Home) -> Iterator[ControlPlane]:
    """For looking again and again: a command would cost a process each time."""
    with home.control() as found:
        yield found


@pytest.fixture
def person(home: Home, control: ControlPlane, tmp_path: Path) -> Person:
    return Person(home, control, tmp_path)


def test_a_job_is_submitted_watched_and_ends_well(person: Person) -> None:
    said = person.does("submit", person.file("well"))
    assert "well is submitted to queue default" in said
    assert "code: 2 files" in said
    person.until_logged("well", "line 4")
    (row,) = [job for job in person.sees("jobs")["jobs"] if job["name"] == "well"]
    assert (row["workers_have"], row["workers_want"]) == (1, 1)
    assert "well" in person.does("jobs")
    assert "python waiting.py" in person.does("jobs", "well")
    person.go("well").touch()
    person.until_ended("well")
    assert "starts with 1 worker" in person.does("why", "well")
    story = person.sees("why", "well")
    assert story["now"]["phase"] == "succeeded"
    assert [entry["at_s"] for entry in story["history"]] == sorted(
        entry["at_s"] for entry in story["history"]
    )
    assert person.does("logs", "well", "-n", "1", "--stdout") == "released\n"
    assert person.does("logs", "well", "--stderr") == "to stderr\n"


def test_submit_that_waits_ends_as_the_job_does(person: Person) -> None:
    person.go("good").touch()
    good = person.says("submit", person.file("good"), "--wait")
    assert good.returncode == 0, good.stderr
    assert "succeeded" in good.stderr
    more = {"command": "python failing.py", "restart": "{failures_max: 1}"}
    bad = person.says("submit", person.file("bad", **more), "--wait")
    assert bad.returncode == 1
    assert "ValueError: the loss is not a number" in bad.stderr
    assert "Traceback" not in person.does("jobs")
    assert "ValueError: the loss is not a number" in person.does("jobs")
    told = person.does("why", "bad")
    assert 'raise ValueError("the loss is not a number")' in told


def test_names_that_are_near_are_offered_and_nothing_happens(person: Person) -> None:
    person.does("submit", person.file("nearby"))
    for words in (
        ("why", "neraby"),
        ("logs", "nearbi"),
        ("scale", "neaby", "1"),
        ("stop", "nearb"),
        ("set", "nerby", "lr=1"),
        ("checkpoints", "nearbyy"),
        ("remove", "neerby"),
    ):
        done = person.says(*words)
        assert done.returncode == 1
        assert "did you mean nearby?" in done.stderr, (words, done.stderr)
    drain = person.says("drain", "node1")
    assert "did you mean node-1?" in drain.stderr
    assert person.phase("nearby") not in ("stopped", "paused")
    person.does("stop", "nearby", "--now", "--wait")


def test_a_job_is_paused_resumed_stopped_removed_and_its_name_is_used_again(
    person: Person,
) -> None:
    file = person.file("again")
    person.does("submit", file)
    person.until_logged("again", "line 4")
    person.does("pause", "again", "--wait")
    assert person.phase("again") == "paused"
    assert "holdfast resume again" in person.says("why", "again").stderr
    person.does("resume", "again")
    person.until(lambda: person.workers("again"), "it goes on")
    refused = person.says("remove", "again")
    assert refused.returncode == 1
    assert "holdfast stop again" in refused.stderr
    taken = person.says("submit", file)
    assert taken.returncode == 1
    assert "there is a job again already" in taken.stderr
    person.does("stop", "again", "--now", "--wait")
    before = person.sees("jobs", "again")
    person.does("remove", "again")
    assert person.says("why", "again").returncode == 1
    # The same name in the same term: agents remember the numbers of the former workers.
    person.does("submit", file)
    person.until(lambda: person.workers("again"), "the new one has a worker")
    assert person.sees("jobs", "again")["submitted_s"] > before["submitted_s"]
    person.go("again").touch()
    person.until_ended("again")


def test_workers_scale_within_what_the_file_allows(person: Person) -> None:
    person.does("submit", person.file("wide", workers="{min: 1, max: 3}"))
    person.until(lambda: person.workers("wide") == 3, "it has three workers")
    too_many = person.says("scale", "wide", "9")
    assert too_many.returncode == 2
    assert "holdfast scale wide 3" in too_many.stderr
    assert person.says("scale", "wide", "many").returncode == 2
    person.does("scale", "wide", "1")
    person.until(lambda: person.workers("wide") == 1, "it has one worker")
    person.does("scale", "wide", "max")
    person.until(lambda: person.workers("wide") == 3, "it has three workers again")
    person.until_logged("wide", "line 4", times=3)
    lines = person.does("logs", "wide", "-n", "1", "--stdout").splitlines()
    assert len({line.split()[0] for line in lines}) >= 3
    person.does("stop", "wide", "--now", "--wait")


def test_a_machine_is_drained_and_comes_back(person: Person) -> None:
    person.does("submit", person.file("moved"))
    person.until_logged("moved", "line 4")
    (node,) = person.sees("nodes")["nodes"]
    assert node["state"] == "ready"
    assert "moved" in node["jobs"]
    person.does("drain", "node-1", "--wait")
    (drained,) = person.sees("nodes")["nodes"]
    assert (drained["state"], drained["workers"]) == ("draining", 0)
    assert "draining" in person.does("nodes")
    assert "node-1" in person.does("why", "moved")
    person.does("undrain", "node-1")
    person.until(lambda: person.workers("moved") == 1, "it runs again")
    person.does("stop", "moved", "--now", "--wait")


def test_queues_are_made_listed_and_removed(person: Person) -> None:
    person.does("queue", "set", "production", "--cpu", "4", "--memory", "8GiB", "--limit-gpu", "0")
    rows = {row["name"]: row for row in person.sees("queues")["queues"]}
    assert rows["production"]["guaranteed"] == {
        "cpu": 4.0,
        "memory_bytes": 2**33,
        "gpu": 0,
        "disk_bytes": 0,
    }
    assert rows["production"]["limit"] == {
        "cpu": None,
        "memory_bytes": None,
        "gpu": 0,
        "disk_bytes": None,
    }
    assert "0 gpu" in person.does("queues")
    wrong = person.says("queue", "set", "production", "--cpu", "4", "--limit-cpu", "2")
    assert wrong.returncode == 2
    assert person.says("queue", "set", "q", "--memory", "8").returncode == 2
    near = person.says("queue", "remove", "producton")
    assert "did you mean production?" in near.stderr
    person.does("queue", "remove", "production")
    assert [row["name"] for row in person.sees("queues")["queues"]] == ["default"]


def test_new_jobs_take_the_current_bundle_and_running_ones_keep_theirs(person: Person) -> None:
    first = person.sees("bundle", "push", "trainer", "code")
    assert (first["version"], first["new"]) == (1, True)
    assert person.sees("bundle", "push", "trainer", "code")["new"] is False
    person.does("submit", person.file("pinned"), "--bundle", "trainer")
    (person.folder / "code" / "waiting.py").write_text("print('version two')\n")
    second = person.sees("bundle", "push", "trainer", "code")
    assert second["version"] == 2
    person.does("submit", person.file("newer"), "--bundle", "trainer", "--wait")
    assert person.does("logs", "newer") == "version two\n"
    assert person.sees("jobs", "pinned")["bundle"] == first["digest"]
    rows = person.sees("bundle", "versions", "trainer")["versions"]
    assert [row["current"] for row in rows] == [True, False]
    assert rows[1]["jobs"] == ["pinned"]
    person.does("bundle", "rollback", "trainer")
    (listed,) = person.sees("bundle", "list")["bundles"]
    assert (listed["current"], listed["newest"]) == (1, 2)
    person.does("submit", person.file("exact"), "--bundle", "trainer@2", "--wait")
    assert person.sees("jobs", "exact")["bundle"] == second["digest"]
    person.does("stop", "pinned", "--now", "--wait")


def test_settings_of_a_job_are_given_and_changed(person: Person) -> None:
    person.does("submit", person.file("tuned", settings="{lr: 0.1}"), "--set", "warmup=10")
    person.does("set", "tuned", "lr=0.01", "--at-step", "500")
    shown = person.sees("jobs", "tuned")
    assert shown["settings"] == {"lr": "0.1", "warmup": "10"}
    (changed,) = shown["changed_settings"]
    assert (changed["name"], changed["value"], changed["at_step"]) == ("lr", "0.01", 500)
    assert changed["taken"] is None, "no worker has come to that step"
    assert "lr=0.01" in person.does("jobs", "tuned")
    wrong = person.says("set", "tuned", "lr")
    assert wrong.returncode == 2
    assert "holdfast set tuned lr=0.01" in wrong.stderr
    person.does("stop", "tuned", "--now", "--wait")


def test_a_follower_sees_all_to_the_end_of_the_job_and_leaves_with_it(person: Person) -> None:
    person.does("submit", person.file("followed"))
    following = person.starts("logs", "followed", "-f", "--stdout")
    story = person.starts("why", "followed", "-f")
    person.until_logged("followed", "line 4")
    person.go("followed").touch()
    shown, _ = following.communicate(timeout=WAIT_S)
    assert following.returncode == 0
    assert shown.splitlines() == [*(f"line {number}" for number in range(5)), "released"]
    told, _ = story.communicate(timeout=WAIT_S)
    assert story.returncode == 0
    assert "succeeded" in told


def test_ctrl_c_ends_a_follower_with_130_and_the_job_goes_on(person: Person) -> None:
    file = person.file("goes-on")
    waiting = person.starts("submit", file, "--wait")
    person.until_logged("goes-on", "line 4")
    following = person.starts("logs", "goes-on", "-f")
    story = person.starts("why", "goes-on", "-f")
    assert following.stdout is not None
    assert following.stdout.readline() == "line 0\n"
    assert story.stdout is not None
    assert story.stdout.readline()  # until then it may be starting
    time.sleep(0.5)  # pause: also where a command may be waiting for news, not only at its start
    for command in (waiting, following, story):
        command.send_signal(signal.SIGINT)
        _, told = command.communicate(timeout=WAIT_S)
        assert command.returncode == 130, told
        assert "Traceback" not in told
        assert "goes-on goes on" in told
    person.go("goes-on").touch()
    person.until_ended("goes-on")


def test_logs_of_an_agent_that_is_away_are_named_and_come_when_it_is_back(person: Person) -> None:
    person.does("submit", person.file("lost"))
    person.until_logged("lost", "line 4")
    following = person.starts("logs", "lost", "-f", "--stdout", "--worker", "1")
    assert following.stdout is not None
    for number in range(5):
        assert following.stdout.readline() == f"line {number}\n"
    person.home.kill("agent")
    away = person.says("logs", "lost")
    assert away.returncode == 0
    # As long as it is known to have been there it is named.
    assert "node-1 does not give its logs now" in away.stderr or "is away" in away.stderr
    person.home.up()
    person.go("lost").touch()
    shown, told = following.communicate(timeout=WAIT_S)
    assert following.returncode == 0, told
    # An agent that was away for longer than its session has its worker replaced.
    replaced = person.control.job("lost").next_worker > 2
    assert shown == "released\n" or (replaced and shown == ""), told


def test_nothing_is_asked_of_a_cluster_that_is_down_and_no_server_is_started(
    person: Person, tmp_path: Path
) -> None:
    folder = tmp_path / "other"
    from holdfast.launch import local

    local.make(folder)
    done = person.says("jobs", "--cluster", str(folder))
    assert done.returncode == 75
    assert "is not up" in done.stderr
    assert "holdfast up" in done.stderr
    assert not any(
        str(folder) in command for command in _commands() if "holdfast.coordination" in command
    )


def _commands() -> list[str]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                found.append((entry / "cmdline").read_bytes().replace(b"\0", b" ").decode())
            except OSError:
                continue
    return found


# --- a job with state -----------------------------------------------------------------------------


_numbers = itertools.count(1)


@pytest.fixture
def counting(person: Person) -> Iterator[str]:
    """A job that counts until it is stopped, with a state that can be saved."""
    shutil.copy(ROOT / "examples" / "counter.py", person.folder / "code")
    more = {
        "command": "python counter.py --steps 100000 --step-ms 10",
        "lanes": "4",
        "workers": "2",
        "checkpoint": "{every: never, keep: 5}",
    }
    # Each has a name of its own: what workers of an earlier one wrote stays after it is removed.
    name = f"counting-{next(_numbers)}"
    person.does("submit", person.file(name, **more))
    person.until_logged(name, "step ", times=2)
    yield name
    person.says("stop", name, "--now", "--wait")
    person.says("remove", name)


def test_a_checkpoint_is_asked_for_verified_and_exported_as_safetensors(
    person: Person, counting: str, tmp_path: Path
) -> None:
    assert person.sees("checkpoints", counting)["checkpoints"] == []
    nothing = person.says("checkpoints", "export", counting, "last", "out")
    assert f"holdfast checkpoint {counting}" in nothing.stderr
    assert "is committed" in person.does("checkpoint", counting, "--wait")
    (row,) = person.sees("checkpoints", counting, "--verify")["checkpoints"]
    assert row["verified"] is True
    step = str(row["step"])
    told = person.sees("checkpoints", "export", counting, step, "out")
    assert told["step"] == row["step"]
    found = {
        name: array
        for file in told["files"]
        for name, array in load_file(tmp_path / "out" / file).items()
    }
    assert found["counted"].shape == (100_000, 4)
    assert found["counted"].sum() == row["step"] * 4  # every sample of those steps, once
    again = person.says("checkpoints", "export", counting, step, "out")
    assert again.returncode == 11
    wrong = person.says("checkpoints", "export", counting, "7", "other")
    assert step in wrong.stderr
    assert person.says("checkpoints", counting, "what").returncode == 2


def test_a_damaged_checkpoint_is_found_and_named(person: Person, counting: str) -> None:
    person.does("checkpoint", counting, "--wait")
    person.does("checkpoint", counting, "--wait")
    newest, oldest = person.sees("checkpoints", counting)["checkpoints"]
    blobs = person.home.cluster.blobs()
    kept = {part.digest for _, part in read_manifest(blobs, oldest["manifest"]).parts()}
    parts = [part for _, part in read_manifest(blobs, newest["manifest"]).parts()]
    victim = next(part for part in parts if part.digest not in kept)
    (file,) = person.home.cluster.folder.glob(f"store/**/{victim.digest.partition(':')[2]}")
    file.chmod(0o600)
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    done = person.says("checkpoints", counting, "--verify", "--json")
    assert done.returncode == 1
    rows = json.loads(done.stdout)["checkpoints"]
    assert [row["verified"] for row in rows] == [False, True]
    assert victim.key in rows[0]["trouble"]
    assert "damaged" in person.says("checkpoints", counting, "--verify").stdout


def test_a_job_whose_checkpoints_are_all_lost_waits_until_its_user_lets_it_begin_anew(
    person: Person, counting: str
) -> None:
    person.does("checkpoint", counting, "--wait")
    person.does("pause", counting, "--wait")
    newest, oldest = person.control.job(counting).checkpoints[::-1]
    for each in (newest, oldest):
        (person.home.cluster.folder / "store" / each.manifest).unlink()
    person.does("resume", counting)

    def waits() -> bool:
        job = person.control.job(counting)
        return job.waits_for_recovery and job.status.phase is Phase.PAUSED and not job.placements

    person.until(waits, "it is told that none can be read")
    story = " ".join(person.does("why", counting).split())
    assert f"checkpoint of step {newest.step} cannot be read back: there is no blob" in story
    assert f"all 2 committed checkpoints are unreadable (step {newest.step}: there is" in story
    assert f"holdfast resume {counting} --from-scratch" in story
    listed = json.loads(person.says("checkpoints", counting, "--json").stdout)["checkpoints"]
    assert [row["step"] for row in listed] == [newest.step, oldest.step]
    assert all("there is no blob" in row["put_aside"] for row in listed)
    person.does("resume", counting, "--from-scratch")
    person.until(lambda: _is_running(person, counting), "it has begun anew")
    assert "gives up 2 unreadable checkpoints: it begins at step 0" in person.does("why", counting)
    refused = person.says("resume", counting, "--from-scratch")
    assert refused.returncode == 1 and "no unreadable checkpoints" in refused.stderr


def _is_running(person: Person, job: str) -> bool:
    return person.control.job(job).status.phase is Phase.RUNNING


def test_a_setting_is_taken_by_all_and_the_story_tells_it(person: Person, counting: str) -> None:
    person.does("set", counting, "rate=3")

    def told() -> list[str]:
        found = [entry.reason for entry in person.control.history(counting)]
        return [reason for reason in found if "rate=3" in reason]

    # Who asked, and the view that takes it.
    person.until(lambda: len(told()) >= 2, "the story tells it")
    assert all(reason in person.does("why", counting) for reason in told()[1:])
    before = person.sees("jobs", counting)["step"]
    person.does("checkpoint", counting, "--wait")
    assert person.sees("jobs", counting)["step"] > before
    rows = person.sees("jobs", counting)["workers"]
    assert sorted(row["lanes"] for row in rows) == ["0-1", "2-3"]
