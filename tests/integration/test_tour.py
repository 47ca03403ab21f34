"""The newcomer's tour: its commands, in its order, succeed as its output says."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.contract.waiting import eventually
from tests.integration.clusters import running
from tests.unit.cli.running import ROOT, environment

TOUR = ROOT / "docs" / "tour.md"
INTERRUPTED = 130
# After these the newcomer has seen the job run before the next command is given.
_STARTS = ("submit job.yaml", "resume", "undrain", "scale")


@dataclass(frozen=True)
class Given:
    """A command of the tour, and what the page shows of its output."""

    words: str
    shown: str

    @property
    def interrupted(self) -> bool:
        return "^C" in self.shown

    @property
    def refused(self) -> bool:
        return self.shown.startswith("error")


def commands() -> list[Given]:
    found = []
    for block in re.findall(r"```console\n(.*?)```", TOUR.read_text(), re.S):
        for part in re.split(r"^\$ ", block, flags=re.M)[1:]:
            words, _, shown = part.partition("\n")
            found.append(Given(words, shown))
    return found


def files() -> dict[str, str]:
    """The files that the tour has its reader write: a YAML block whose first line names it."""
    blocks = re.findall(r"```yaml\n# (\S+)\n(.*?)```", TOUR.read_text(), re.S)
    return dict(blocks)


class Newcomer:
    """Somebody with an empty home, in a folder with the example."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.folder = home / "counting"
        self.folder.mkdir()
        shutil.copy(ROOT / "examples" / "counter.py", self.folder)
        for name, text in files().items():
            (self.folder / name).write_text(text)
        self.environment = environment(HOME=str(home), PATH=self._path())

    def _path(self) -> str:
        """With a `holdfast`, and with the interpreter of this test as `python`."""
        tools = self.home / "bin"
        tools.mkdir()
        (tools / "python").symlink_to(sys.executable)
        command = f'#!/bin/sh\nexec "{sys.executable}" -m holdfast "$@"\n'
        (tools / "holdfast").write_text(command)
        (tools / "holdfast").chmod(0o755)
        return f"{tools}{os.pathsep}{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"

    def gives(self, command: Given) -> subprocess.CompletedProcess[str]:
        process = subprocess.Popen(
            shlex.split(command.words),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=self.folder,
            env=self.environment,
        )
        if command.interrupted:
            assert process.stdout is not None
            first = process.stdout.readline()  # it has come as far as to show something
            time.sleep(0.2)
            process.send_signal(signal.SIGINT)
            rest, _ = process.communicate(timeout=120)
            return subprocess.CompletedProcess(command.words, process.returncode, first + rest)
        out, _ = process.communicate(timeout=240)
        return subprocess.CompletedProcess(command.words, process.returncode, out)

    def running(self) -> bool:
        done = self.gives(Given("holdfast jobs --json", ""))
        phases = [job["phase"] for job in json.loads(done.stdout)["jobs"]]
        return "running" in phases


@pytest.fixture
def newcomer(tmp_path: Path) -> Iterator[Newcomer]:
    made = Newcomer(tmp_path)
    yield made
    made.gives(Given("holdfast down --force", ""))
    for pid in running(tmp_path):
        os.kill(pid, signal.SIGKILL)


def test_the_tour_names_every_verb_that_a_newcomer_needs() -> None:
    given = " ".join(command.words for command in commands())
    for verb in ("up", "submit", "jobs", "why", "logs", "set", "drain", "down"):
        assert f"holdfast {verb}" in given
    assert any(command.interrupted for command in commands())


def test_the_commands_of_the_tour_succeed_in_its_order(newcomer: Newcomer) -> None:
    for command in commands():
        done = newcomer.gives(command)
        print(f"$ {command.words}\n{done.stdout}")
        expected = INTERRUPTED if command.interrupted else 0
        if command.refused:
            assert done.returncode in (1, 2), done.stdout
            assert done.stdout.splitlines()[0] == command.shown.splitlines()[0]
        else:
            assert done.returncode == expected, done.stdout
        assert "Traceback" not in done.stdout
        if any(f"holdfast {start}" in command.words for start in _STARTS):
            eventually(newcomer.running, "the job runs", 120.0)
    assert not running(newcomer.home), "down leaves nothing"
