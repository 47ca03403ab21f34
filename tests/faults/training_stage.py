"""The stage of `members_stage` for trainings with torch: its workers are forked, not started."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from holdfast.storage import Part, open_store
from holdfast.storage.manifests import Manifest, write_manifest
from tests.faults.members_stage import JOB, ROOT, Stage

WAIT_S = 600.0  # eight workers with torch on two busy cores

# Importing torch takes seconds of a core, and minutes where twenty processes share one.
IMPORT_S = 600.0


class Forked:
    """A worker's process, with what a test needs of a `Popen`."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self.ended = threading.Event()

    def poll(self) -> int | None:
        return self.returncode

    def wait(self, timeout: float | None = None) -> int | None:
        assert self.ended.wait(timeout), f"process {self.pid} does not end"
        return self.returncode

    def send_signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Host:
    """The process that has imported torch."""

    def __init__(self, module: str = "tests.faults.training_host") -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}"},
        )
        self._started: queue.Queue[Forked] = queue.Queue()
        self._living: dict[int, Forked] = {}
        self._ready = threading.Event()
        threading.Thread(target=self._listen, daemon=True).start()

    def fork(
        self, environment: Mapping[str, str], output: Path, options: Mapping[str, Any]
    ) -> Forked:
        order = {"environment": environment, "output": str(output), "options": options}
        assert self._process.stdin is not None
        assert self._ready.wait(IMPORT_S), "the host does not come to its feet"
        self._process.stdin.write(json.dumps(order).encode() + b"\n")
        self._process.stdin.flush()
        return self._started.get(timeout=WAIT_S)

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for raw in self._process.stdout:
            said = json.loads(raw)
            if "ready" in said:
                self._ready.set()
            elif "started" in said:
                self._living[said["started"]] = forked = Forked(said["started"])
                self._started.put(forked)
            elif "pid" in said:
                ended = self._living.pop(said["pid"])
                ended.returncode = said["status"]
                ended.ended.set()

    def close(self) -> None:
        for forked in list(self._living.values()):
            forked.kill()
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(WAIT_S)
        self._process.stdout.close()


class TrainingStage(Stage):
    """Workers of one training. `options` are the scenario's."""

    def __init__(
        self, folder: Path, host: Host, *, lanes: int = 8, more: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(folder, lanes=lanes)
        self._host = host
        self._more = dict(more or {})
        self.options: dict[str, Any] = {}

    def wait(self, what: str, condition: Callable[[], object], within_s: float = WAIT_S) -> None:
        super().wait(what, condition, within_s)

    def spawn(self, command: Sequence[str], environment: Mapping[str, str], output: Path) -> Forked:
        return self._host.fork({**environment, **self._more}, output, self.options)

    def alone(self, name: str = "alone") -> dict[str, Any]:
        """The answer of one process without a cluster."""
        output = self.folder / name
        environment = {"HOLDFAST_LANES": str(self.lanes), **self._more}
        forked = self._host.fork(environment, output, {**self.options, "kills": []})
        assert forked.wait(WAIT_S) == 0, output.read_text()
        (answer,) = said("answer", output)
        return answer

    def train(self, members: Sequence[int]) -> list[dict[str, Any]]:
        """Undisturbed, from the beginning to the end, on these workers; their answers."""
        self.start(*members)
        self.move(members, restore=0)
        return self.answers()

    def commit_parts(self, step: int, shares: Mapping[int, tuple[Part, ...] | None]) -> str:
        """The key of the manifest of these shares."""
        assert self.view is not None
        parts = {number: found for number, found in shares.items() if found is not None}
        return write_manifest(open_store(self.store), Manifest(JOB, step, self.view.number, parts))

    def answers(self) -> list[dict[str, Any]]:
        """Wait for the end, and let everyone go; what the last members say."""
        self.wait("all wait at the end", lambda: all(w.said.get("ending") for w in self._members()))
        found = [said("answer", worker.output)[-1] for worker in self._members()]
        self.end(found[0]["step"])
        return found


def said(kind: str, output: Path) -> list[dict[str, Any]]:
    """What a worker has said of this kind, in order."""
    lines = output.read_text().splitlines()
    return [json.loads(line.removeprefix(f"{kind} ")) for line in lines if line.startswith(kind)]


def consumed(folder: Path) -> list[dict[str, Any]]:
    """What all workers have written of the batches that they computed."""
    return [
        json.loads(line)
        for path in sorted(folder.glob("*.jsonl"))
        for line in path.read_text().splitlines()
    ]


@contextlib.contextmanager
def hosted(module: str = "tests.faults.training_host") -> Iterator[Host]:
    host = Host(module)
    try:
        yield host
    finally:
        host.close()
