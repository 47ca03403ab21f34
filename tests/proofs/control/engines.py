"""What the cluster stands on: a coordination plane and a store, embedded or real engines."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final, Protocol

from tests.servers import EmbeddedServer, ServerProcess, ZooKeeperEnsemble
from tests.servers.minio import MinioServer
from tests.servers.s3 import MotoServer, RcloneServer, S3Server, credentials

PLANES: Final = ("embedded", "ensemble")
STORES: Final = ("folder", "moto", "rclone", "minio")
# Short, so that a dead process is noticed within a short proof; a busy machine still holds it.
SESSION_S: Final = 4.0
ROOT: Final = "/proof"


class Plane(Protocol):
    """A coordination plane made of servers that can be killed."""

    servers: Sequence[ServerProcess]

    @property
    def hosts(self) -> str:
        """For a client of ZooKeeper's family, with the root."""

    @property
    def address(self) -> str:
        """For `holdfast.coordination.connect`."""

    def start(self) -> None: ...


class _Servers:
    def __init__(self, servers: Sequence[ServerProcess], hosts: str) -> None:
        self.servers = servers
        self._hosts = hosts

    @property
    def hosts(self) -> str:
        return f"{self._hosts}{ROOT}"

    @property
    def address(self) -> str:
        return f"zk://{self._hosts}{ROOT}?timeout_s={SESSION_S}"

    def start(self) -> None:
        for server in self.servers:
            server.launch()
        for server in self.servers:
            server.wait_ready()


def make_plane(kind: str, folder: Path) -> Plane:
    if kind == "ensemble":
        ensemble = ZooKeeperEnsemble(folder)
        return _Servers(ensemble.servers, ensemble.hosts)
    server = EmbeddedServer(folder, options=("--tick-ms", "500"))
    return _Servers([server], server.hosts)


_SERVERS: Final[dict[str, type[S3Server]]] = {
    "moto": MotoServer,
    "rclone": RcloneServer,
    "minio": MinioServer,
}


class Store:
    """Where parts lie. A real one has a server, which is not killed: moto's has no disk."""

    def __init__(self, kind: str, folder: Path) -> None:
        self._folder = folder
        self.server: S3Server | None = None
        if kind != "folder":
            self.server = _SERVERS[kind](folder)

    @property
    def address(self) -> str:
        if self.server is None:
            return f"file:{self._folder}"
        return self.server.address("proof")

    @property
    def environment(self) -> dict[str, str]:
        """What its clients need."""
        return credentials() if self.server is not None else {}

    def start(self) -> None:
        if self.server is None:
            self._folder.mkdir(parents=True, exist_ok=True)
        else:
            self.server.start()

    def end(self) -> None:
        if self.server is not None:
            self.server.kill()
