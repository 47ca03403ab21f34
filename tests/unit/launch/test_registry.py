"""Records of processes: who lives is known, and nobody else is ever signalled."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from holdfast.cluster import Cluster, create, processes, register
from holdfast.cluster.registry import forget, identified, record_path
from holdfast.wire.errors import Occupied

CHILD = """
import sys, time
from pathlib import Path
from holdfast.cluster import opened, register

with register(opened(Path(sys.argv[1])), "agent", "n") as registration:
    registration.note(leader="x")
    print("here", flush=True)
    time.sleep(600)
"""


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return create(tmp_path / "c")


@pytest.fixture
def child(cluster: Cluster) -> Iterator[subprocess.Popen[str]]:
    words = [sys.executable, "-c", CHILD, str(cluster.folder)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "here\n"
        yield process
        process.kill()


def test_on_a_full_disk_a_record_stays_as_it_was_until_it_is_said_again(cluster: Cluster) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with register(cluster, "agent", "n") as registration:
        registration.note(leader="first")
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))  # no file may have a byte
        try:
            registration.note(leader="second")
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert [one.facts for one in processes(cluster)] == [{"leader": "first"}]
        registration.note(leader="second")
        assert [one.facts for one in processes(cluster)] == [{"leader": "second"}]


def test_a_process_is_known_while_it_lives_with_what_it_says_of_itself(
    cluster: Cluster, child: subprocess.Popen[str]
) -> None:
    (found,) = processes(cluster)
    assert (found.kind, found.name, found.pid) == ("agent", "n", child.pid)
    assert found.facts == {"leader": "x"}
    assert found.alive
    child.kill()
    assert found.wait(30.0)
    assert processes(cluster) == []
    assert [one.name for one in processes(cluster, ended=True)] == ["n"]
    forget(cluster, found)
    assert processes(cluster, ended=True) == []


def test_a_second_process_of_the_same_name_is_refused(
    cluster: Cluster, child: subprocess.Popen[str]
) -> None:
    with pytest.raises(Occupied, match="runs already"):
        register(cluster, "agent", "n")
    assert processes(cluster)[0].pid == child.pid


def test_the_name_of_a_killed_process_is_free_at_once(
    cluster: Cluster, child: subprocess.Popen[str]
) -> None:
    child.kill()
    child.wait()
    with register(cluster, "agent", "n") as mine:
        assert mine.process.pid == os.getpid()
        assert processes(cluster)[0].pid == os.getpid()
    assert processes(cluster, ended=True) == []


def test_a_process_that_has_the_number_of_another_one_is_not_signalled(
    cluster: Cluster, child: subprocess.Popen[str]
) -> None:
    """The number was given to somebody else: its start differs."""
    (found,) = processes(cluster)
    for other in (
        replace(found, start_ticks=found.start_ticks - 1),
        replace(found, boot="of yesterday"),
    ):
        assert not other.alive
        assert not other.send(signal.SIGKILL)
    assert child.poll() is None
    assert found.send(signal.SIGKILL)


def test_a_record_that_a_crash_of_the_machine_cut_short_is_passed_over(cluster: Cluster) -> None:
    record_path(cluster, "agent", "n").write_text('{"kind": "agent"')
    assert processes(cluster, ended=True) == []
    with register(cluster, "agent", "n"):
        assert len(processes(cluster)) == 1


def test_a_record_is_readable_by_anything_that_reads_json(cluster: Cluster) -> None:
    with register(cluster, "coordinator", "coordinator-1"):
        fields = json.loads(record_path(cluster, "coordinator", "coordinator-1").read_text())
    assert fields["pid"] == os.getpid()
    assert fields["command"]


def test_a_process_without_a_record_is_known_by_its_number() -> None:
    found = identified("server", "x", os.getpid())
    assert found is not None
    assert found.alive
    assert found.command
    assert identified("server", "x", 2**22 + 1) is None
