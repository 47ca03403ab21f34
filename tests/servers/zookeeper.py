"""A real ZooKeeper, alone or as an ensemble, from Debian's package."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

from tests.servers.process import READY_S, ServerProcess, four_letter_word, free_port

JARS = Path("/usr/share/java")
INSTALL = "apt-get install -y --no-install-recommends zookeeper"
# Sessions that outlive a machine that stands still; ZooKeeper's own limit is twenty ticks.
SESSION_MAX_MS = 60_000


def class_path() -> str:
    """The jars of Debian's package, without the versioned twins of each."""
    names = ["zookeeper.jar", "zookeeper-jute.jar", "slf4j-api.jar", "slf4j-simple.jar"]
    jars = [JARS / name for name in names if (JARS / name).exists()]
    jars += sorted(JARS.glob("netty-*.jar"))
    return os.pathsep.join(str(jar) for jar in jars)


def zookeeper_missing() -> str:
    """Why a real ZooKeeper cannot be started here, with the command that mends it; else empty."""
    if not (JARS / "zookeeper.jar").exists():
        return f"ZooKeeper is not installed; as root: {INSTALL}"
    if shutil.which("java") is None:
        return "java is not installed; as root: apt-get install -y default-jre-headless"
    return ""


class ZooKeeperServer(ServerProcess):
    """One ZooKeeper server. `options` go to zoo.cfg, `properties` to the JVM."""

    def __init__(
        self,
        folder: Path,
        port: int | None = None,
        options: Mapping[str, object] | None = None,
        properties: Mapping[str, object] | None = None,
        *,
        host: str = "127.0.0.1",
    ) -> None:
        super().__init__(folder, port, host=host)
        self.properties = dict(properties or {})
        data = folder / "data"
        data.mkdir(exist_ok=True)
        settings: dict[str, object] = {
            "tickTime": 2000,
            "dataDir": data,
            "clientPort": self.port,
            "clientPortAddress": host,
            "maxClientCnxns": 0,
            "admin.enableServer": "false",
            "4lw.commands.whitelist": "*",
            "extendedTypesEnabled": "true",
            **(options or {}),
        }
        lines = [f"{key}={value}\n" for key, value in settings.items()]
        (folder / "zoo.cfg").write_text("".join(lines))

    def command(self) -> Sequence[str]:
        properties = {
            "zookeeper.extendedTypesEnabled": "true",
            "org.slf4j.simpleLogger.defaultLogLevel": "warn",
            **self.properties,
        }
        switches = [f"-D{key}={value}" for key, value in properties.items()]
        return [
            "java",
            "-Xmx512m",
            "-XX:+UseSerialGC",
            "-XX:TieredStopAtLevel=4",
            *switches,
            "-cp",
            class_path(),
            "org.apache.zookeeper.server.quorum.QuorumPeerMain",
            str(self.folder / "zoo.cfg"),
        ]


class ZooKeeperEnsemble:
    """Several ZooKeeper servers that elect a leader among them. `hosts`: an address for each."""

    def __init__(
        self, folder: Path, size: int = 3, tick_ms: int = 500, *, hosts: Sequence[str] = ()
    ) -> None:
        addresses = list(hosts) or ["127.0.0.1"] * size
        clients = [free_port() for _ in range(size)]
        peers = [(free_port(), free_port()) for _ in range(size)]
        members = {
            f"server.{n}": f"{addresses[n - 1]}:{quorum}:{election}"
            for n, (quorum, election) in enumerate(peers, start=1)
        }
        self.servers: list[ZooKeeperServer] = []
        for number, port in enumerate(clients, start=1):
            limits = {"initLimit": 20, "syncLimit": 8, "maxSessionTimeout": SESSION_MAX_MS}
            options = {"tickTime": tick_ms, **limits, **members}
            server = ZooKeeperServer(
                folder / f"server-{number}", port, options, host=addresses[number - 1]
            )
            (server.folder / "data" / "myid").write_text(str(number))
            self.servers.append(server)

    @property
    def hosts(self) -> str:
        return ",".join(server.hosts for server in self.servers)

    def start(self) -> Self:
        return self.whole()

    def whole(self) -> Self:
        """Start again who is not there, so that a test begins with all of them."""
        for server in self.servers:
            if server.process is None or server.process.poll() is not None:
                server.launch()
        for server in self.servers:
            server.wait_ready(READY_S)
        return self

    def stop(self) -> None:
        for server in self.servers:
            server.kill()

    def output(self) -> str:
        """The end of what each of them said."""
        return "\n".join(f"--- {one.hosts}\n{one.output()}" for one in self.servers)

    def leader(self) -> ZooKeeperServer:
        """The server that leads now."""
        for server in self.servers:
            if server.process and "Mode: leader" in four_letter_word(
                server.port, "srvr", host=server.host
            ):
                return server
        raise RuntimeError("the ensemble has no leader now")

    def followers(self) -> list[ZooKeeperServer]:
        leader = self.leader()
        return [server for server in self.servers if server is not leader and server.process]

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *exc: object) -> None:
        self.stop()
