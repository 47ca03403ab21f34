"""Real servers for tests and benches: ours, and ZooKeeper's. All on loopback, each a process."""

from tests.servers.embedded import EmbeddedServer
from tests.servers.process import ServerProcess, free_port, port_block
from tests.servers.zookeeper import ZooKeeperEnsemble, ZooKeeperServer, zookeeper_missing

__all__ = [
    "EmbeddedServer",
    "ServerProcess",
    "ZooKeeperEnsemble",
    "ZooKeeperServer",
    "free_port",
    "port_block",
    "zookeeper_missing",
]
