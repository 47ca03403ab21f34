"""A person who gives commands to a cluster of real processes."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from holdfast.control.store.plane import ControlPlane
from tests.integration.clusters import Home
from tests.servers import commands
from tests.unit.cli.running import environment
from tests.waiting import eventually

WAITING = """
import pathlib, sys, time
for number in range(5):
    print("line", number, flush=True)
print("to stderr", file=sys.stderr, flush=True)
go = pathlib.Path(sys.argv[1])
while not go.exists():
    time.sleep(0.05)
print("released", flush=True)
"""
FAILING = """
print("before it fails", flush=True)
raise ValueError("the loss is not a number")
"""

# A limit, not an expectation: every command is a process, and the machine may be busy.
WAIT_S = 240.0


class Person:
    """Somebody in a folder with code and job files, who gives commands."""

    def __init__(self, home: Home, control: ControlPlane, folder: Path) -> None:
        self.home = home
        self.control = control
        self.folder = folder
        self.environment = environment(HOLDFAST_CLUSTER=str(home.cluster.folder))
        (folder / "code").mkdir()
        (folder / "code" / "waiting.py").write_text(WAITING)
        (folder / "code" / "failing.py").write_text(FAILING)

    def says(self, *words: str) -> commands.Result:
        """Whatever comes of it."""
        return commands.run(*words, timeout=WAIT_S, cwd=self.folder, env=self.environment)

    def does(self, *words: str) -> str:
        """It must succeed; what went to stdout."""
        done = self.says(*words)
        assert done.returncode == 0, (words, done.stdout, done.stderr)
        return done.stdout

    def sees(self, *words: str) -> Any:
        return json.loads(self.does(*words, "--json"))

    def starts(self, *words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "holdfast", *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self.folder,
            env=self.environment,
        )

    def file(self, name: str, **more: str) -> str:
        """A job file for a job that waits for its release."""
        keys = {"name": name, "command": f"python waiting.py {self.go(name)}", "bundle": "./code"}
        text = "".join(f"{key}: {value}\n" for key, value in (keys | more).items())
        (self.folder / f"{name}.yaml").write_text(text)
        return f"{name}.yaml"

    def go(self, name: str) -> Path:
        return self.folder / f"{name}.go"

    def phase(self, name: str) -> str:
        return self.control.job(name).status.phase.value

    def workers(self, name: str) -> int:
        return len(self.control.job(name).placements)

    def until(self, condition: Callable[[], object], what: str) -> None:
        eventually(condition, what, WAIT_S)

    def until_ended(self, name: str, phase: str = "succeeded") -> None:
        self.until(lambda: self.control.job(name).status.phase.final, f"{name} ends")
        assert self.phase(name) == phase

    def until_logged(self, name: str, words: str, times: int = 1) -> None:
        """Until so many of its workers have written it."""

        def logged() -> bool:
            logs = self.home.cluster.nodes_folder.glob(f"*/logs/{name}.*/out.log")
            return sum(words in log.read_text() for log in logs) >= times

        self.until(logged, f"{name} writes {words!r}")
