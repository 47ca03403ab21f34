"""Who trains: ours, torchrun with DDP, and torchft. Each is started as its users start it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from bench.training.notes import Reader, parent_of
from holdfast.cluster import opened
from holdfast.launch import processes

ROOT: Final = Path(__file__).parents[2]
SCRIPTS: Final = Path(__file__).parent / "scripts"
PEERS: Final = ROOT / "bench" / "results" / "peers"
TORCHFT: Final = PEERS / "torchft" / "bin"
# The scripts of peers go back to their last checkpoint: a file of 12 MB every so many steps.
SAVE_EVERY_STEPS: Final = 50
END_S: Final = 20.0


class Contestant(ABC):
    """A training job with its processes. `begun_s`: when its command was started."""

    name = ""
    workers_min = 1

    def __init__(self, folder: Path, workers: int, words: Sequence[str] = ()) -> None:
        folder.mkdir(parents=True)
        self.folder, self.workers, self.words = folder, workers, list(words)
        self.notes = Reader(folder / "notes")
        self._children: list[subprocess.Popen[bytes]] = []
        self.begun_s = time.monotonic()
        self.start()

    @abstractmethod
    def start(self) -> None:
        """Start its command."""

    @abstractmethod
    def helper(self, kind: str) -> int | None:
        """The process of the `agent` or the `coordinator`; None: it has no such thing."""

    @abstractmethod
    def mind(self) -> None:
        """Start again what a supervisor of the machine would start again."""

    def owned(self, pid: int) -> bool:
        """Whether this worker is one of those that go on: torchrun's orphans are not."""
        return True

    @property
    def ended(self) -> bool:
        return all(child.poll() is not None for child in self._children)

    @property
    def log(self) -> Path:
        return self.folder / "log"

    def say_end(self, step: int) -> None:
        """Let every worker end with this step, which none has reached yet."""
        unfinished = self.notes.folder / "end.tmp"
        unfinished.write_text(str(step))
        unfinished.rename(self.notes.folder / "end")

    def close(self) -> None:
        """End everything that is still there."""
        self.notes.look()
        for number, patience_s in ((signal.SIGTERM, END_S), (signal.SIGKILL, END_S)):
            for child in self._children:
                if child.poll() is None:
                    child.send_signal(number)
            deadline_s = time.monotonic() + patience_s
            while not self.ended and time.monotonic() < deadline_s:
                time.sleep(0.05)
        for pid in self.notes.living():
            os.kill(pid, signal.SIGKILL)

    def _spawn(self, command: Sequence[str], **more: str) -> subprocess.Popen[bytes]:
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": str(ROOT),
            "GLOO_SOCKET_IFNAME": "lo",
            **more,
        }
        with self.log.open("ab") as log:
            child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
                cwd=ROOT,
            )
        self._children.append(child)
        return child

    def _script(self, name: str, *more: str) -> list[str]:
        return [str(SCRIPTS / name), "--notes", str(self.notes.folder), *more, *self.words]


class Ours(Contestant):
    """`holdfast run`: it starts a coordinator and an agent, and starts them again."""

    name = "ours"
    options: tuple[str, ...] = ()

    def start(self) -> None:
        script, *arguments = self._script("ours.py")
        options = ["--workers", str(self.workers), "--lanes", str(self.workers), *self.options]
        options += ["--dir", str(self.folder / "cluster"), "--json"]
        command = [sys.executable, "-m", "holdfast", "run", script, *options, "--", *arguments]
        self._spawn(command)

    def helper(self, kind: str) -> int | None:
        cluster = opened(self.folder / "cluster")
        return next((one.pid for one in processes.processes(cluster) if one.kind == kind), None)

    def mind(self) -> None:
        """Nothing: `holdfast run` does it itself."""


