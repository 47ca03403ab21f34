"""Exactly this process, and not the next one that gets its number."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.system import process_identity
from holdfast.system.process_identity import boot, hold, start_ticks


def test_a_process_is_held_by_number_start_and_boot_together() -> None:
    pid = os.getpid()
    started = start_ticks(pid)
    assert started is not None
    handle = hold(pid, started, boot())
    assert handle is not None
    os.close(handle)
    assert hold(pid, started + 1, boot()) is None
    assert hold(pid, started, "another run of the machine") is None


def test_one_that_has_ended_and_that_nobody_waited_for_counts_only_if_it_is_asked_for() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    try:
        started = start_ticks(child.pid, zombies=True)
        assert started is not None
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert start_ticks(child.pid) is None
        assert start_ticks(child.pid, zombies=True) == started
        assert hold(child.pid, started, boot()) is None
        handle = hold(child.pid, started, boot(), zombies=True)
        assert handle is not None
        os.close(handle)
    finally:
        child.wait()
    assert start_ticks(child.pid, zombies=True) is None
    assert hold(child.pid, started, boot(), zombies=True) is None


def test_a_number_that_gets_another_owner_before_it_is_held_is_not_held(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    started = start_ticks(os.getpid())
    assert started is not None
    before = len(list(Path("/proc/self/fd").iterdir()))
    monkeypatch.setattr(process_identity, "start_ticks", lambda _pid, *, zombies: started + 9)
    assert hold(os.getpid(), started, boot()) is None
    assert len(list(Path("/proc/self/fd").iterdir())) == before
