"""Our own server, started as its users start it: a process over a data folder."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from tests.servers.process import ServerProcess


class EmbeddedServer(ServerProcess):
    """`python -m holdfast.coordination.embedded` over `folder/data`, open to everybody as a fresh
    ZooKeeper is unless it is told not to be."""

    def __init__(
        self,
        folder: Path,
        port: int | None = None,
        options: Sequence[str] = (),
        *,
        host: str = "127.0.0.1",
        is_open: bool = True,
    ) -> None:
        super().__init__(folder, port, host=host)
        self.options = (*options, "--open") if is_open else tuple(options)

    @property
    def data(self) -> Path:
        return self.folder / "data"

    def command(self) -> Sequence[str]:
        module = "holdfast.coordination.embedded"
        where = ["--data", str(self.data), "--listen", self.hosts]
        return [sys.executable, "-m", module, *where, *self.options]
