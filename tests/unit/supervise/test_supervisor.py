"""A real supervisor over a folder, with small processes that register as those of a cluster do."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.cluster import create, register
from holdfast.supervise import records, spawn, supervisor, wanted
from holdfast.supervise.records import Process
from holdfast.wire.errors import Cancelled
from tests.waiting import eventually

# What every process that is kept does, and nothing else.
KEPT = """
import os, signal, sys
from pathlib import Path
from holdfast.supervise import records
from holdfast.supervise.watch import Watch

folder, name = Path(sys.argv[1]), sys.argv[2]
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
with records.register(folder, "part", name) as registration:
    registration.note(given=os.environ.get("GIVEN", ""), nice=os.nice(0))
    watch = Watch(folder)
    watch.start()
    os.nice(5)
    while True:
        signal.pause()
"""
REFUSES = "import sys; sys.stderr.write('no room\\nfix: make some\\n'); sys.exit(2)"


class Kept:
    """A cluster's folder with parts that a supervisor keeps."""

    def __init__(self, folder: Path) -> None:
        self.folder = create(folder).folder

    def start(self, *names: str, script: str = KEPT) -> None:
        """As `holdfast up` does: start them, say that they are wanted, have a supervisor."""
        asked = []
        for name in names:
            command = (sys.executable, "-c", script, str(self.folder), name)
            log = records.log_path(self.folder, "part", name)
            environment = {**spawn.environment(), "GIVEN": "by me"}
            child = spawn.spawn(self.folder, command, log, environment)
            process = records.identified("part", name, child.pid)
            assert process is not None
            asked.append((process, command))
        wanted.want(self.folder, asked)
        supervisor.ensure(self.folder)

    def living(self, kind: str = "part") -> dict[str, Process]:
        return {one.name: one for one in records.processes(self.folder) if one.kind == kind}

    def until_here(self, *names: str) -> dict[str, Process]:
        def here() -> dict[str, Process] | None:
            found = {**self.living(), **self.living(supervisor.KIND)}
            return found if found.keys() == {*names, supervisor.NAME} else None

        return eventually(here, f"these live, and a supervisor: {names}")

    def said(self, name: str) -> dict[str, Any]:
        keeper = self.living(supervisor.KIND).get(supervisor.NAME)
        return dict(keeper.facts.get("kept", {}).get(f"part {name}", {})) if keeper else {}

    def marked(self) -> list[int]:
        """Everything that was started over the folder, by its command line."""
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and int(entry.name) != os.getpid():
                try:
                    words = (entry / "cmdline").read_bytes().split(b"\0")
                    state = (entry / "stat").read_bytes().rpartition(b")")[2].split()[0]
                except OSError:
                    continue
                if str(self.folder).encode() in words and state != b"Z":
                    found.append(int(entry.name))
        return found

    def end(self) -> None:
        wanted.end(self.folder)
        for _ in range(100):
            left = records.processes(self.folder)
            for one in sorted(left, key=lambda each: each.kind != supervisor.KIND):
                one.send(signal.SIGKILL)
                one.wait(60.0)
            if not left and not self.marked():
                return


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[Kept]:
    made = Kept(tmp_path / "cluster")
    yield made
    made.end()
    assert made.marked() == []


def kill(process: Process) -> None:
    assert process.send(signal.SIGKILL)
    assert process.wait(30.0)


def changed(kept: Kept, before: dict[str, Process], *names: str) -> dict[str, Process]:
    """Until others have taken the place of these; all that lives then."""

    def others() -> dict[str, Process] | None:
        now = {**kept.living(), **kept.living(supervisor.KIND)}
        if now.keys() != before.keys():
            return None
        return now if all(now[name].pid != before[name].pid for name in names) else None

    return eventually(others, f"these are started again: {names}")


def test_a_process_that_is_killed_comes_back_as_it_was_started(kept: Kept) -> None:
    kept.start("a", "b")
    before = kept.until_here("a", "b")
    eventually(lambda: kept.said("a").get("state") == "running", "the supervisor sees it")
    kill(before["a"])
    now = changed(kept, before, "a")
    assert now["b"].pid == before["b"].pid
    facts = eventually(lambda: one.facts if (one := kept.living().get("a")) else None, "its facts")
    assert facts["given"] == "by me", "it has not the environment that it was started with"
    eventually(lambda: kept.said("a").get("deaths") == 1, "the death is told")
    assert kept.said("a")["why"] == "was killed"


