"""`make demo` shows what it claims, and leaves nothing running."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.integration.person import WAIT_S
from tests.servers import free_port
from tests.unit.cli.running import ROOT, environment
from tests.unit.cli.test_demo import processes_over
from tests.waiting import eventually

DEMO = ROOT / "examples" / "training_demo.py"
SERVING = ROOT / "examples" / "serving_demo.py"


def test_a_training_in_which_everything_is_killed_ends_with_the_same_bits_and_is_served(
    tmp_path: Path,
) -> None:
    port = str(free_port())
    demos = (
        (DEMO, ("--epochs", "15"), 6, "The same bits."),
        (SERVING, ("--port", port), 5, "No request was lost."),
    )
    for script, options, count, last in demos:
        done = subprocess.run(
            [sys.executable, str(script), str(tmp_path), *options],
            capture_output=True,
            text=True,
            check=False,
            env=environment(),
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert done.stdout.count("✔") == count, done.stdout
        assert "✘" not in done.stdout
        assert last in done.stdout
        eventually(lambda: not processes_over(tmp_path), "nothing is left running")


def test_ctrl_c_ends_everything_that_the_training_demo_started(tmp_path: Path) -> None:
    running = subprocess.Popen(
        [sys.executable, str(DEMO), str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment(),
    )
    assert running.stdout is not None
    said = ""
    for line in running.stdout:
        said += line
        if "four workers train" in line:
            break
    os.kill(running.pid, signal.SIGINT)
    rest, _ = running.communicate(timeout=WAIT_S)
    assert running.returncode == 130, said + rest
    eventually(lambda: not processes_over(tmp_path), "nothing is left running")
