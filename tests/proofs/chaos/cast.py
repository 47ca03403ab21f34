"""Who plays: the hosts of the network, and who runs on which of them. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

DIRECTOR: Final = "director"  # looks on, and is never cut off
CLIENT: Final = "client"  # asks the gateways
WRITER: Final = "writer"
STORE: Final = "store"
# One replica fits on each machine, whatever else runs there: a service must outlive a machine.
MACHINE_CPU: Final = 3.0
MACHINE_BYTES: Final = 1 << 30
REPLICA_CPU: Final = 0.5
REPLICA_BYTES: Final = 700 << 20


@dataclass(frozen=True, slots=True)
class Cast:
    """The hosts. A controller stands beside each coordinator, an Envoy beside each gateway.
    `store`: the host of the store's server; empty: the store is a folder that all hosts have."""

    servers: tuple[str, ...] = ("plane",)
    coordinators: tuple[str, ...] = ("c1", "c2")
    machines: tuple[str, ...] = ("a", "b", "c")
    gateways: tuple[str, ...] = ("g1", "g2")
    store: str = ""

    @property
    def hosts(self) -> tuple[str, ...]:
        """All of them; the place of each gives its address."""
        return (
            *(DIRECTOR, CLIENT, WRITER),
            *((self.store,) if self.store else ()),
            *self.gateways,
            *self.servers,
            *self.coordinators,
            *self.machines,
        )

    @property
    def struck(self) -> tuple[str, ...]:
        """Those whose links are cut. (The client loses one gateway at a time, and nobody else.)"""
        return tuple(host for host in self.hosts if host not in (DIRECTOR, CLIENT))

    @property
    def disks(self) -> tuple[str, ...]:
        """Those whose disks are filled: where something is promised of a full disk. A server of
        ZooKeeper's ends upon it; gateways are not tried here."""
        return (*(self.servers if len(self.servers) == 1 else ()), *self.machines)


ALONE: Final = Cast()
ENSEMBLE: Final = Cast(servers=("z1", "z2", "z3"))
