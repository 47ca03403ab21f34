"""`make demo-coordination` shows what it claims, and leaves nothing running."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.cli.running import ROOT, environment
from tests.waiting import eventually


def command(folder: Path) -> list[str]:
    return [sys.executable, str(ROOT / "examples" / "coordination_demo.py"), str(folder)]


def processes_over(folder: Path) -> list[str]:
    """Command lines of living processes that name the folder."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = entry.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue  # it ended while we looked
        if str(folder) in line:
            found.append(line)
    return found


def test_every_claim_of_the_demo_holds(tmp_path: Path) -> None:
    done = subprocess.run(
        command(tmp_path), capture_output=True, text=True, check=False, env=environment()
    )
    assert done.returncode == 0, done.stdout + done.stderr
    summary = done.stdout[done.stdout.index("What was checked") :]
    assert summary.count("✔") == 7
    assert "✘" not in done.stdout
    eventually(lambda: not processes_over(tmp_path), "nothing is left running")


@pytest.mark.parametrize("ignored", [False, True], ids=["in front", "in the background"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["SIGINT", "SIGTERM"])
def test_ctrl_c_ends_everything_that_the_demo_started(
    tmp_path: Path, number: signal.Signals, ignored: bool
) -> None:
    """Also of one that a shell has started in the background, where Ctrl-C is ignored."""
    shell = ["sh", "-c", 'trap "" INT; exec "$@"', "sh"] if ignored else []
    running = subprocess.Popen(
        [*shell, *command(tmp_path)], stdout=subprocess.PIPE, text=True, env=environment()
    )
    assert running.stdout is not None
    for line in running.stdout:
        if "leads, term" in line:
            break
    os.kill(running.pid, number)
    said, _ = running.communicate(timeout=240)
    assert running.returncode == 130, said
    eventually(lambda: not processes_over(tmp_path), "nothing is left running")
