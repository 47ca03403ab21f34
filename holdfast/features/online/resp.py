"""Talking to servers that speak RESP (Valkey, Redis): many commands in one round trip, to one
server or to several at the same time, from any thread, in bounded time.

redis-py makes the connections (TLS, passwords) and reads the answers; here is what comes between:
commands are packed by us, which is most of what a read of a thousand keys costs a client.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import redis
from redis.backoff import NoBackoff
from redis.connection import Connection, SSLConnection, UnixDomainSocketConnection
from redis.exceptions import RedisError, ResponseError
from redis.exceptions import TimeoutError as AnswerTimeoutError
from redis.retry import Retry

from holdfast.features.address import FeaturesAddress
from holdfast.wire.errors import Full, Usage

# How long a call may take, unless the caller says otherwise. At most twice that: where it has to
# begin a connection at the very end, it waits for that, too.
ANSWER_S: Final = 5.0
# A server that does not take a connection by then is away.
CONNECT_S: Final = 2.0
# To one server, of one process: more threads than that wait for their turn.
CONNECTIONS_MAX: Final = 32
# A path of a socket has 107 bytes at most.
_SOCKET_PATH_BYTES_MAX: Final = 107

# One answer; an error of the server for one command is a value, too.
Reply = Any


def pack(*parts: bytes) -> bytes:
    """A command as it goes over the wire."""
    return b"*%d\r\n" % len(parts) + b"".join([b"$%d\r\n%b\r\n" % (len(one), one) for one in parts])


class RespSettings:
    """How connections are made, to whichever server; one for a store, which closes it."""

    def __init__(self, address: FeaturesAddress, answer_s: float) -> None:
        self.answer_s = answer_s
        self._folder: int | None = None
        self._more: dict[str, Any] = {
            "username": address.user,
            "password": address.read_password(),
            "db": address.database,
            "protocol": 2,
            "socket_timeout": answer_s,
            "socket_connect_timeout": min(CONNECT_S, answer_s),
            # We have our own patience.
            "retry": Retry(NoBackoff(), 0),
        }
        if address.socket is not None:
            self._kind: type[Any] = UnixDomainSocketConnection
            self._more["path"] = self._short(address.socket)
        elif address.encrypts:
            self._kind = SSLConnection
            self._more |= _tls(address)
        else:
            self._kind = Connection
        if address.socket is None:
            self._more["socket_keepalive"] = True

    def pool(self, place: Mapping[str, object]) -> redis.ConnectionPool:
        return redis.ConnectionPool(
            connection_class=self._kind,
            max_connections=CONNECTIONS_MAX,
            **{**self._more, **place},
        )

    def close(self) -> None:
        folder, self._folder = self._folder, None
        if folder is not None:
            os.close(folder)

    def _short(self, path: Path) -> str:
        """A path of the socket that is short enough, while this is open."""
        if len(os.fsencode(path)) <= _SOCKET_PATH_BYTES_MAX:
            return str(path)
        try:
            self._folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError:
            return str(path)  # the first call says that nobody is there
        return f"/proc/self/fd/{self._folder}/{path.name}"


def _tls(address: FeaturesAddress) -> dict[str, object]:
    return {
        "ssl_ca_certs": None if address.ca is None else str(address.ca),
        "ssl_certfile": None if address.cert is None else str(address.cert),
        "ssl_keyfile": None if address.key is None else str(address.key),
        "ssl_cert_reqs": "none" if address.verify == "none" else "required",
        "ssl_check_hostname": address.verify == "host",
    }


class Server:
    """One server, and our connections to it."""

    def __init__(self, name: str, settings: RespSettings, **place: object) -> None:
        self.name = name
        self.answer_s = settings.answer_s
        self._pool = settings.pool(place)
        self._places = threading.BoundedSemaphore(CONNECTIONS_MAX)
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._closed = False

    def ask(self, *parts: bytes, deadline_s: float | None = None) -> Reply:
        """One command; raises redis-py's errors, also those of the server."""
        return self.ask_packed(pack(*parts), deadline_s)

    def ask_packed(self, command: bytes, deadline_s: float | None = None) -> Reply:
        (reply,) = talk({self: [command]}, deadline_s)[self]
        if isinstance(reply, Exception):
            raise reply
        return reply

    def close(self) -> None:
        """Whoever waits for an answer still gets it."""
        self._closed = True
        self._pool.disconnect(inuse_connections=False)

    def _take(self, deadline_s: float) -> Any:
        """A connection that answers to nobody else; `_give` it back."""
        if time.monotonic() > deadline_s:
            raise AnswerTimeoutError("no time was left to ask it")
        places = self._own_places()
        if not places.acquire(timeout=max(0.0, deadline_s - time.monotonic())):
            raise Full(
                f"all {CONNECTIONS_MAX} connections to {self.name} have been in use for"
                f" {self.answer_s:g} s",
                why="more threads use the store than it answers",
                fix="use fewer threads, or read more keys in one call",
            )
        try:
            return self._pool.get_connection()
        except BaseException:
            places.release()
            raise

    def _give(self, connection: Any) -> None:
        if self._closed:
            connection.disconnect()
        self._pool.release(connection)
        self._own_places().release()

    def _own_places(self) -> threading.BoundedSemaphore:
        """In a forked process nobody has a connection yet: those of the parent are its own."""
        if self._pid != os.getpid():
            with self._lock:
                if self._pid != os.getpid():
                    self._places = threading.BoundedSemaphore(CONNECTIONS_MAX)
                    self._pid = os.getpid()
        return self._places


