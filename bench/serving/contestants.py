"""Who serves: the peers. Each is set up as in its own documentation, for one model process.

All have the same model and answer the same body at the same path. A peer that batches does so for
the heavier model only, with batches of the same size. Nobody writes access logs, nobody's cores are
fixed; the load generator's core is.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import ClassVar, Final

from bench.serving import work
from bench.serving.checks import Right
from bench.serving.connections import Address
from bench.serving.replies import Check, Shot
from bench.serving.steady import run

ROOT: Final = Path(__file__).parents[2]
SCRIPTS: Final = Path(__file__).parent / "scripts"
RESULTS: Final = ROOT / "bench" / "results"
PEERS: Final = RESULTS / "peers"
# In the environment of every process of a contestant, and so of whatever they start.
MARK: Final = "BENCH_FOLDER"
START_S: Final = 120.0
END_S: Final = 20.0
REST_S: Final = 15.0
REST_LOOK_S: Final = 0.5
REST_LOOKS: Final = 3
REST_SHARE: Final = 0.1  # of a core


class Broken(Exception):
    """It does not run here, or does not answer; the text says what happened."""


class Contestant(ABC):
    """A server with its processes; `peer` is its environment below `PEERS`, empty: ours."""

    name = ""
    peer = ""
    binary = False  # it speaks the binary tensors of the protocol
    models: ClassVar[tuple[str, ...]] = ("small", "heavy")
    version = ""  # that its answers must name

    def __init__(self, folder: Path, model: str) -> None:
        folder.mkdir(parents=True)
        self.folder, self.model = folder, model
        self.log = folder / "log"
        self._children: list[subprocess.Popen[bytes]] = []
        self.address: Address = ("127.0.0.1", free_port())
        self.path = f"/v2/models/{model}/infer"

    @classmethod
    def missing(cls) -> str:
        """Why it cannot be measured; empty: it can."""
        if cls.peer and not (PEERS / cls.peer / "bin" / "python").exists():
            return f"not installed: .ci/peers {cls.peer}"
        return ""

    @abstractmethod
    def start(self) -> None:
        """Start its processes."""

    def close(self) -> None:
        """End its processes, and what they have started."""
        for child in self._children:
            if child.poll() is None:
                child.send_signal(signal.SIGTERM)
        deadline_s = time.monotonic() + END_S
        for child in self._children:
            try:
                child.wait(max(0.1, deadline_s - time.monotonic()))
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
            end_group(child.pid)

    def shot(self, binary: bool) -> Shot:
        if binary:
            body, headers = work.binary_body(self.model)
            return Shot(self.path, body, headers)
        return Shot(self.path, work.json_body(self.model))

    @property
    def check(self) -> Check:
        return Right(self.model, self.version)

    def await_ready(self, binary: bool) -> None:
        """Until it gives the right answer; `Broken` if it does not within `START_S`."""
        shot, said = self.shot(binary), ""
        deadline_s = time.monotonic() + START_S
        while time.monotonic() < deadline_s:
            for child in self._children:
                if child.poll() is not None:
                    raise Broken(f"it has ended with {child.returncode}: {self.last_words()}")
            found = run(
                self.address, shot.path, shot.body, 10, 0.05, self.check, headers=dict(shot.headers)
            )
            if found.sent and not found.failed:
                return
            said = next(iter(found.reasons), said)
            time.sleep(0.2)
        raise Broken(f"no right answer within {START_S:g} s ({said}): {self.last_words()}")

    def last_words(self) -> str:
        lines = self.log.read_text(errors="replace").splitlines() if self.log.exists() else []
        errors = [line for line in lines if "Error" in line or "error" in line]
        return " ".join((errors or lines or [""])[-1].split())[-200:]

    def spawn(self, command: Sequence[str | Path], **more: str) -> subprocess.Popen[bytes]:
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": str(ROOT),
            "BENCH_MODEL": self.model,
            MARK: str(self.folder),
            **more,
        }
        with self.log.open("ab") as log:
            child = subprocess.Popen(
                [str(word) for word in command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
                cwd=self.folder,
                start_new_session=True,
            )
        self._children.append(child)
        return child

    def program(self, name: str) -> Path:
        """A program of the peer's environment."""
        return PEERS / self.peer / "bin" / name


