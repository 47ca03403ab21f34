"""Addresses: Envoy listens on them and connects to them, and knows no names."""

from __future__ import annotations

import ipaddress
import socket


def address_of(host: str) -> str:
    """The address of a host; an address is its own. `OSError`: nobody knows the name."""
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        return str(socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][4][0])
