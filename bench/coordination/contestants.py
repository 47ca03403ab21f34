"""The servers that are measured, as processes: ours, and ZooKeeper as its own script starts it."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Self

from bench.coordination import fill, wire
from bench.coordination.report import OURS, THEIRS
from bench.coordination.wire import Link, Wrong
from tests.servers import EmbeddedServer, ServerProcess, ZooKeeperServer, zookeeper_missing

START_S_MAX: Final = 120.0
# A snapshot after so many transactions is a snapshot never.
NEVER: Final = 1_000_000_000


class ZooKeeper(ZooKeeperServer):
    """ZooKeeper with the Java switches of its own zkServer.sh: a heap of 1000 MB, no others."""

    def command(self) -> Sequence[str]:
        kept = [word for word in super().command() if not word.startswith(("-Xmx", "-XX:"))]
        return [kept[0], "-Xmx1000m", *kept[1:]]


def make(name: str, folder: Path, snapshot_every: int | None = None) -> ServerProcess:
    """A server over `folder`, not started. `snapshot_every` None: as it comes."""
    if name == OURS:
        options = ["--snapshot-every", str(snapshot_every)] if snapshot_every else []
        return EmbeddedServer(folder, options=options)
    properties = {"zookeeper.snapCount": snapshot_every} if snapshot_every else {}
    return ZooKeeper(folder, properties=properties)


def names(*, with_zookeeper: bool) -> list[str]:
    return [OURS, THEIRS] if with_zookeeper and not zookeeper_missing() else [OURS]


def answers(port: int) -> bool:
    """Whether the server opens a session and reads a loaded node for it."""
    try:
        link = Link(port)
    except OSError:
        return False
    try:
        link.open()
        error, data = link.call(wire.GET_DATA, wire.get_body(fill.path_of(0)))
        return not error and data.startswith(wire.text(fill.data_of(0)))
    except (OSError, Wrong):
        return False
    finally:
        link.drop()


def time_start(server: ServerProcess) -> float:
    """Start a server that holds loaded nodes; seconds until it has answered a read.

    A ZooKeeper that is not ready yet takes a session's request and never answers it, so each is
    asked first whether it is ready.
    """
    started = time.perf_counter()
    server.launch()
    while not (server.ready() and answers(server.port)):
        if time.perf_counter() - started > START_S_MAX or server.process is None:
            raise Wrong(f"the server does not answer {START_S_MAX} s after its start")
        if server.process.poll() is not None:
            raise Wrong(f"the server ended while it started:\n{server.output()}")
        time.sleep(0.002)
    return time.perf_counter() - started


def rss_bytes(pid: int) -> int:
    """Resident memory of a process; 0 once it is gone."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    sizes = [int(line.split()[1]) for line in lines if line.startswith("VmRSS:")]
    return sizes[0] * 1024 if sizes else 0


def family(pid: int) -> list[int]:
    """A process and its children."""
    found = [pid]
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            found += [int(word) for word in task.read_text().split()]
        except OSError:
            continue
    return found


def snapshots_in(folder: Path) -> set[str]:
    """Names of the finished snapshots of a server, ours or ZooKeeper's."""
    found = folder.glob("data/**/snapshot[-.]*")
    return {path.name for path in found if path.suffix != ".tmp"}


class Observer:
    """Looks at a server several times a second: its peak memory, and the snapshots it makes."""

    def __init__(self, server: ServerProcess) -> None:
        self.server = server
        self.peak_bytes = 0
        self._before = snapshots_in(server.folder)
        self._seen: set[str] = set()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    @property
    def snapshots(self) -> int:
        return len(self._seen - self._before)

    def _look(self) -> None:
        pid = self.server.pid
        while not self._stop.wait(0.1):
            self.peak_bytes = max(self.peak_bytes, sum(map(rss_bytes, family(pid))))
            self._seen |= snapshots_in(self.server.folder)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stop.set()
        self._thread.join()
        self._seen |= snapshots_in(self.server.folder)
