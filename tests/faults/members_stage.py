"""A stage for members: real workers of `examples/counter.py`, and a small stand-in for the agent.

It serves the sockets of the workers' links, gives them the views, settings and shares that a test
says, and hears what they say. Nothing is decided here except by the test.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from holdfast.control.decide.views import assign
from holdfast.storage import open_store
from holdfast.storage.manifests import Manifest, write_manifest
from holdfast.wire import worker_messages
from holdfast.wire.orders import Attempt, GiveSettings, GiveView, StopWorker, TakeShare, View
from holdfast.wire.reports import Part
from tests.faults.agent_end import AgentEnd
from tests.servers import free_port

ROOT = Path(__file__).parents[2]
WAIT_S = 120.0
JOB = "count"


class Worker(AgentEnd):
    """A worker's process, and the agent's end of its link."""

    def __init__(self, stage: Stage, number: int, command: Sequence[str]) -> None:
        super().__init__(stage.folder / f"worker-{number}", stage.news)
        self.number = number
        self.port = free_port()
        self.output = self.folder / "output"
        environment = {
            worker_messages.FOLDER_VARIABLE: str(self.folder),
            worker_messages.JOB_VARIABLE: JOB,
            worker_messages.WORKER_VARIABLE: str(number),
            worker_messages.PORTS_VARIABLE: str(self.port),
            worker_messages.HOST_VARIABLE: "127.0.0.1",
            worker_messages.STORE_VARIABLE: stage.store,
            worker_messages.LANES_VARIABLE: str(stage.lanes),
        }
        self.process = stage.spawn(command, environment, self.output)

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        self.process.kill()
        self.process.wait(WAIT_S)

    def close(self) -> None:
        if self.alive:
            self.kill()
        super().close()


class Stage:
    """Workers of one job. A view's lanes are given as the control plane would."""

    def __init__(
        self, folder: Path, *, lanes: int = 8, steps: int = 60, step_ms: float = 10
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.store = f"file:{folder / 'store'}"
        self.lanes = lanes
        self.answer = folder / "answer.json"
        self.command = [
            *(str(ROOT / "examples" / "counter.py"), "--steps", str(steps)),
            *("--step-ms", str(step_ms), "--answer", str(self.answer)),
        ]
        self.workers: dict[int, Worker] = {}
        self.view: View | None = None
        self.settings: list[tuple[str, str, int]] = []
        self.addresses: dict[int, str] = {}  # where a test wants a worker to be met
        self._former: set[int] = set()
        self._attempts = 0
        self._changed = threading.Condition()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, failed: object, *exc: object) -> None:
        for worker in self.workers.values():
            worker.close()
        if failed is not None:
            for worker in self.workers.values():
                print(f"--- worker {worker.number}: {worker.said}")
                print(worker.output.read_text()[-3000:])

    def spawn(self, command: Sequence[str], environment: Mapping[str, str], output: Path) -> Any:
        """A worker's process; a `Popen`, or what is like one."""
        with output.open("wb") as file:
            return subprocess.Popen(
                [sys.executable, *command],
                env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
                stdout=file,
                stderr=subprocess.STDOUT,
                cwd=ROOT,
            )

    def news(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def wait(self, what: str, condition: Callable[[], object], within_s: float = WAIT_S) -> None:
        """Until it is true."""
        until_s = time.monotonic() + within_s
        with self._changed:
            while not condition():
                left_s = until_s - time.monotonic()
                assert left_s > 0, f"not within {within_s} s: {what}"
                self._changed.wait(min(left_s, 0.05))

    def start(self, *numbers: int, more: Iterable[str] = ()) -> None:
        """Start these workers, and wait until they are ready."""
        for number in numbers:
            self.workers[number] = Worker(self, number, [*self.command, *more])
        self.wait(
            f"workers {numbers} are ready",
            lambda: all(self.workers[number].said.get("ready") for number in numbers),
        )

    def next_view(
        self, members: Iterable[int], *, restore: int | None = None, manifest: str = ""
    ) -> View:
        """The next view, not given to anybody yet."""
        members = sorted(members)
        before: Mapping[int, tuple[int, ...]] = self.view.lanes if self.view else {}
        self._former = set(before)
        addresses = {n: f"127.0.0.1:{self.workers[n].port}" for n in members}
        addresses.update((n, self.addresses[n]) for n in members if n in self.addresses)
        number = self.view.number + 1 if self.view else 1
        lanes = assign(self.lanes, members, before)
        self.view = View(number, lanes, restore, manifest, addresses, len(self.settings))
        return self.view

    def give(self, *to: int) -> None:
        """Give the present view (and the settings) to these; to nobody in particular: to all that
        live and are in it, or were in the one before."""
        assert self.view is not None
        concerned = {*self.view.lanes, *self._former}
        for number in to or [n for n in sorted(concerned) if self.workers[n].alive]:
            self.workers[number].tell(GiveSettings("n", JOB, number, tuple(self.settings)))
            self.workers[number].tell(GiveView("n", JOB, number, self.view))

    def move(
        self, members: Iterable[int], *, restore: int | None = None, manifest: str = ""
    ) -> None:
        """The next view, given to all that live."""
        self.next_view(members, restore=restore, manifest=manifest)
        self.give()

    def wait_for_step(self, step: int, *numbers: int) -> None:
        wanted = numbers or tuple(self.members)
        self.wait(
            f"workers {wanted} are at step {step}",
            lambda: all(self.workers[number].step >= step for number in wanted),
        )

    def wait_for_adoption(self) -> None:
        """All members hold the state in the present view."""
        view = self.view
        assert view is not None
        self.wait(
            f"all have adopted view {view.number}",
            lambda: all(
                self.workers[n].said.get("view", 0) >= view.number and self.workers[n].step >= 0
                for n in view.lanes
            ),
        )

    @property
    def members(self) -> list[int]:
        assert self.view is not None
        return sorted(self.view.lanes)

    @property
    def step(self) -> int:
        return max(worker.step for worker in self.workers.values())

    def checkpoint(self, step: int) -> int:
        """Ask the members of the present view for their shares of this step; the attempt."""
        assert self.view is not None
        self._attempts += 1
        attempt = Attempt(self._attempts, step, self.view.number, 0.0)
        for share, number in enumerate(self.members):
            order = TakeShare("n", JOB, number, attempt, share, len(self.members))
            self.workers[number].tell(order)
        return self._attempts

    def shares(self, attempt: int) -> dict[int, tuple[Part, ...] | None]:
        """Wait until every member has answered."""
        self.wait(
            f"all have answered attempt {attempt}",
            lambda: all(attempt in self.workers[number].parts for number in self.members),
        )
        return {number: self.workers[number].parts[attempt] for number in self.members}

    def commit(self, attempt: int, step: int) -> str:
        """The key of the manifest, once all shares are there."""
        assert self.view is not None
        shares = {n: parts for n, parts in self.shares(attempt).items() if parts is not None}
        assert sorted(shares) == self.members, "somebody has missed the step"
        manifest = Manifest(JOB, step, self.view.number, shares)
        return write_manifest(open_store(self.store), manifest)

    def end(self, step: int) -> str:
        """The job's last step is made: commit it, let everyone go, as the coordinator does."""
        self.wait("all wait at the end", lambda: all(w.said.get("ending") for w in self._members()))
        attempt = self.checkpoint(step)
        manifest = self.commit(attempt, step)
        for worker in self._members():
            worker.tell(StopWorker("n", JOB, worker.number, 60.0))
        self.wait("all are gone", lambda: not any(worker.alive for worker in self._members()))
        assert [worker.process.returncode for worker in self._members()] == [0] * len(self.members)
        # Not "done": whether it was asked to leave because of the commit it cannot know.
        assert [worker.word for worker in self._members()] == ["left"] * len(self.members)
        return manifest

    def _members(self) -> list[Worker]:
        return [self.workers[number] for number in self.members]

    def right_answer(self, *more: str) -> dict[str, Any]:
        """What `--expected` says."""
        options = [*self.command[:-2], "--expected", "--lanes", str(self.lanes), *more]
        done = subprocess.run(
            [sys.executable, *options],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=True,
            cwd=ROOT,
        )
        found: dict[str, Any] = json.loads(done.stdout.removeprefix("answer "))
        return found

    def the_answer(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.answer.read_text())
        return found
