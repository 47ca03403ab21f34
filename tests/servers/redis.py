"""A real Redis as a process on loopback. It keeps nothing over a kill."""

from __future__ import annotations

import shutil
import socket
from collections.abc import Sequence
from pathlib import Path

from tests.servers.process import ServerProcess

INSTALL = "apt-get install -y --no-install-recommends redis-server"


def redis_missing() -> str:
    """Why a real Redis cannot be started here, with the command that mends it; else empty."""
    if shutil.which("redis-server") is None:
        return f"Redis is not installed; as root: {INSTALL}"
    return ""


class RedisServer(ServerProcess):
    """One Redis. `options` are its own: `("--maxmemory", "1mb")`."""

    def __init__(self, folder: Path, *options: str) -> None:
        super().__init__(folder)
        self.options = options

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def command(self) -> Sequence[str]:
        where = ["--bind", "127.0.0.1", "--port", str(self.port), "--dir", str(self.folder)]
        return ["redis-server", *where, "--save", "", "--appendonly", "no", *self.options]

    def ready(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=2) as link:
                link.sendall(b"PING\r\n")
                return link.recv(64)[:1] in (b"+", b"-")
        except OSError:
            return False
