"""Whole frames over a socket, for whoever stands between client and server, or speaks for one."""

from __future__ import annotations

import socket
import struct


def read(link: socket.socket) -> bytes | None:
    head = _exactly(link, 4)
    if head is None:
        return None
    body = _exactly(link, struct.unpack("!i", head)[0])
    return None if body is None else head + body


def _exactly(link: socket.socket, count: int) -> bytes | None:
    data = b""
    while len(data) < count:
        try:
            chunk = link.recv(count - len(data))
        except OSError:
            return None
        if not chunk:
            return None
        data += chunk
    return data


def send(link: socket.socket, data: bytes) -> bool:
    try:
        link.sendall(data)
    except OSError:
        return False
    return True


def end(link: socket.socket) -> None:
    try:
        link.shutdown(socket.SHUT_RDWR)
    except OSError:
        return
    finally:
        link.close()
