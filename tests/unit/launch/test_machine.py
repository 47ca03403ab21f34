"""What a machine has to give, and that no two agents give it away twice."""

from __future__ import annotations

import os
import pwd
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.agent import devices
from holdfast.agent.holding import PORT_BLOCK, Holding
from holdfast.wire.errors import Occupied, Refused
from holdfast.wire.limits import WORKER_PORT_FIRST

TAKER = """
import sys, time
from pathlib import Path
from holdfast.agent.holding import Holding

holding = Holding(Path(sys.argv[1]), Path(sys.argv[2]))
print(holding.take(sys.argv[3]), flush=True)
time.sleep(600)
"""


def holding(tmp_path: Path, name: str) -> Holding:
    return Holding(tmp_path / name, tmp_path / "locks")


@pytest.fixture
def groups(tmp_path: Path) -> Path:
    """A system with control groups of version 2; we are in /team/job."""
    (tmp_path / "own").write_text("0::/team/job\n")
    (tmp_path / "groups" / "team" / "job").mkdir(parents=True)
    return tmp_path / "groups"


def test_the_smallest_share_of_the_cores_above_us_counts(groups: Path) -> None:
    own = groups.parent / "own"
    whole = len(os.sched_getaffinity(0))
    assert devices.cpu(groups, own) == whole
    (groups / "team" / "job" / "cpu.max").write_text("max 100000\n")
    assert devices.cpu(groups, own) == whole
    (groups / "team" / "cpu.max").write_text("50000 100000\n")
    assert devices.cpu(groups, own) == 0.5
    (groups / "cpu.max").write_text("20000 100000\n")
    assert devices.cpu(groups, own) == 0.2


def test_the_smallest_limit_of_memory_above_us_counts(groups: Path) -> None:
    own, whole = groups.parent / "own", groups.parent / "meminfo"
    whole.write_text("MemTotal:       1048576 kB\nMemFree: 1 kB\n")
    assert devices.memory_bytes(groups, own, whole) == 2**30
    (groups / "team" / "job" / "memory.max").write_text("max\n")
    assert devices.memory_bytes(groups, own, whole) == 2**30
    (groups / "team" / "memory.max").write_text("1048576\n")
    assert devices.memory_bytes(groups, own, whole) == 2**20


def test_limits_of_the_older_control_groups_count_too(tmp_path: Path) -> None:
    own, whole = tmp_path / "own", tmp_path / "meminfo"
    own.write_text("4:memory:/docker/x\n1:cpu,cpuacct:/docker/x\n0::/\n")
    whole.write_text("MemTotal: 1048576 kB\n")
    for controller in ("memory", "cpu,cpuacct"):
        (tmp_path / controller).mkdir()  # a container is shown only the root
    (tmp_path / "memory" / "memory.limit_in_bytes").write_text("4096\n")
    (tmp_path / "cpu,cpuacct" / "cpu.cfs_quota_us").write_text("-1\n")
    (tmp_path / "cpu,cpuacct" / "cpu.cfs_period_us").write_text("100000\n")
    assert devices.memory_bytes(tmp_path, own, whole) == 4096
    assert devices.cpu(tmp_path, own) == len(os.sched_getaffinity(0))
    (tmp_path / "cpu,cpuacct" / "cpu.cfs_quota_us").write_text("25000\n")
    assert devices.cpu(tmp_path, own) == 0.25


def test_this_machine_has_memory() -> None:
    assert devices.memory_bytes() > 2**28


def test_gpus_are_counted_by_the_driver_and_only_the_visible_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(devices.VISIBLE_VARIABLE, raising=False)
    for bus in ("0000:07:00.0", "0000:0a:00.0", "0000:47:00.0"):
        (tmp_path / bus).mkdir()
    assert devices.gpus(tmp_path) == (0, 1, 2)
    monkeypatch.setenv(devices.VISIBLE_VARIABLE, "2,0,9")
    assert devices.gpus(tmp_path) == (2, 0)
    monkeypatch.setenv(devices.VISIBLE_VARIABLE, "")
    assert devices.gpus(tmp_path) == ()


def test_gpus_are_counted_by_nvidia_smi_where_the_driver_is_not_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho 'GPU 0: A (UUID: x)'\necho 'GPU 1: A (UUID: y)'\n")
    program.chmod(0o755)
    monkeypatch.delenv(devices.VISIBLE_VARIABLE, raising=False)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert devices.gpus(tmp_path / "nothing") == (0, 1)
    program.write_text("#!/bin/sh\necho 'no driver'; exit 9\n")
    assert devices.gpus(tmp_path / "nothing") == ()


