"""The shim alone, and the race of two agents for one worker."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from holdfast.agent import shim
from holdfast.agent.assembly import LocalAgent
from holdfast.agent.leftovers import end_workers
from holdfast.system.durable import write_file
from holdfast.wire.errors import Unavailable
from holdfast.wire.orders import StartWorker
from holdfast.wire.reports import Exit, ExitKind, WorkerPhase
from holdfast.wire.resources import Resources
from tests.faults.agent_process import NODE, WAIT_S, AgentProcess, machine, processes_of, until

COUNT = "import sys, pathlib, os; pathlib.Path(sys.argv[1]).open('a').write(f'{os.getpid()}\\n')"


def launch(folder: Path, *command: str, **more: Any) -> None:
    """What an agent writes for a shim."""
    folder.mkdir(parents=True, exist_ok=True)
    given = {
        "command": [sys.executable if word == "python" else word for word in command],
        "cwd": str(folder),
        "environment": {"PATH": os.environ["PATH"], "HOLDFAST_SCRATCH": str(folder)},
        "out": str(folder / "out.log"),
        "err": str(folder / "err.log"),
        "log_bytes_max": 1 << 20,
        "memory_bytes_max": 0,
        "memory_look_s": 0.02,
        "cgroup": "",
        "cpus": [],
        "agent": str(folder / "agent"),
        "look_s": 0.05,
        "away_s": 60.0,
        "away_notice_s": 1.0,
        **more,
    }
    (folder / "launch.json").write_text(json.dumps(given))


def shims(folder: Path, count: int = 1) -> list[subprocess.Popen[bytes]]:
    line = [sys.executable, "-I", "-S", shim.__file__, str(folder)]
    return [subprocess.Popen(line, start_new_session=True) for _ in range(count)]


def note(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "exit").read_text())
    return found


def test_of_many_shims_for_one_worker_exactly_one_starts_it(tmp_path: Path) -> None:
    launch(tmp_path / "w", "python", "-c", COUNT, str(tmp_path / "starts"))
    ends = sorted(one.wait(WAIT_S) for one in shims(tmp_path / "w", 6))
    assert ends == [0] + [shim.RACE_LOST] * 5
    assert len((tmp_path / "starts").read_text().splitlines()) == 1
    assert note(tmp_path / "w")["code"] == 0


def test_a_shim_that_comes_after_its_folder_was_removed_starts_nothing(tmp_path: Path) -> None:
    launch(tmp_path / "w", "python", "-c", COUNT, str(tmp_path / "starts"))
    runner = (
        "import os, sys\n"
        f"sys.path.insert(0, {str(Path(shim.__file__).parent)!r})\n"
        "import shim\n"
        "late = shim.Shim(sys.argv[1])\n"
        "os.rename(sys.argv[1], sys.argv[1] + '.gone')\n"
        "os.mkdir(sys.argv[1])\n"
        "os._exit(late.run())\n"
    )
    done = subprocess.run([sys.executable, "-c", runner, str(tmp_path / "w")], check=False)
    assert done.returncode == shim.RACE_LOST
    assert not (tmp_path / "starts").exists()


def test_only_the_first_sigterm_is_passed_on(tmp_path: Path) -> None:
    script = (
        "import pathlib, signal, sys, time\n"
        "mark = pathlib.Path(sys.argv[1])\n"
        "signal.signal(signal.SIGTERM, lambda *_: mark.open('a').write('x'))\n"
        "mark.touch()\n"
        "while True: time.sleep(0.01)\n"
    )
    mark = tmp_path / "asked"
    launch(tmp_path / "w", "python", "-c", script, str(mark))
    (one,) = shims(tmp_path / "w")
    until(mark.exists, bool)
    for _ in range(3):
        one.send_signal(signal.SIGTERM)
        until(mark.read_text, bool)
        time.sleep(0.1)  # pause: a second one would have come by now
    one.send_signal(signal.SIGUSR1)
    assert one.wait(WAIT_S) == 0
    assert mark.read_text() == "x"
    assert note(tmp_path / "w")["signal"] == signal.SIGKILL


def test_a_kill_at_the_limit_of_a_control_group_is_told_with_that_limit(tmp_path: Path) -> None:
    """A folder stands for the group: the system's counters are what the shim reads."""
    group = tmp_path / "group"
    group.mkdir()
    (group / "memory.events").write_text("low 0\nhigh 0\nmax 7\noom 1\noom_kill 2\n")
    launch(tmp_path / "w", "true", cgroup=str(group), memory_bytes_max=5_000)
    assert [one.wait(WAIT_S) for one in shims(tmp_path / "w")] == [0]
    found = note(tmp_path / "w")
    assert found["over_memory"]
    assert (found["memory_bytes"], found["memory_bytes_max"]) == (5_000, 5_000)