class Torchrun(Contestant):
    """One torchrun for all workers; or, to lose an agent, two with half of the workers each."""

    name = "torchrun"
    agents = 1
    conf: tuple[str, ...] = ()
    save_every = SAVE_EVERY_STEPS

    def start(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self._port = free.getsockname()[1]
        for number in range(self.agents):
            self._torchrun(number)

    def _torchrun(self, number: int) -> None:
        options = ["--nnodes", str(self.agents), "--nproc-per-node"]
        options += [str(self.workers // self.agents), "--max-restarts", "100"]
        options += ["--monitor-interval", "0.1", "--rdzv-backend", "c10d", "--rdzv-id", "bench"]
        options += ["--rdzv-endpoint", f"127.0.0.1:{self._port}", "--local-addr", "127.0.0.1"]
        is_host = "true" if number == 0 else "false"
        conf = [f"is_host={is_host}", *self.conf]
        options += ["--rdzv-conf", ",".join(conf)]
        command = [sys.executable, "-m", "torch.distributed.run", *options]
        self._spawn(command + self._script("ddp.py", "--save-every", str(self.save_every)))

    def helper(self, kind: str) -> int | None:
        """The first torchrun holds the meeting point of all: it is what a coordinator is."""
        place = {"coordinator": 0, "agent": self.agents - 1}[kind]
        return self._children[place].pid

    def mind(self) -> None:
        for number, child in enumerate(list(self._children)):
            if child.poll() == -signal.SIGKILL and number < self.agents:
                self._torchrun(number)
                self._children[number] = self._children.pop()

    def owned(self, pid: int) -> bool:
        return parent_of(pid) in {child.pid for child in self._children if child.poll() is None}


class TorchrunTwo(Torchrun):
    name = "torchrun, 2 agents"
    agents = 2


class TorchrunTuned(Torchrun):
    name = "torchrun, tuned"
    conf = ("keep_alive_interval=1", "keep_alive_max_attempt=3", "last_call_timeout=1")


class TorchrunTwoTuned(TorchrunTuned):
    name = "torchrun, 2 agents, tuned"
    agents = 2


class Torchft(Contestant):
    """A lighthouse, and for each worker a replica group under a torchrun of its own."""

    name = "torchft"
    workers_min = 3
    light: tuple[str, ...] = ("--join_timeout_ms", "10000")  # its examples' own; required
    times: tuple[str, ...] = ()

    def start(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self._port = free.getsockname()[1]
        self._lighthouse()
        for number in range(self.workers):
            self._replica(number)

    def _lighthouse(self) -> None:
        bind = f"127.0.0.1:{self._port}"
        words = [str(TORCHFT / "torchft_lighthouse"), "--bind", bind, "--min_replicas", "1"]
        self._spawn([*words, *self.light], RUST_LOG="warn")

    def _replica(self, number: int) -> None:
        options = ["--nproc-per-node", "1", "--max-restarts", "100", "--monitor-interval", "0.1"]
        options += ["--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0"]
        command = [str(TORCHFT / "python"), "-m", "torch.distributed.run", *options]
        self._spawn(
            [*command, *self._script("replicas.py", *self.times)],
            TORCHFT_LIGHTHOUSE=f"http://127.0.0.1:{self._port}",
            REPLICA_GROUP_ID=str(number),
            NUM_REPLICA_GROUPS=str(self.workers),
            RUST_LOG="warn",
        )

    def helper(self, kind: str) -> int | None:
        return self._children[0 if kind == "coordinator" else -1].pid

    def mind(self) -> None:
        for number, child in enumerate(list(self._children)):
            if child.poll() == -signal.SIGKILL and number <= self.workers:
                if number:
                    self._replica(number - 1)
                else:
                    self._lighthouse()
                self._children[number] = self._children.pop()


class TorchftTuned(Torchft):
    name = "torchft, tuned"
    light = ("--join_timeout_ms", "500", "--heartbeat_timeout_ms", "1000", "--quorum_tick_ms", "20")
    times = ("--group-s", "5", "--manager-s", "10")


def torchft_missing() -> str:
    """Why it cannot be measured; empty: it can."""
    if not (TORCHFT / "torchft_lighthouse").exists():
        return "torchft is not installed: .ci/peers"
    return ""
