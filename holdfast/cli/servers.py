"""From an address to the servers behind it, without a session and without starting one."""

from __future__ import annotations

import ssl
from dataclasses import dataclass

from holdfast.coordination import launch
from holdfast.coordination.address import TLS, EmbeddedAddress, ZooKeeperAddress, parse
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
    return [ServerPlace(host, port, _context(found)) for host, port in found.hosts]


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
    return ServerPlace(host.strip("[]"), int(port))


def _context(address: ZooKeeperAddress) -> ssl.SSLContext | None:
    tls: TLS | None = address.tls
    if tls is None:
        return None
    context = ssl.create_default_context(cafile=tls.ca)
    if tls.verify != "host":
        context.check_hostname = False
    if tls.verify == "none":
        context.verify_mode = ssl.CERT_NONE
    if tls.cert is not None:
        context.load_cert_chain(tls.cert, tls.key)
    return context
