"""The processes of the cluster: those that the harness keeps running, as init would, and those
that the system starts itself, found by the traces that they leave on disk."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from holdfast.system.process_identity import start_ticks


def children(pid: int) -> list[int]:
    try:
        return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def strike(pid: int, ticks: int, number: signal.Signals) -> bool:
    """Signal exactly this process; whether it was there."""
    try:
        handle = os.pidfd_open(pid)
    except OSError:
        return False
    try:
        if start_ticks(pid) != ticks:
            return False
        signal.pidfd_send_signal(handle, number)
    except ProcessLookupError:
        return False
    finally:
        os.close(handle)
    return True


@dataclass(frozen=True, slots=True)
class Found:
    """A process that was there when we looked."""

    name: str
    pid: int
    ticks: int

    @property
    def alive(self) -> bool:
        return start_ticks(self.pid) == self.ticks

    def kill(self) -> bool:
        return strike(self.pid, self.ticks, signal.SIGKILL)

    def pause(self) -> bool:
        return strike(self.pid, self.ticks, signal.SIGSTOP)

    def resume(self) -> bool:
        return strike(self.pid, self.ticks, signal.SIGCONT)


@dataclass
class Kept:
    """A process that the harness starts again. Its output goes to `log`."""

    name: str
    command: Sequence[str]
    log: Path
    environment: dict[str, str]
    process: subprocess.Popen[bytes] | None = None
    back_s: float = 0.0  # not started again before this
    ours: bool = True  # whether we ended it
    starts: int = 0
    unasked: list[int] = field(default_factory=list)  # exit codes that nobody asked for

    def start(self) -> None:
        self.starts += 1
        self.ours = False
        with self.log.open("ab") as output:
            self.process = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=self.environment,
                start_new_session=True,
            )

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    @property
    def found(self) -> Found | None:
        if not self.alive or self.process is None:
            return None
        ticks = start_ticks(self.process.pid)
        return None if ticks is None else Found(self.name, self.process.pid, ticks)

    def kill(self, away_s: float) -> bool:
        """SIGKILL; it is not started again for so long."""
        if not self.alive or self.process is None:
            return False
        self.ours = True
        self.back_s = time.monotonic() + away_s
        self.process.kill()
        self.process.wait()
        return True

    def keep(self) -> int | None:
        """Start it if it should run and does not; the exit code if it had ended by itself."""
        code = None if self.process is None else self.process.poll()
        if self.process is not None and code is None:
            return None
        told = None
        if code is not None and not self.ours:
            self.unasked.append(code)
            self.ours, self.back_s, told = True, time.monotonic() + 0.5, code
        if time.monotonic() >= self.back_s:
            self.start()
        return told

    def end(self, patience_s: float = 20.0) -> None:
        """Politely, then not."""
        if self.process is None:
            return
        self.ours = True
        for number in (signal.SIGCONT, signal.SIGTERM):
            if self.process.poll() is None:
                self.process.send_signal(number)
        try:
            self.process.wait(patience_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class Traces:
    """The workers of one agent's folder, found by their claims."""

    def __init__(self, node: str, folder: Path) -> None:
        self.node = node
        self.folder = folder
        self._known: dict[tuple[int, int], tuple[int, int]] = {}  # shim -> its worker

    def shims(self) -> dict[tuple[str, int], Found]:
        found = {}
        with suppress(OSError):
            for path in (self.folder / "workers").iterdir():
                job, _, number = path.name.rpartition(".")
                if not job or not number.isdigit() or path.name.startswith("."):
                    continue
                shim = self._shim(path)
                if shim is not None:
                    found[job, int(number)] = shim
        return found

    def _shim(self, path: Path) -> Found | None:
        try:
            claim = json.loads((path / "claim").read_text())
        except (OSError, ValueError):
            return None
        pid, ticks = int(claim["pid"]), int(claim["start_ticks"] or 0)
        return Found(f"{self.node}/{path.name}", pid, ticks) if start_ticks(pid) == ticks else None

    def workers(self) -> dict[tuple[str, int], Found]:
        """The workers themselves: the first child of a shim that leads its session. What a worker
        leaves behind becomes a child of its shim, too, until that has ended it."""
        found = {}
        for key, shim in self.shims().items():
            leading = []
            for pid in children(shim.pid):
                ticks = start_ticks(pid)
                with suppress(OSError):
                    if ticks is not None and os.getsid(pid) == pid:
                        leading.append((ticks, pid))
            if not leading:
                continue
            ticks, pid = min(leading)
            if self._known.setdefault((shim.pid, shim.ticks), (pid, ticks)) == (pid, ticks):
                found[key] = Found(shim.name, pid, ticks)
        return found

    def zygote(self) -> Found | None:
        """The process that holds warm workers, by what it wrote into its lock."""
        try:
            pid, ticks, _ = json.loads((self.folder / "zygote.lock").read_bytes())
        except (OSError, ValueError):
            return None
        return Found(f"{self.node}/zygote", pid, ticks) if start_ticks(pid) == ticks else None
