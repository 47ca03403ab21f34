"""A run of the bench: what its sections share. Whatever was started ends with it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Self

from bench.coordination import contestants
from bench.coordination.generator import LoadGenerator
from bench.coordination.plan import Plan
from tests.servers import ServerProcess


class Bench:
    """Servers and load generators of one run, below one folder: all data on the same disk."""

    def __init__(
        self, plan: Plan, folder: Path, names: list[str], say: Callable[[str], None]
    ) -> None:
        self.plan = plan
        self.folder = folder
        self.names = names
        self.say = say
        self.loaded: dict[str, ServerProcess] = {}
        self._warm: dict[str, ServerProcess] = {}
        self._generators: list[LoadGenerator] = []

    def generators(self, count: int) -> list[LoadGenerator]:
        """The first `count` load generators; each is started when it is first needed."""
        while len(self._generators) < count:
            self._generators.append(LoadGenerator(f"client-{len(self._generators)}"))
        return self._generators[:count]

    def warm_servers(self) -> dict[str, ServerProcess]:
        """The servers as they come, started and warmed up once."""
        (generator,) = self.generators(1)
        for name in self.names:
            if name not in self._warm:
                self.say(f"warming up {name}")
                server = contestants.make(name, self.folder / f"{name}-warm")
                self._warm[name] = server
                server.start()
                generator.call("warm", port=server.port, seconds=self.plan.warm_up_s)
        return self._warm

    def start_loaded(self, name: str) -> ServerProcess:
        """A fresh server for the many nodes."""
        server = contestants.make(name, self.folder / f"{name}-loaded")
        self.loaded[name] = server
        return server.start()

    def restart_loaded(self, name: str, snapshot_every: int) -> ServerProcess:
        """The server with the many nodes, ended and started again with another setting."""
        self.loaded[name].stop()
        server = contestants.make(name, self.folder / f"{name}-loaded", snapshot_every)
        self.loaded[name] = server
        return server.start()

    def rest(self) -> None:
        """End the servers that are only in the way of what follows."""
        for name, server in self._warm.items():
            for generator in self._generators:
                generator.call("leave", port=server.port)
            self.say(f"ending {name}")
            server.stop()
        self._warm = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        for generator in self._generators:
            generator.stop()
        for server in [*self._warm.values(), *self.loaded.values()]:
            # Politely: a process that makes a snapshot for it then ends with it, and nobody
            # writes to the folder any more.
            server.stop()
