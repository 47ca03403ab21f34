"""A small ZooKeeper client over a plain socket, for proofs.

It does nothing on its own: no retries, no pings, no hidden reconnects. The caller chooses every
xid and every byte and sees every frame in the order in which it came. It shares no code with the
server's own encoding, so that a mistake there cannot hide itself.
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Sequence
from typing import NamedTuple, Self

ANSWER_S = 60.0
NO_PASSWORD = bytes(16)
STAT = struct.Struct("!qqqqiiiqiiq")

OPEN_ACL = ((31, "world", "anyone"),)
AclEntry = tuple[int, str, str]


def integer(value: int) -> bytes:
    return struct.pack("!i", value)


def long(value: int) -> bytes:
    return struct.pack("!q", value)


def boolean(value: bool) -> bytes:
    return b"\x01" if value else b"\x00"


def buffer(value: bytes | None) -> bytes:
    return integer(-1) if value is None else integer(len(value)) + value


def string(value: str | bytes | None) -> bytes:
    return buffer(value.encode() if isinstance(value, str) else value)


def vector(items: Sequence[bytes] | None) -> bytes:
    return integer(-1) if items is None else integer(len(items)) + b"".join(items)


def acl_vector(acl: Sequence[AclEntry] | None) -> bytes:
    if acl is None:
        return integer(-1)
    return vector([integer(perms) + string(scheme) + string(id_) for perms, scheme, id_ in acl])


def create_body(
    path: str | bytes | None,
    data: bytes | None = b"",
    flags: int = 0,
    acl: Sequence[AclEntry] | None = OPEN_ACL,
    ttl_ms: int | None = None,
) -> bytes:
    """The body of create, create2 and createContainer; with a `ttl_ms`, of createTTL."""
    body = string(path) + buffer(data) + acl_vector(acl) + integer(flags)
    return body if ttl_ms is None else body + long(ttl_ms)


def read_body(path: str | bytes | None, watch: bool = False) -> bytes:
    """The body of exists, getData, getChildren and getChildren2."""
    return string(path) + boolean(watch)


def set_data_body(path: str | bytes | None, data: bytes | None, version: int = -1) -> bytes:
    return string(path) + buffer(data) + integer(version)


def versioned_body(path: str | bytes | None, version: int = -1) -> bytes:
    """The body of delete and check."""
    return string(path) + integer(version)


def set_acl_body(
    path: str | bytes | None, acl: Sequence[AclEntry] | None, version: int = -1
) -> bytes:
    return string(path) + acl_vector(acl) + integer(version)


def auth_body(scheme: str, credential: bytes | None) -> bytes:
    return integer(0) + string(scheme) + buffer(credential)


def multi_body(operations: Sequence[tuple[int, bytes]]) -> bytes:
    """The body of multi and multiRead: each part has a header of its own, and an end marker."""
    end = integer(-1) + b"\x01" + integer(-1)
    return b"".join(integer(op) + b"\x00" + integer(-1) + body for op, body in operations) + end


def frame(payload: bytes) -> bytes:
    return integer(len(payload)) + payload


def request_frame(xid: int, op: int, body: bytes = b"") -> bytes:
    return frame(integer(xid) + integer(op) + body)


class Reader:
    """Reads values from the bytes of one frame; `ValueError` when they end too early."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def take(self, count: int) -> bytes:
        if count < 0 or self.at + count > len(self.data):
            raise ValueError(f"{count} bytes wanted at {self.at} of {len(self.data)}")
        self.at += count
        return self.data[self.at - count : self.at]

    def integer(self) -> int:
        return int.from_bytes(self.take(4), "big", signed=True)

    def long(self) -> int:
        return int.from_bytes(self.take(8), "big", signed=True)

    def boolean(self) -> bool:
        return self.take(1) != b"\x00"

    def buffer(self) -> bytes | None:
        count = self.integer()
        return None if count == -1 else self.take(count)

    def string(self) -> str | None:
        """A string. ZooKeeper writes a character beyond 16 bits as two surrogates: they are joined.

        What is no text at all stays visible as escapes.
        """
        value = self.buffer()
        if value is None:
            return None
        try:
            wide = value.decode(errors="surrogatepass").encode("utf-16", "surrogatepass")
            return wide.decode("utf-16")
        except UnicodeDecodeError:
            return value.decode(errors="backslashreplace")

    def strings(self) -> list[str | None] | None:
        count = self.integer()
        return None if count == -1 else [self.string() for _ in range(count)]

    def stat(self) -> Stat:
        return Stat(*STAT.unpack(self.take(STAT.size)))

    def acl(self) -> list[tuple[int, str | None, str | None]] | None:
        count = self.integer()
        if count == -1:
            return None
        return [(self.integer(), self.string(), self.string()) for _ in range(count)]

    @property
    def rest(self) -> bytes:
        return self.data[self.at :]


