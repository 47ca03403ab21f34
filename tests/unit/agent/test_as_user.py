"""What runs pip: it and all that it has started end with the agent."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.agent import as_user
from holdfast.system.process_identity import start_ticks
from tests.waiting import eventually

# An agent, as far as this matters: it starts the program, and waits.
AGENT = """
import json, os, pathlib, subprocess, sys
plan = pathlib.Path(sys.argv[1])
plan.write_text(json.dumps(json.loads(plan.read_text()) | {"parent": os.getpid()}))
runner = [sys.executable, "-I", "-S", sys.argv[2], str(plan)]
sys.exit(subprocess.Popen(runner, start_new_session=True).wait())
"""


def agent(folder: Path, command: str) -> subprocess.Popen[bytes]:
    plan = {"command": ["/bin/sh", "-c", command], "cwd": str(folder), "environment": {}}
    (folder / "plan.json").write_text(json.dumps(plan))
    words = [sys.executable, "-c", AGENT, str(folder / "plan.json"), str(as_user.__file__)]
    return subprocess.Popen(words, cwd=folder)


def test_what_a_build_of_pip_has_started_does_not_outlive_an_agent_that_is_killed(
    tmp_path: Path,
) -> None:
    begun = tmp_path / "begun"
    lasting = f"sleep 300 & echo $! $$ > {begun}.new; mv {begun}.new {begun}; wait"
    with agent(tmp_path, lasting) as killed:
        eventually(begun.exists, "the build has begun")
        build, pip = map(int, begun.read_text().split())
        assert start_ticks(build) is not None
        killed.kill()
    eventually(lambda: start_ticks(pip) is None, "pip has ended")
    eventually(lambda: start_ticks(build) is None, "its build has ended")


@pytest.mark.parametrize(("command", "code"), [("exit 3", 3), ("kill -9 $$", 137), ("true", 0)])
def test_it_ends_as_the_program_does(tmp_path: Path, command: str, code: int) -> None:
    with agent(tmp_path, command) as parent:
        assert parent.wait(60) == code
