"""Whose program listens at an address of this machine, as the system says it."""

from __future__ import annotations

import ipaddress
import socket
import sys
from pathlib import Path
from typing import Any, Final

_TABLES: Final = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
_LISTENS: Final = "0A"


def owner_of(address: tuple[Any, ...]) -> int | None:
    """The user whose program listens at `(host, port, ...)`; None: nobody does, it is another
    machine's, or this system does not tell."""
    asked, port = ipaddress.ip_address(str(address[0]).partition("%")[0]), int(address[1])
    for table in _TABLES:
        try:
            rows = table.read_text().splitlines()[1:]
        except OSError:
            continue
        for row in rows:
            fields = row.split()
            where, state, uid = fields[1], fields[3], fields[7]
            host, _, number = where.partition(":")
            if state == _LISTENS and int(number, 16) == port and _is(host, asked):
                return int(uid)
    return None


def _is(found: str, asked: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    """Whether a row of a table is about this address, or about all of the machine's."""
    packed = bytes.fromhex(found)
    if sys.byteorder == "little":  # each word of four bytes is as the machine keeps it
        packed = b"".join(packed[at : at + 4][::-1] for at in range(0, len(packed), 4))
    family = socket.AF_INET if len(packed) == 4 else socket.AF_INET6
    listens = ipaddress.ip_address(socket.inet_ntop(family, packed))
    if isinstance(listens, ipaddress.IPv6Address) and listens.ipv4_mapped is not None:
        listens = listens.ipv4_mapped
    return listens == asked or int(listens) == 0
