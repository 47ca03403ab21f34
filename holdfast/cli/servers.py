"""From an address to the servers behind it, without a session and without starting one."""

from __future__ import annotations

import ssl
from dataclasses import dataclass

from holdfast.coordination import access, launch, tls
from holdfast.coordination.address import SECRET, TLS, EmbeddedAddress, parse
from holdfast.wire.errors import Unavailable


@dataclass(frozen=True)
class ServerPlace:
    """Where one server listens."""

    host: str
    port: int
    tls: ssl.SSLContext | None = None


def with_scheme(address: str) -> str:
    """HOST:PORT is short for zk://HOST:PORT."""
    return address if ":/" in address or address.startswith("embedded:") else f"zk://{address}"


def places(address: str) -> list[ServerPlace]:
    """Every server that the address names."""
    found = parse(with_scheme(address))
    if isinstance(found, EmbeddedAddress):
        return [_of_folder(found)]
    context = None if found.tls is None else tls.context(found.tls, access.shown_to(found))
    return [ServerPlace(host, port, context) for host, port in found.hosts]


def _of_folder(address: EmbeddedAddress) -> ServerPlace:
    """A running server writes into its folder where it listens."""
    found = launch.find(address.folder)
    if found is None:
        raise Unavailable(
            f"no server runs over {address.folder}",
            why="a running server holds the folder's lock and keeps its address in it",
            fix=f"holdfast coord serve --data {address.folder}",
        )
    host, _, port = found.rpartition(":")
    context = None
    if launch.speaks_tls(address.folder):
        context = tls.context(TLS(verify=SECRET), access.shown_to(address))
    return ServerPlace(host.strip("[]"), int(port), context)