class LitServe(Contestant):
    name = "LitServe"
    peer = "litserve"
    queue = "plain"

    def start(self) -> None:
        words = [str(SCRIPTS / "lit.py"), str(self.address[1]), self.queue]
        self.spawn([self.program("python"), *words])


class LitServeFast(LitServe):
    name = "LitServe, fast_queue"
    queue = "fast"


class BentoML(Contestant):
    name = "BentoML"
    peer = "bentoml"

    def start(self) -> None:
        words = ["serve", "bench.serving.scripts.bento:Service"]
        words += ["--host", "127.0.0.1", "--port", str(self.address[1])]
        self.spawn([self.program("bentoml"), *words], BENTOML_DO_NOT_TRACK="true")


class MLServer(Contestant):
    name = "MLServer"
    peer = "mlserver"

    def start(self) -> None:
        settings = {
            "debug": False,
            "parallel_workers": 0,
            "gzip_enabled": False,
            "metrics_endpoint": None,
            "host": "127.0.0.1",
            "http_port": self.address[1],
            "grpc_port": free_port(),
        }
        (self.folder / "settings.json").write_text(json.dumps(settings))
        model: dict[str, object] = {"name": self.model}
        model["implementation"] = "bench.serving.scripts.mls.Runtime"
        if self.model == "heavy":
            model |= {"max_batch_size": work.BATCH_MAX, "max_batch_time": 0.005}
        home = self.folder / self.model
        home.mkdir()
        (home / "model-settings.json").write_text(json.dumps(model))
        self.spawn([self.program("mlserver"), "start", self.folder])


class RayServe(Contestant):
    name = "Ray Serve"
    peer = "rayserve"
    switches: ClassVar[dict[str, str]] = {}

    def start(self) -> None:
        # Its sockets' paths must be short.
        self._home = Path("/tmp", f"ray{os.getpid()}-{self.address[1]}")
        words = [str(SCRIPTS / "raying.py"), str(self.address[1]), self.model, str(self._home)]
        self.spawn([self.program("python"), *words], RAY_USAGE_STATS_ENABLED="0", **self.switches)

    def close(self) -> None:
        super().close()
        for pid in naming(str(self._home)):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        shutil.rmtree(self._home, ignore_errors=True)


class RayServeTuned(RayServe):
    name = "Ray Serve, tuned"
    switches: ClassVar[dict[str, str]] = {
        "RAY_SERVE_ENABLE_HA_PROXY": "1",
        "RAY_SERVE_THROUGHPUT_OPTIMIZED": "1",
    }


class Triton(Contestant):
    name = "Triton"
    peer = "triton"
    binary = True

    def start(self) -> None:
        words = [str(SCRIPTS / "triton.py"), str(self.address[1]), self.model]
        self.spawn([self.program("python"), *words])


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
        return port


def end_group(pid: int) -> None:
    """What the session that we had started there has left."""
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


def end_when_told() -> None:
    """Let SIGTERM end the bench as Ctrl-C does: with everything that it has started."""

    def end(number: int, _frame: object) -> None:
        raise SystemExit(128 + number)

    signal.signal(signal.SIGTERM, end)


def cpu_s(folder: Path) -> float:
    """The processor time that the living processes of a contestant have used so far."""
    mark, used = f"{MARK}={folder}\0".encode(), 0
    for home in Path("/proc").glob("[0-9]*"):
        try:
            if mark in (home / "environ").read_bytes() + b"\0":
                words = (home / "stat").read_text().rpartition(")")[2].split()
                used += int(words[11]) + int(words[12])
        except OSError:
            continue  # it has ended meanwhile, or is somebody else's
    return used / os.sysconf("SC_CLK_TCK")


def rest(folder: Path) -> None:
    """Wait until a contestant has finished starting: what it still imports would count as requests'
    work. At most `REST_S`: some are never quiet."""
    deadline_s = time.monotonic() + REST_S
    quiet, used_s = 0, cpu_s(folder)
    while quiet < REST_LOOKS and time.monotonic() < deadline_s:
        time.sleep(REST_LOOK_S)
        before_s, used_s = used_s, cpu_s(folder)
        quiet = quiet + 1 if used_s - before_s < REST_SHARE * REST_LOOK_S else 0


def naming(text: str) -> list[int]:
    """Processes whose command names this: a folder that was made for them alone."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if text.encode() in path.read_bytes():
                found.append(int(path.parent.name))
        except OSError:
            continue  # it has ended meanwhile
    return found
