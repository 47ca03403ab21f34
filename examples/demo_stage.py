"""The stage of the demo: the processes that play in it, and what the audience sees."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import ctrl_c
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from holdfast.cli.servers import ServerStatus, status

HERE = Path(__file__).resolve().parent
WAIT_S = 120.0
LINES_SHOWN = 14


class DemoError(Exception):
    """Something that the demo claims did not happen."""


def start(command: Sequence[str], log: Path, **options: Any) -> subprocess.Popen[str]:
    """A process in a group of its own: Ctrl-C reaches the demo only, and the demo ends the rest."""
    environment = {**os.environ, "PYTHONPATH": str(HERE.parent)}
    with log.open("a") as errors:
        return subprocess.Popen(
            [sys.executable, *command],
            stderr=errors,
            env=environment,
            text=True,
            start_new_session=True,
            **options,
        )


class Contender:
    """A contender's process, and what it has told so far."""

    def __init__(self, name: str, address: str, folder: Path) -> None:
        self.name = name
        self.state = "starts"
        self.term = 0
        self.session = 0
        self.acknowledged: list[str] = []
        self.unsure: list[str] = []
        self.fenced: list[dict[str, Any]] = []
        self.process = start(
            [str(HERE / "contender.py"), name, address],
            folder / f"{name}.log",
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            told = json.loads(line)
            event = told["event"]
            self.session = told.get("session", self.session)
            if event == "leads":
                self.state, self.term = "leads", told["term"]
            elif event == "wrote":
                self.acknowledged.append(told["fact"])
            elif event == "unsure":
                self.unsure.append(told["fact"])
            elif event == "fenced":
                self.fenced.append(told)
                self.state = "fenced"
            elif event == "waits":
                self.state = "waits"

    def kill(self) -> None:
        self.state = "killed"
        self.process.kill()
        self.process.wait()
        self.state = "killed"

    def pause(self) -> None:
        os.kill(self.process.pid, signal.SIGSTOP)
        self.state = "paused"

    def wake(self) -> None:
        self.state = "woken"
        os.kill(self.process.pid, signal.SIGCONT)

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()


class Server:
    """The coordination server as a process. It ends by itself if the demo should die."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.data = folder / "coord"
        self.listen = "127.0.0.1:0"
        self.process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        options = ["--data", str(self.data), "--listen", self.listen]
        options += ["--linger", "30", "--tick-ms", "500"]
        record = self.data / "server.json"
        record.unlink(missing_ok=True)
        module = ["-m", "holdfast.coordination.embedded"]
        log = self.folder / "server.log"
        self.process = start([*module, *options], log, stdin=subprocess.DEVNULL)
        wait_for("the server listens", record.exists, self._alive)
        self.listen = json.loads(record.read_text())["address"]  # the same one after a restart

    def _alive(self) -> None:
        if self.process is not None and self.process.poll() is not None:
            said = (self.folder / "server.log").read_text()[-2_000:]
            raise DemoError(f"the server ended while it started:\n{said}")

    def status(self) -> ServerStatus:
        host, _, port = self.listen.rpartition(":")
        return status(host, int(port))

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def end(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.kill()


def wait_for(
    what: str, ready: Callable[[], object], check: Callable[[], None] | None = None
) -> None:
    """Until `ready`; `DemoError` if it takes far too long."""
    deadline = time.monotonic() + WAIT_S
    while not ready():
        if check is not None:
            check()
        if time.monotonic() > deadline:
            raise DemoError(f"waited {WAIT_S:g} s in vain until: {what}")
        ctrl_c.pause(0.02)


class Screen:
    """A live picture on a terminal, plain lines anywhere else."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.contenders: Sequence[Contender] = ()
        self.server = "not started"
        self._lines: deque[Text] = deque(maxlen=LINES_SHOWN)
        self._started = time.monotonic()
        self._live = Live(
            get_renderable=self._picture,
            console=console,
            refresh_per_second=8,
            transient=True,
        )

    def __enter__(self) -> Self:
        if self.console.is_terminal:
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        if self.console.is_terminal:
            self._live.stop()
            for line in self._lines:
                self.console.print(line)

    def say(self, text: str, style: str = "") -> None:
        line = Text()
        line.append(f"{time.monotonic() - self._started:5.1f} s  ", style="dim")
        line.append(text, style=style)
        self._lines.append(line)
        if not self.console.is_terminal:
            self.console.print(line, soft_wrap=True)

    def _picture(self) -> Group:
        grid = Table(title="Holdfast: the coordination plane", title_justify="left", box=None)
        for column in ("process", "pid", "state", "term", "acknowledged writes"):
            grid.add_column(column, header_style="dim")
        grid.add_row("server", "", self.server, "", "")
        styles = {"leads": "bold green", "killed": "red", "paused": "yellow", "fenced": "magenta"}
        for one in self.contenders:
            grid.add_row(
                one.name,
                str(one.process.pid),
                Text(one.state, style=styles.get(one.state, "")),
                str(one.term or ""),
                str(len(one.acknowledged)),
            )
        return Group(grid, Text(""), *self._lines)
