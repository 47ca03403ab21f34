"""A ZooKeeper client over a plain socket: as little work per request as Python allows.

kazoo spends more time on a request than the server does; this client shows the server's own limit.
It checks every reply's number and error, and leaves the body to its caller.
"""

from __future__ import annotations

import math
import socket
import struct
import time
from collections.abc import Callable, Sequence
from typing import Final, Self

CREATE: Final = 1
DELETE: Final = 2
GET_DATA: Final = 4
SET_DATA: Final = 5
GET_CHILDREN: Final = 8
CLOSE: Final = -11
EVENT: Final = -1
NODE_EXISTS: Final = -110

# The most that ZooKeeper grants with its usual tick: nothing here pings.
SESSION_MS: Final = 40_000
ANSWER_S: Final = 60.0
RECEIVE_BYTES: Final = 1 << 18

_INT: Final = struct.Struct("!i")
_REQUEST: Final = struct.Struct("!iii")
_REPLY: Final = struct.Struct("!iiqi")
_CONNECT: Final = struct.Struct("!iiqiqi16s")
_OPEN_ACL: Final = b"\x00\x00\x00\x01\x00\x00\x00\x1f\x00\x00\x00\x05world\x00\x00\x00\x06anyone"


class Wrong(Exception):
    """A server's answer is not what the protocol, or the bench, expects."""


def text(value: bytes) -> bytes:
    """A string or a buffer: its length before it."""
    return _INT.pack(len(value)) + value


def get_body(path: bytes, *, watch: bool = False) -> bytes:
    return text(path) + (b"\x01" if watch else b"\x00")


def set_body(path: bytes, data: bytes) -> bytes:
    return text(path) + text(data) + _INT.pack(-1)


def create_body(path: bytes, data: bytes) -> bytes:
    return text(path) + text(data) + _OPEN_ACL + _INT.pack(0)


def delete_body(path: bytes) -> bytes:
    return text(path) + _INT.pack(-1)


def request(xid: int, operation: int, body: bytes) -> bytes:
    return _REQUEST.pack(len(body) + 8, xid, operation) + body


class Link:
    """One connection with a session. Requests may be sent ahead of their answers."""

    def __init__(self, port: int, answer_s: float = ANSWER_S) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=answer_s)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.buffer = b""
        self.xid = 0

    def greet(self) -> None:
        """Ask for a session."""
        self.socket.sendall(_CONNECT.pack(44, 0, 0, SESSION_MS, 0, 16, bytes(16)))

    def welcomed(self) -> None:
        """Wait for the session."""
        frame = self.frame()
        if len(frame) < 16 or not int.from_bytes(frame[8:16], "big"):
            raise Wrong("the server gave no session")

    def open(self) -> Self:
        self.greet()
        self.welcomed()
        return self

    def frame(self) -> bytes:
        """The next frame without its length, whatever it is."""
        while True:
            buffer = self.buffer
            if len(buffer) >= 4:
                end = 4 + int.from_bytes(buffer[:4], "big")
                if len(buffer) >= end:
                    self.buffer = buffer[end:]
                    return buffer[4:end]
            self.buffer += self.receive()

    def receive(self) -> bytes:
        chunk = self.socket.recv(RECEIVE_BYTES)
        if not chunk:
            raise Wrong("the server closed the connection")
        return chunk

    def send(self, operation: int, body: bytes) -> int:
        """Send one request; its number."""
        self.xid += 1
        self.socket.sendall(request(self.xid, operation, body))
        return self.xid

    def answer(self, xid: int) -> tuple[int, bytes]:
        """The error and the body of a reply; events before it are passed over."""
        while True:
            frame = self.frame()
            number = int.from_bytes(frame[:4], "big", signed=True)
            if number == xid:
                return int.from_bytes(frame[12:16], "big", signed=True), frame[16:]
            if number != EVENT:
                raise Wrong(f"the reply to request {xid} has number {number}")

    def call(self, operation: int, body: bytes) -> tuple[int, bytes]:
        return self.answer(self.send(operation, body))

    def expect(self, operation: int, body: bytes, allowed: Sequence[int] = (0,)) -> bytes:
        """One request that has to succeed; its reply's body."""
        error, answer = self.call(operation, body)
        if error not in allowed:
            raise Wrong(f"operation {operation} was answered with error {error}")
        return answer

    def pipeline(
        self,
        operation: int,
        body_of: Callable[[int], bytes],
        is_right: Callable[[int, bytes], bool],
        in_flight: int,
        count: int,
        until_s: float = math.inf,
    ) -> tuple[int, int]:
        """Keep `in_flight` requests on their way, up to `count` or until this perf_counter().

        Returns how many were answered, and how many of the answers were wrong.
        """
        assert not self.buffer, "replies of earlier requests are left"
        first, sent, done, wrong, buffer = self.xid + 1, 0, 0, 0, b""
        unpack, header = _REPLY.unpack_from, _REPLY.size
        while True:
            if sent < count and time.perf_counter() < until_s:
                room = range(sent, min(done + in_flight, count))
                frames = [request(first + i, operation, body_of(i)) for i in room]
                self.socket.sendall(b"".join(frames))
                sent += len(room)
            elif done == sent:
                break
            buffer += self.receive()
            at, length = 0, len(buffer)
            while length - at >= header:
                size, xid, _, error = unpack(buffer, at)
                end = at + 4 + size
                if end > length:
                    break
                if xid != first + done or error or not is_right(done, buffer[at + header : end]):
                    wrong += 1
                done += 1
                at = end
            buffer = buffer[at:]
        self.xid += sent
        return done, wrong

    def close(self) -> None:
        """End the session and the connection."""
        try:
            self.call(CLOSE, b"")
        finally:
            self.drop()

    def drop(self) -> None:
        """Close our end without a word."""
        self.socket.close()

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(self, kind: object, *exc: object) -> None:
        if kind is None:
            self.close()
        else:
            self.drop()


def make_path(link: Link, path: bytes) -> None:
    """Create a node and those above it, where they are missing."""
    parts = path.strip(b"/").split(b"/")
    for depth in range(1, len(parts) + 1):
        here = b"/" + b"/".join(parts[:depth])
        link.expect(CREATE, create_body(here, b""), (0, NODE_EXISTS))
