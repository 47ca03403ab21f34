"""Our Valkey, a Redis of Debian, and a cluster of six: for the contract of online stores."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from holdfast.features.address import FeaturesAddress
from holdfast.features.online.opening import open_store
from holdfast.features.online.store import OnlineStore
from tests.contract.features.backends import BackendKind
from tests.servers.redis import RedisServer, redis_missing
from tests.servers.redis_cluster import RedisCluster
from tests.servers.valkey import ValkeyServer, valkey_missing

# Six servers and their client on two busy cores.
CLUSTER_ANSWER_S: Final = 20.0


@dataclass(frozen=True)
class ServerBackend:
    """Servers that speak RESP, and where they are."""

    name: str
    server: ValkeyServer | RedisServer | RedisCluster
    address: FeaturesAddress
    strong: bool = False
    answer_s: float | None = None

    def open(self) -> OnlineStore:
        return open_store(self.address, answer_s=self.answer_s)

    def kill(self) -> None:
        self.server.kill()

    def start(self) -> None:
        self.server.start()

    def pause(self) -> None:
        self.server.pause()

    def resume(self) -> None:
        self.server.resume()


@contextmanager
def _valkey(folder: Path) -> Iterator[ServerBackend]:
    """Ours: everything is durable before it is acknowledged."""
    with ValkeyServer(folder) as server:
        yield ServerBackend("valkey", server, server.address, strong=True)


@contextmanager
def _redis(folder: Path) -> Iterator[ServerBackend]:
    """One that people run; it keeps nothing over a kill."""
    with RedisServer(folder) as server:
        where = FeaturesAddress.parse(f"redis://{server.hosts}?prefix=team:")
        yield ServerBackend("redis", server, where)


@contextmanager
def _redis_cluster(folder: Path) -> Iterator[ServerBackend]:
    """Six that people run. No replica takes over because a busy machine stood still."""
    with RedisCluster(folder, "--cluster-node-timeout", "60000") as cluster:
        where = FeaturesAddress.parse(f"redis://{cluster.hosts}?cluster=yes")
        yield ServerBackend("redis-cluster", cluster, where, answer_s=CLUSTER_ANSWER_S)


KINDS: Final = (
    BackendKind("valkey", _valkey, valkey_missing),
    BackendKind("redis", _redis, redis_missing),
    BackendKind("redis-cluster", _redis_cluster, redis_missing, large=True),
)