def test_two_agents_never_hold_the_same_gpu(tmp_path: Path) -> None:
    first, second = holding(tmp_path, "a"), holding(tmp_path, "b")
    assert first.gpus((0, 1, 2), 2) == (0, 1)
    assert second.gpus((0, 1, 2), None) == (2,)
    with pytest.raises(Occupied, match="1 GPUs are wanted, and 0 of 3 are free"):
        holding(tmp_path, "c").gpus((0, 1, 2), 1)
    first.close()
    assert holding(tmp_path, "c").gpus((0, 1, 2), None) == (0, 1)


def test_two_agents_have_ranges_of_ports_that_do_not_touch(tmp_path: Path) -> None:
    first, second = holding(tmp_path, "a"), holding(tmp_path, "b")
    assert first.ports() == (WORKER_PORT_FIRST, WORKER_PORT_FIRST + PORT_BLOCK - 1)
    assert second.ports()[0] == WORKER_PORT_FIRST + PORT_BLOCK


def test_an_agent_gets_the_range_that_it_had_before_if_it_is_free(tmp_path: Path) -> None:
    before = WORKER_PORT_FIRST + 3 * PORT_BLOCK
    assert holding(tmp_path, "a").ports(before)[0] == before
    assert holding(tmp_path, "b").ports(before)[0] == WORKER_PORT_FIRST
    assert holding(tmp_path, "c").ports(12345)[0] == WORKER_PORT_FIRST + PORT_BLOCK


def test_what_a_killed_agent_held_is_free_when_it_left_no_worker(tmp_path: Path) -> None:
    words = [sys.executable, "-c", TAKER, str(tmp_path / "a"), str(tmp_path / "locks"), "gpu-0"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as taker:
        assert taker.stdout is not None
        assert taker.stdout.readline() == "True\n"
        mine = holding(tmp_path, "b")
        assert not mine.take("gpu-0")
        taker.kill()
        taker.wait()
        assert mine.take("gpu-0")


def _as_nobody(program: str, *words: str) -> subprocess.Popen[str]:
    uid = pwd.getpwnam("nobody").pw_uid
    drop = ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups"]
    command = [*drop, sys.executable, "-c", program, *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


@pytest.mark.skipif(os.getuid() != 0, reason="only root runs programs of other users")
def test_another_user_who_made_the_folder_of_the_locks_first_is_named(tmp_path: Path) -> None:
    """Another user can take any name in a place that all share; the agent says who did, and how to
    do without."""
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    for above in shared.parents:
        if above.stat().st_uid == os.getuid() and not above.stat().st_mode & 0o001:
            above.chmod(0o711)
    taken = shared / f"holdfast-locks-{os.getuid()}"
    with _as_nobody("import os, sys; os.mkdir(sys.argv[1])", str(taken)) as other:
        assert other.wait() == 0
    with pytest.raises(Refused, match=f"{taken} belongs to user nobody") as told:
        Holding(tmp_path / "a", taken)
    assert "HOLDFAST_LOCKS" in told.value.fix


NAMES = """
import socket, sys, time
held = []
for name in sys.argv[2:]:
    held.append(socket.socket(socket.AF_UNIX))
    held[-1].bind(f"\\0holdfast-{sys.argv[1]}-{name}")
print("held", flush=True)
time.sleep(600)
"""


@pytest.mark.skipif(os.getuid() != 0, reason="only root runs programs of other users")
def test_what_another_user_holds_is_not_given_away_and_it_is_said_who_has_it(
    tmp_path: Path,
) -> None:
    mine = holding(tmp_path, "a")
    with _as_nobody(NAMES, mine.space, "gpu-0", f"ports-{WORKER_PORT_FIRST}") as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        assert mine.gpus((0, 1), None) == (1,)
        with pytest.raises(Occupied) as told:
            mine.gpus((0,), 1)
        assert f"process {other.pid} of user nobody" in told.value.why
        assert mine.ports()[0] == WORKER_PORT_FIRST + PORT_BLOCK
        other.kill()
    assert mine.gpus((0,), 1) == (0,)


def test_nobody_else_may_enter_the_folder_of_the_locks(tmp_path: Path) -> None:
    (tmp_path / "locks").mkdir(mode=0o777)
    assert holding(tmp_path, "a").take("gpu-0")
    assert (tmp_path / "locks").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "locks" / "gpu-0").stat().st_mode & 0o077 == 0


def test_what_was_released_names_nobody_any_more(tmp_path: Path) -> None:
    mine = holding(tmp_path, "a")
    assert mine.take("gpu-0")
    assert (tmp_path / "locks" / "gpu-0").read_text() == f"{tmp_path / 'a'}\n"
    mine.release()
    assert (tmp_path / "locks" / "gpu-0").read_text() == ""
    assert holding(tmp_path, "b").take("gpu-0")


def test_a_lock_that_is_a_link_to_somewhere_else_is_refused(tmp_path: Path) -> None:
    mine = holding(tmp_path, "a")
    (tmp_path / "locks" / "gpu-0").symlink_to(tmp_path / "precious")
    with pytest.raises(Refused):
        mine.take("gpu-0")
    assert not (tmp_path / "precious").exists()
