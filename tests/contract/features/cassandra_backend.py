"""A node of Cassandra alone, and a ring of three: for the contract of online stores."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from holdfast.features.online.opening import open_store
from holdfast.features.online.store import OnlineStore
from tests.contract.features.backends import BackendKind
from tests.servers.cassandra import CassandraRing, CassandraServer, cassandra_missing


@dataclass(frozen=True)
class NodesBackend:
    """Nodes of one ring, all of which a test disturbs at once."""

    name: str
    nodes: list[CassandraServer]
    ring: CassandraRing | None = None
    strong: bool = True

    def open(self) -> OnlineStore:
        return open_store(f"cassandra://{','.join(node.hosts for node in self.nodes)}")

    def kill(self) -> None:
        for node in self.nodes:
            node.kill()

    def start(self) -> None:
        if self.ring is None:
            self.nodes[0].start()
        else:
            self.ring.start()

    def pause(self) -> None:
        for node in self.nodes:
            node.pause()

    def resume(self) -> None:
        for node in self.nodes:
            node.resume()


@contextmanager
def _one(folder: Path) -> Iterator[NodesBackend]:
    node = CassandraServer(folder)
    try:
        yield NodesBackend("cassandra", [node.start()])
    finally:
        node.kill()


@contextmanager
def _three(folder: Path) -> Iterator[NodesBackend]:
    with CassandraRing(folder) as ring:
        yield NodesBackend("cassandra-ring", ring.nodes, ring)


KINDS: Final = (
    BackendKind("cassandra", _one, cassandra_missing, is_part=True),
    BackendKind("cassandra-ring", _three, cassandra_missing, is_part=True, large=True),
)
