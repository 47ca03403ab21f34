"""Keep-alive connections of the load generator, without a framework in the way."""

from __future__ import annotations

import errno
import select
import socket
from dataclasses import dataclass, field
from typing import Final

from bench.serving.replies import Garbled, Reply, take

RECEIVE_BYTES: Final = 256 * 1024
Address = tuple[str, int]


class ConnectionBroken(Exception):
    """The connection is of no use any more; the text says why."""


@dataclass(eq=False)
class KeepAliveConnection:
    """One connection, at most one request on it."""

    socket: socket.socket
    poller: select.epoll
    stream: bytearray = field(default_factory=bytearray)
    shot: int = -1  # which request is under way; -1: none
    due_s: float = 0.0  # when it should have been sent
    sent_s: float = 0.0
    _unsent: memoryview = field(default_factory=lambda: memoryview(b""))
    _wants_room: bool = False

    @classmethod
    def to(cls, address: Address, poller: select.epoll) -> KeepAliveConnection:
        """Begin to connect; a failure shows itself at the first use."""
        made = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        number = made.connect_ex(address)
        if number not in (0, errno.EINPROGRESS):
            made.close()
            raise ConnectionBroken(f"cannot connect: {errno.errorcode.get(number, number)}")
        poller.register(made.fileno(), select.EPOLLIN)
        return cls(made, poller)

    @property
    def busy(self) -> bool:
        return self.shot >= 0

    def send(self, raw: bytes, shot: int, due_s: float, now_s: float) -> None:
        self.shot, self.due_s, self.sent_s = shot, due_s, now_s
        self._unsent = memoryview(raw)
        self.push()

    def push(self) -> None:
        """Send what can be sent now; the poller says when there is room for more."""
        try:
            sent = self.socket.send(self._unsent)
        except BlockingIOError:
            sent = 0  # not connected yet, or full
        except OSError as error:
            raise ConnectionBroken(_name(error)) from error
        self._unsent = self._unsent[sent:]
        wants_room = bool(self._unsent)
        if wants_room != self._wants_room:
            self._wants_room = wants_room
            more = select.EPOLLOUT if wants_room else 0
            self.poller.modify(self.socket.fileno(), select.EPOLLIN | more)

    def on_event(self, flags: int) -> Reply | None:
        """What has happened to it: a whole reply, or nothing of interest, or `ConnectionBroken`."""
        if self._unsent and flags & (select.EPOLLOUT | select.EPOLLERR | select.EPOLLHUP):
            self.push()
        if not flags & (select.EPOLLIN | select.EPOLLERR | select.EPOLLHUP):
            return None
        try:
            read = self.socket.recv(RECEIVE_BYTES)
        except BlockingIOError:
            return None
        except OSError as error:
            raise ConnectionBroken(_name(error)) from error
        if not read:
            raise ConnectionBroken("closed in the middle of a reply" if self.stream else "closed")
        self.stream += read
        if not self.busy:
            raise ConnectionBroken(f"an answer to nothing: {bytes(self.stream[:60])!r}")
        try:
            return take(self.stream, self.shot)
        except (Garbled, ValueError) as error:
            raise ConnectionBroken(str(error)) from error

    def close(self) -> None:
        self.poller.unregister(self.socket.fileno())
        self.socket.close()


def _name(error: OSError) -> str:
    return errno.errorcode.get(error.errno or 0, str(error))