def test_a_supervisor_that_is_killed_is_started_again_by_whoever_is_kept(kept: Kept) -> None:
    kept.start("a", "b")
    before = kept.until_here("a", "b")
    eventually(lambda: kept.living()["a"].facts, "a has told its priority")
    kill(before[supervisor.NAME])
    now = changed(kept, before, supervisor.NAME)
    assert (now["a"].pid, now["b"].pid) == (before["a"].pid, before["b"].pid)
    # Parts may give way to others; the supervisor, and so the next part, does not inherit that.
    priority = os.getpriority(os.PRIO_PROCESS, now[supervisor.NAME].pid)
    assert priority == before["a"].facts.get("nice", priority)
    kill(now["a"])
    changed(kept, now, "a")


def test_all_but_one_killed_at_once_come_back_and_none_of_them_twice(kept: Kept) -> None:
    kept.start("a", "b", "c")
    before = kept.until_here("a", "b", "c")
    for name in (supervisor.NAME, "a", "b"):
        before[name].send(signal.SIGKILL)
    changed(kept, before, supervisor.NAME, "a", "b")
    assert len(kept.marked()) == 4


def test_one_that_refuses_to_start_is_tried_ever_more_slowly_and_its_words_are_told(
    kept: Kept,
) -> None:
    kept.start("a")
    kept.start("bad", script=REFUSES)
    said = eventually(lambda: (kept.said("bad").get("faults") or 0) >= 3 and kept.said("bad"), "it")
    assert said["why"] == "ended (exit code 2): no room; fix: make some"
    assert said["state"] in ("waiting", "running")


def test_what_a_supervisor_has_given_up_the_next_one_does_not_try_before_it_is_asked(
    kept: Kept, tmp_path: Path
) -> None:
    mark = tmp_path / "tried"
    script = f"open({str(mark)!r}, 'a').write('x'); raise SystemExit(2)"
    command = (sys.executable, "-c", script, str(kept.folder), "bad")
    wanted.want(kept.folder, [(Process("part", "bad", 0, 0, ""), command)])
    told = {"state": "gave up", "since_s": 7.0, "deaths": 8, "faults": 8, "why": "ended"}
    told["asked_s"] = wanted.read(kept.folder)["part bad"].asked_s
    former = Process(supervisor.KIND, supervisor.NAME, 1, 1, "", facts={"kept": {"part bad": told}})
    path = records.record_path(kept.folder, supervisor.KIND, supervisor.NAME)
    path.parent.mkdir(exist_ok=True)
    records.write(path, former)
    supervisor.ensure(kept.folder)
    eventually(lambda: kept.said("bad").get("state") == "gave up", "it stays given up")
    assert kept.said("bad")["since_s"] == 7.0
    assert not mark.exists()
    kept.start("bad")
    eventually(lambda: kept.said("bad").get("state") == "running", "asked again, it runs")


def test_nothing_is_started_again_once_it_was_said_that_nothing_is_wanted(kept: Kept) -> None:
    kept.start("a", "b")
    before = kept.until_here("a", "b")
    wanted.end(kept.folder)
    # In any order: the parts see that their supervisor dies, and it sees that they do.
    for name in ("a", supervisor.NAME, "b"):
        before[name].send(signal.SIGKILL)
        before[name].wait(30.0)
    eventually(lambda: not kept.marked(), "nothing lives")
    supervisor.ensure(kept.folder)
    done = subprocess.run(
        [sys.executable, "-m", "holdfast.supervise", "--cluster", str(kept.folder)],
        env=spawn.environment(),
        timeout=60,
        check=False,
    )
    assert done.returncode == supervisor.ENDED
    assert kept.marked() == []


def test_a_part_that_is_not_wanted_any_more_ends_although_a_supervisor_has_just_started_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = create(tmp_path / "cluster")
    monkeypatch.setenv(wanted.SUPERVISED_VARIABLE, "1")
    with pytest.raises(Cancelled, match="not wanted any more"):
        register(cluster, "gateway", "gateway-1", kept=True)
    assert records.processes(cluster.folder, ended=True) == []
    with register(cluster, "gateway", "gateway-1"):  # somebody has started it by hand
        assert records.processes(cluster.folder)


def test_a_supervisor_has_none_of_the_large_libraries() -> None:
    script = (
        "import sys, holdfast.supervise.__main__\n"
        "print([one for one in ('kazoo', 'torch', 'structlog', 'asyncio', 'ssl', 'cryptography')"
        " if one in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], env=spawn.environment(), capture_output=True, check=True
    )
    assert done.stdout.strip() == b"[]"