def test_a_kill_for_want_of_memory_elsewhere_is_not_put_on_a_control_groups_limit(
    tmp_path: Path,
) -> None:
    group = tmp_path / "group"
    group.mkdir()
    (group / "memory.events").write_text("low 0\nhigh 0\nmax 0\noom 0\noom_kill 1\n")
    launch(tmp_path / "w", "true", cgroup=str(group), memory_bytes_max=5_000)
    assert [one.wait(WAIT_S) for one in shims(tmp_path / "w")] == [0]
    assert not note(tmp_path / "w")["over_memory"]


def test_a_file_that_was_written_only_in_part_never_gets_its_name(tmp_path: Path) -> None:
    """The system takes the first bytes and says so; nobody asked how many they were."""
    folder = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
    try:
        with pytest.raises(OSError, match="too large"):
            write_file(folder, "exit", b"x" * 1_000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        os.close(folder)
    assert list(tmp_path.iterdir()) == []


def test_output_goes_on_after_a_rotation_that_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = shim.Log(str(tmp_path / "log"), 100)
    log.write(b"1" * 100)

    def full(*_args: object, **_more: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", full)
        log.write(b"lost!")
    log.write(b"after\n")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {
        "log.1": b"1" * 100,
        "log": b"[holdfast: 5 bytes of output were lost: no room]\nafter\n",
    }


def test_output_that_finds_no_room_is_counted_and_the_worker_goes_on(tmp_path: Path) -> None:
    log = shim.Log(str(tmp_path / "log"), 1 << 20)
    log.write(b"before\n")
    full = os.open("/dev/full", os.O_WRONLY)
    kept, log._handle = log._handle, full
    log.write(b"x" * 100)
    log._handle = kept
    log.write(b"after\n")
    os.close(full)
    said = "before\n[holdfast: 100 bytes of output were lost: no room]\nafter\n"
    assert (tmp_path / "log").read_text() == said


def test_a_worker_that_another_agent_started_so_late_is_adopted_and_not_started_twice(
    tmp_path: Path,
) -> None:
    home = tmp_path / "agent"
    folder = home / "workers" / "job.1"
    others: list[subprocess.Popen[bytes]] = []

    def bundle_folder(_name: str) -> Path:
        """Between the decision to start and the start, the other agent's shim makes its claim."""
        launch(folder, "python", "-c", COUNT + "; import time; time.sleep(1000)", "MARK")
        fields = json.loads((folder / "launch.json").read_text())
        fields["command"][-1] = str(tmp_path / "starts")
        (folder / "launch.json").write_text(json.dumps(fields))
        others.extend(shims(folder))
        until((folder / "claim").exists, bool)
        return tmp_path

    async def story() -> None:
        agent = await LocalAgent.start(home, NODE, machine(), bundle_folder)
        line = (sys.executable, "-c", COUNT, str(tmp_path / "starts"))
        await agent.deliver(1, StartWorker(NODE, "job", 1, "b", line, Resources(1.0)))
        async with asyncio.timeout(WAIT_S):
            await asyncio.to_thread(until, agent_identity, is_the_others)
        (facts,) = agent.snapshot().workers
        assert facts.phase is WorkerPhase.STARTING
        await agent.close()

    def is_the_others(pid: int | None) -> bool:
        return bool(others) and pid == others[0].pid

    def agent_identity() -> int | None:
        entries = (home / "journal").read_bytes().decode("latin-1")
        at = entries.rfind('"identity":[')
        return None if at < 0 else int(entries[at + 12 :].split(",")[0])

    with AgentProcess(home):
        asyncio.run(story())
        until(lambda: (tmp_path / "starts").exists() and (tmp_path / "starts").read_text(), bool)
        assert len((tmp_path / "starts").read_text().splitlines()) == 1
    until(lambda: processes_of(home), lambda found: not found)
    others[0].wait(WAIT_S)


def test_a_worker_that_was_called_off_before_it_ran_is_no_lost_one_for_the_next_agent(
    tmp_path: Path,
) -> None:
    """Its bundle could not be fetched when its agent left; then somebody ended what was there."""
    home = tmp_path / "agent"

    def not_there(_name: str) -> Path:
        raise Unavailable("the store does not answer")

    async def accepted() -> None:
        agent = await LocalAgent.start(home, NODE, machine(), not_there)
        await agent.deliver(1, StartWorker(NODE, "job", 1, "b", ("true",), Resources(1.0)))
        await agent.close()

    async def found() -> Exit | None:
        agent = await LocalAgent.start(home, NODE, machine(), not_there)
        (facts,) = agent.snapshot().workers
        await agent.close()
        return facts.exit

    asyncio.run(accepted())
    assert end_workers(home, 1.0) == 0
    stopped = Exit(ExitKind.STOPPED, "it was stopped before it was started")
    assert asyncio.run(found()) == stopped
    assert asyncio.run(found()) == stopped