class Stat(NamedTuple):
    """A node's stat in the order of the wire."""

    czxid: int
    mzxid: int
    ctime: int
    mtime: int
    version: int
    cversion: int
    aversion: int
    ephemeral_owner: int
    data_length: int
    num_children: int
    pzxid: int


class Reply(NamedTuple):
    """A frame from the server: a reply, or (xid -1) a watch event."""

    xid: int
    zxid: int
    error: int
    body: bytes


class Welcome(NamedTuple):
    """What the server made of a connect request. A refused one has session 0 and time-out 0."""

    protocol: int
    timeout_ms: int
    session: int
    password: bytes | None
    rest: bytes  # the readOnly byte, for those who sent one


class Link:
    """One TCP connection. `receive` answers None once the server has closed it."""

    def __init__(self, port: int, answer_s: float = ANSWER_S) -> None:
        self.answer_s = answer_s
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=answer_s)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.pending = bytearray()
        self.closed = False
        self.welcome: Welcome | None = None

    def connect(
        self,
        *,
        session: int = 0,
        password: bytes | None = NO_PASSWORD,
        timeout_ms: int = 30_000,
        last_zxid: int = 0,
        read_only: bool | None = False,
    ) -> Welcome | None:
        """Introduce ourselves; None if the server closed the connection instead of answering."""
        payload = integer(0) + long(last_zxid) + integer(timeout_ms) + long(session)
        payload += buffer(password)
        if read_only is not None:
            payload += boolean(read_only)
        self.send(frame(payload))
        answer = self.receive_frame()
        if answer is None:
            return None
        reader = Reader(answer)
        self.welcome = Welcome(
            reader.integer(), reader.integer(), reader.long(), reader.buffer(), reader.rest
        )
        return self.welcome

    def send(self, data: bytes) -> None:
        """Send bytes; a connection that the server has closed takes them and forgets them."""
        try:
            self.socket.sendall(data)
        except (BrokenPipeError, ConnectionResetError):
            return  # what the server sent before it closed can still be received

    def request(self, xid: int, op: int, body: bytes = b"") -> None:
        self.send(request_frame(xid, op, body))

    def receive(self) -> Reply | None:
        """The next frame, or None if the server closed the connection.

        `TimeoutError` if nothing comes.
        """
        payload = self.receive_frame()
        if payload is None:
            return None
        reader = Reader(payload)
        return Reply(reader.integer(), reader.long(), reader.integer(), reader.rest)

    def call(self, xid: int, op: int, body: bytes = b"") -> Reply | None:
        """Send a request and wait for its reply; events that come before it are dropped."""
        self.request(xid, op, body)
        while (reply := self.receive()) is not None:
            if reply.xid == xid:
                return reply
        return None

    def receive_frame(self) -> bytes | None:
        header = self._exactly(4)
        if header is None:
            return None
        return self._exactly(int.from_bytes(header, "big", signed=True))

    def _exactly(self, count: int) -> bytes | None:
        deadline = time.monotonic() + self.answer_s
        while len(self.pending) < count:
            if self.closed:
                return None
            self.socket.settimeout(max(0.001, deadline - time.monotonic()))
            try:
                chunk = self.socket.recv(65_536)
            except ConnectionResetError:
                chunk = b""
            if not chunk:
                self.closed = True
                return None
            self.pending += chunk
        taken = bytes(self.pending[:count])
        del self.pending[:count]
        return taken

    def hang_up(self) -> bool:
        """End our half and wait for the server to end its own; False if it does not."""
        try:
            self.socket.shutdown(socket.SHUT_WR)
            while self.receive_frame() is not None:
                continue
        except TimeoutError:
            return False
        except OSError:
            return True  # it was gone already
        finally:
            self.drop()
        return True

    def drop(self) -> None:
        """Close our end without a word; the session lives on."""
        self.closed = True
        self.socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.drop()