def talk(
    asked: Mapping[Server, Sequence[bytes]], deadline_s: float | None = None
) -> dict[Server, list[Reply]]:
    """Send each server its commands, and then read what they answer: they work at the same time.
    `deadline_s`, of the monotonic clock: until when; by default as long as the servers have.

    Where a server is away, each of its commands has that error as its answer. Every server that can
    be reached was asked, whatever became of the others.
    """
    found: dict[Server, list[Reply]] = {}
    with _connections() as begun:
        # Always in the same order: nobody waits for one who waits for him.
        for server, commands in sorted(asked.items(), key=lambda one: one[0].name):
            if deadline_s is None:
                deadline_s = time.monotonic() + server.answer_s
            try:
                connection = server._take(deadline_s)
                begun.append((server, connection))
                connection.send_packed_command(commands)
            except (RedisError, OSError, Full) as error:
                found[server] = [error] * len(commands)
        for server, connection in begun:
            if server not in found:
                assert deadline_s is not None, "somebody was asked"
                found[server] = _read(connection, len(asked[server]), deadline_s)
    return found


@contextmanager
def _connections() -> Iterator[list[tuple[Server, Any]]]:
    """Given back at the end. One from which not everything was read is of no use to anybody."""
    begun: list[tuple[Server, Any]] = []
    try:
        yield begun
    except BaseException:
        for _, connection in begun:
            connection.disconnect()
        raise
    finally:
        for server, connection in begun:
            server._give(connection)


def _read(connection: Any, count: int, deadline_s: float) -> list[Reply]:
    found: list[Reply] = []
    for _ in range(count):
        try:
            if not connection.can_read(max(0.0, deadline_s - time.monotonic())):
                raise AnswerTimeoutError("no answer in time")
            found.append(connection.read_response(disable_decoding=True))
        except ResponseError as error:
            found.append(error)
        except (RedisError, OSError) as error:
            connection.disconnect()
            return [*found, *[error] * (count - len(found))]
    return found


def parse_host(text: str) -> tuple[str, int]:
    """HOST:PORT, or [IPV6]:PORT."""
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdigit():
        raise Usage(f"not a host with a port: {text!r}", fix="write HOST:PORT")
    return host.strip("[]"), int(port)
