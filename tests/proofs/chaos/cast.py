"""Who plays: the hosts of the network, and who runs on which of them. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

DIRECTOR: Final = "director"  # looks on, and is never cut off
CLIENT: Final = "client"  # asks the gateway, and is never cut off from it
GATEWAY: Final = "gateway"
WRITER: Final = "writer"
# One replica fits on each machine, whatever else runs there: a service must outlive a machine.
MACHINE_CPU: Final = 3.0
MACHINE_BYTES: Final = 1 << 30
REPLICA_CPU: Final = 0.5
REPLICA_BYTES: Final = 700 << 20


@dataclass(frozen=True, slots=True)
class Cast:
    """The hosts. A conductor stands beside each coordinator."""

    servers: tuple[str, ...] = ("plane",)
    coordinators: tuple[str, ...] = ("c1", "c2")
    machines: tuple[str, ...] = ("a", "b", "c")

    @property
    def hosts(self) -> tuple[str, ...]:
        """All of them; the place of each gives its address."""
        return (
            *(DIRECTOR, CLIENT, GATEWAY, WRITER),
            *self.servers,
            *self.coordinators,
            *self.machines,
        )

    @property
    def struck(self) -> tuple[str, ...]:
        """Those whose links are cut."""
        return tuple(host for host in self.hosts if host not in (DIRECTOR, CLIENT))


ALONE: Final = Cast()
ENSEMBLE: Final = Cast(servers=("z1", "z2", "z3"))
