"""The coordination planes of the suite, and how each is disturbed."""

from __future__ import annotations

import json
import os
import signal
import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from holdfast.coordination import access
from tests.servers import ZooKeeperEnsemble, ZooKeeperServer
from tests.servers.process import four_letter_word
from tests.waiting import eventually

TICK_MS = 500
TIMEOUT_S = 6.0
# For who must not lose its session although servers and machine stand still for seconds.
STEADY_S = 30.0
PAUSE_S = 1.0


class Plane(Protocol):
    """A coordination plane under test."""

    kind: str
    disturbances: tuple[str, ...]

    def address(self, timeout_s: float = TIMEOUT_S) -> str:
        """What `connect` is given."""

    def a_port(self) -> int:
        """The port of one of its servers, for a proxy in front of it."""

    def by_port(self, port: int, timeout_s: float = TIMEOUT_S) -> str:
        """The address of the same plane through that port."""

    def disturb(self, how: str) -> None:
        """Do it, and return when the plane could work again; clients may still be finding out."""

    def end(self) -> None:
        """Leave no process behind."""


class EmbeddedPlane:
    """The embedded server, started by whoever connects first."""

    kind = "embedded"
    disturbances: tuple[str, ...] = ("kill the server", "pause the server")

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def address(self, timeout_s: float = TIMEOUT_S) -> str:
        return f"embedded:{self._folder}?timeout_s={timeout_s}&tick_ms={TICK_MS}&linger_s=20"

    def by_port(self, port: int, timeout_s: float = TIMEOUT_S) -> str:
        return f"zk://127.0.0.1:{port}?timeout_s={timeout_s}&secret_file={self._folder}/access"

    def a_port(self) -> int:
        return int(self._record()["address"].rpartition(":")[2])

    def pid(self) -> int:
        return int(self._record()["pid"])

    def disturb(self, how: str) -> None:
        pid = self.pid()
        if how == "kill the server":
            os.kill(pid, signal.SIGKILL)
            eventually(lambda: self._living() not in (None, pid), "a client starts it again")
        else:
            os.kill(pid, signal.SIGSTOP)
            time.sleep(PAUSE_S)  # pause: the disturbance
            os.kill(pid, signal.SIGCONT)

    def end(self) -> None:
        pid = self._living()
        if pid is not None:
            os.kill(pid, signal.SIGKILL)

    def _living(self) -> int | None:
        """The server that holds the folder: the one that its record names, if it lives."""
        try:
            pid = self.pid()
            os.kill(pid, 0)
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (OSError, ValueError, KeyError):
            return None
        return None if state == "Z" else pid

    def _record(self) -> dict[str, str]:
        found: dict[str, str] = json.loads((self._folder / "server.json").read_text())
        return found


class ZooKeeperPlane:
    """One ZooKeeper server; each test has a root of its own."""

    kind = "zookeeper"
    disturbances: tuple[str, ...] = ("kill the server", "pause the server")

    def __init__(self, servers: Sequence[ZooKeeperServer]) -> None:
        self._servers = servers
        for server in servers:
            if server.process is None or server.process.poll() is not None:
                server.start()
        self._root = f"/test-{uuid.uuid4().hex[:8]}"
        self._secret = servers[0].folder / self._root.strip("/")
        access.kept(self._secret)

    def address(self, timeout_s: float = TIMEOUT_S) -> str:
        hosts = ",".join(server.hosts for server in self._servers)
        return f"zk://{hosts}{self._root}?{self._query(timeout_s)}"

    def by_port(self, port: int, timeout_s: float = TIMEOUT_S) -> str:
        return f"zk://127.0.0.1:{port}{self._root}?{self._query(timeout_s)}"

    def _query(self, timeout_s: float) -> str:
        return f"timeout_s={timeout_s}&secret_file={self._secret}"

    def a_port(self) -> int:
        return self._servers[0].port

    def disturb(self, how: str) -> None:
        (server,) = self._servers
        if how == "kill the server":
            server.kill()
            server.start()
            return
        server.pause()
        time.sleep(PAUSE_S)  # pause: the disturbance
        server.resume()

    def end(self) -> None:
        """The server stays for the next test."""


class EnsemblePlane(ZooKeeperPlane):
    """Three ZooKeeper servers."""

    kind = "ensemble"
    disturbances: tuple[str, ...] = ("kill the leader", "pause the leader", "pause a follower")

    def __init__(self, ensemble: ZooKeeperEnsemble) -> None:
        self._ensemble = ensemble.whole()
        super().__init__(ensemble.servers)

    def a_port(self) -> int:
        return self._ensemble.followers()[0].port

    def disturb(self, how: str) -> None:
        leader = self._ensemble.leader()
        if how == "kill the leader":
            leader.kill()
            self._await_leader(lambda port: port != leader.port)
            leader.launch()
            leader.wait_ready()
            return
        server = leader if how == "pause the leader" else self._ensemble.followers()[0]
        server.pause()
        time.sleep(PAUSE_S)  # pause: the disturbance
        server.resume()
        self._await_leader(lambda port: True)

    def end(self) -> None:
        """The servers stay for the next test, whole."""
        self._await_leader(lambda port: True)

    def _await_leader(self, suits: Callable[[int], bool]) -> None:
        def there() -> bool:
            ports = [server.port for server in self._ensemble.servers if server.process]
            modes = {port: four_letter_word(port, "srvr") for port in ports}
            leading = [port for port, mode in modes.items() if "Mode: leader" in mode]
            return len(leading) == 1 and suits(leading[0])

        try:
            eventually(there, "the ensemble has a leader")
        except AssertionError as error:
            error.add_note(self._ensemble.output())
            raise
