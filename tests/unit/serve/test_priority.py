"""Whoever looks after things lets others go first: how far, who with it, and for how long."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.serve import priority
from holdfast.serve.priority import GIVE_WAY_NICE, LOADING_NICE, NICE_MAX, TRIAL_NICE


def priority_now() -> int:
    return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())


def in_a_thread(*acts: Callable[[], None]) -> list[int]:
    """Where a thread stands that has done this, and one that it has started then."""
    found = []

    def look() -> None:
        found.append(priority_now())

    def work() -> None:
        for act in acts:
            act()
        look()
        inner = threading.Thread(target=look)
        inner.start()
        inner.join()

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    return found


def below(before: int, by: int) -> int:
    return min(before + by, NICE_MAX)


def test_only_the_thread_that_asks_for_it_and_what_it_starts_get_a_lower_priority() -> None:
    before = priority_now()
    assert in_a_thread(priority.lower_own_priority) == [below(before, LOADING_NICE)] * 2
    assert priority_now() == before


OTHERS = """
import threading
there = threading.Barrier(3)
for _ in range(2):
    threading.Thread(target=lambda: (there.wait(), threading.Event().wait()), daemon=True).start()
there.wait()
print("ready", flush=True)
input()
"""


def test_of_another_process_the_first_thread_gets_a_lower_priority_and_only_once() -> None:
    def stand() -> dict[bool, set[int]]:
        found: dict[bool, set[int]] = {True: set(), False: set()}
        for task in Path(f"/proc/{other.pid}/task").iterdir():
            is_first = int(task.name) == other.pid
            found[is_first].add(os.getpriority(os.PRIO_PROCESS, int(task.name)))
        return found

    before = priority_now()
    with subprocess.Popen(
        [sys.executable, "-c", OTHERS], text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "ready\n"
        for _ in range(2):
            priority.lower_first_thread(other.pid)
            assert stand() == {True: {below(before, LOADING_NICE)}, False: {before}}
        other.communicate("end\n")
    priority.lower_first_thread(other.pid)  # it is gone: nobody minds


def test_giving_way_lowers_the_priority_from_what_it_was() -> None:
    before = priority_now()

    def nicer() -> None:
        os.setpriority(os.PRIO_PROCESS, 0, below(before, 1))

    assert in_a_thread(nicer, priority.give_way) == [below(before, 1 + GIVE_WAY_NICE)] * 2
    assert priority_now() == before


@pytest.mark.parametrize("missing", ["no-such-folder/autogroup", "."])
def test_a_system_that_has_no_groups_or_does_not_let_us_change_them_is_no_trouble(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    monkeypatch.setattr(priority, "AUTOGROUP", tmp_path / missing)
    monkeypatch.setattr(os, "getsid", lambda _: os.getpid())
    before = priority_now()
    assert in_a_thread(priority.give_way) == [below(before, GIVE_WAY_NICE)] * 2


def test_the_session_of_a_process_gets_a_lower_priority_only_if_it_is_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = tmp_path / "autogroup"
    monkeypatch.setattr(priority, "AUTOGROUP", group)
    monkeypatch.setattr(os, "getsid", lambda _: os.getpid() + 1)
    in_a_thread(priority.give_way)
    assert not group.exists()
    monkeypatch.setattr(os, "getsid", lambda _: os.getpid())
    in_a_thread(priority.give_way)
    assert group.read_text() == str(GIVE_WAY_NICE)


# A process, and one that it starts, with a thread each. `group` stands for the system's file.
APART = """
import os, signal, sys, threading, time
from pathlib import Path
from holdfast.serve import priority

group = Path(sys.argv[1])
priority.AUTOGROUP = group
most_s, refused = float(sys.argv[2]), int(sys.argv[3])
really = priority._set_session
def reluctantly(nice):
    global refused
    if nice == 0 and refused:
        refused -= 1
        return False  # as often as the system says: not now
    return really(nice)
priority._set_session = reluctantly

if os.fork():
    os._exit(os.waitstatus_to_exitcode(os.wait()[1]))

def of(pid):
    return sorted({os.getpriority(os.PRIO_PROCESS, int(one.name))
                   for one in Path(f"/proc/{pid}/task").iterdir()})

def seen(who):
    return f"{[one - usual for one in of(os.getpid()) + of(who)]} {group.read_text()}"

usual = os.getpriority(os.PRIO_PROCESS, 0)
apart = priority.OwnSession()
print("alone" if os.getsid(0) == os.getpgrp() == os.getpid() else "not alone")
for what in sys.argv[4]:
    with apart.patiently(what, most_s):
        ready, tell = os.pipe()
        child = os.fork()
        if not child:
            threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
            os.write(tell, b"1")
            time.sleep(600)
        os.read(ready, 1)
        first = seen(child)
        until_s = time.monotonic() + 60.0 if most_s < 1 else 0.0
        while group.read_text() != "0" and time.monotonic() < until_s:
            signal.sigtimedwait([], 0.01)
        print(first, "then", seen(child))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
"""


def apart(folder: Path, most_s: float, refused: int = 0, things: str = "ab") -> list[str]:
    """What it says of two things that it does, one after the other."""
    ran = subprocess.run(
        [sys.executable, "-c", APART, str(folder / "group"), str(most_s), str(refused), things],
        capture_output=True,
        text=True,
        timeout=200,
        check=True,
    )
    return ran.stdout.splitlines()


def test_a_process_apart_has_a_lower_priority_with_all_that_it_starts(tmp_path: Path) -> None:
    by = TRIAL_NICE if priority.may_return() else LOADING_NICE
    low = f"[{by}, {by}] {by}"
    assert apart(tmp_path, 600.0) == ["alone", f"{low} then {low}", f"{low} then {low}"]


def test_a_process_apart_is_as_all_others_when_its_patience_ends_and_patient_anew_the_next_time(
    tmp_path: Path,
) -> None:
    said = apart(tmp_path, 0.5)
    # Without a privilege the system takes nothing back of the processes, but of their session.
    after = "[0, 0] 0" if priority.may_return() else f"[{LOADING_NICE}, {LOADING_NICE}] 0"
    assert said[0] == "alone"
    assert [line.partition(" then ")[2] for line in said[1:]] == [after] * 2


def test_what_has_used_up_its_patience_gets_no_more_of_it(tmp_path: Path) -> None:
    after = "[0, 0] 0" if priority.may_return() else f"[{LOADING_NICE}, {LOADING_NICE}] 0"
    assert apart(tmp_path, 0.1, things="aa")[2] == f"{after} then {after}"


def test_a_session_that_may_not_change_now_is_changed_a_little_later(tmp_path: Path) -> None:
    assert [line.endswith(" 0") for line in apart(tmp_path, 0.1, refused=2)[1:]] == [True, True]


def test_whether_one_may_come_back_is_found_out_without_losing_anything() -> None:
    before = priority_now()
    assert priority.may_return() == priority.may_return()
    assert priority_now() == before
