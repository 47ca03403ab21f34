"""Making a kazoo client, and the few places where we have to reach into it.

kazoo does not tell the session time-out that the servers granted, does not give up a server that
stopped answering while requests are still being sent, takes a Ctrl-C that comes while it sends for
the end of the connection, logs credentials at its debug level, and shows them to whoever listens at
the port of a server of ours that died. Those five are mended here, and nowhere else.
"""

from __future__ import annotations

import ipaddress
import logging
import socket
import ssl
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from kazoo.client import KazooClient
from kazoo.exceptions import ConnectionClosedError
from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.protocol.serialization import Auth, Connect
from kazoo.protocol.states import KeeperState
from kazoo.security import ACL, Id

from holdfast.coordination.access import Access, AclEntry
from holdfast.coordination.address import ZooKeeperAddress
from holdfast.wire.errors import BugError, HoldfastError
from holdfast.wire.limits import DIAGNOSE_S, RECONNECT_DELAY_S_MAX

# Between two attempts to connect: the first is soon, the last still below a session's time.
RECONNECT_DELAY_S: Final = 0.05

_log = logging.getLogger("holdfast.coordination.kazoo")
_TABLES: Final = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
_LISTENS: Final = "0A"


class _NoSecrets(logging.Filter):
    """Drops kazoo's records that show a password or a session's password."""

    def filter(self, record: logging.LogRecord) -> bool:
        if "passwd" in str(record.msg):
            return False
        arguments = record.args if isinstance(record.args, tuple) else ()
        return not any(isinstance(argument, Auth) for argument in arguments)


_log.addFilter(_NoSecrets())
_CLOSED: Final = (KeeperState.AUTH_FAILED, KeeperState.CLOSED, KeeperState.EXPIRED_SESSION)


class _InterruptibleClient(KazooClient):  # type: ignore[misc]  # kazoo has no types
    """A client whose requests let Ctrl-C pass.

    kazoo wakes its own thread after each request, and whatever is raised there is "the connection
    has been closed" to it. That is where a Ctrl-C of the main thread arrives most often: it would
    be forgotten, and the request made again.
    """

    def _call(self, request: Any, answer: Any) -> Any:
        if self._state in _CLOSED:
            return super()._call(request, answer)
        self._queue.append((request, answer))
        try:
            self._connection._write_sock.send(b"\0")
        except (AttributeError, OSError):  # it closes just now: there is none, or its end is gone
            answer.set_exception(ConnectionClosedError("Connection has been closed"))
        return None


@dataclass(frozen=True, slots=True)
class Ways:
    """How a server of ours is reached, asked anew for each connection: it may have been started
    again. `user`: whose process it is, on this machine; None: it may be anywhere. `tls`: the
    context of a plane whose certificates its secret makes; None: in plain text."""

    user: Callable[[], int] | None = None
    tls: Callable[[], ssl.SSLContext | None] = lambda: None


class _Handler(SequentialThreadingHandler):  # type: ignore[misc]  # kazoo has no types
    """Connects to servers of ours in the `Ways` given, and to no others.

    The port of a server that died may be anybody's a moment later. Whoever listens there would be
    shown our secret, and have the plane.
    """

    def __init__(self, ways: Ways) -> None:
        super().__init__()
        self._ways = ways

    def create_connection(self, *arguments: Any, **options: Any) -> Any:
        link = super().create_connection(*arguments, **options)
        try:
            self._check(link)
            context = self._ways.tls()
            # The handshake has the time that the connection had.
            return link if context is None else context.wrap_socket(link)
        except (OSError, HoldfastError) as error:
            link.close()
            raise OSError(str(error)) from error  # the only error that kazoo expects here

    def _check(self, link: socket.socket) -> None:
        if self._ways.user is None:
            return
        owner, user = owner_of(link.getpeername()), self._ways.user()
        if owner not in (None, user):
            raise OSError(f"a program of user {owner} listens there, not one of user {user}")


def entries(acl: tuple[AclEntry, ...]) -> list[ACL]:
    """An access list as kazoo wants it."""
    return [ACL(entry.perms, Id(entry.scheme, entry.id)) for entry in acl]


def make(
    address: ZooKeeperAddress,
    hosts: str,
    granted: Callable[[float], None],
    access: Access | None = None,
    ways: Ways | None = None,
) -> KazooClient:
    """A client that is not started. `granted(timeout_s)` is called before each CONNECTED. `access`
    is shown on every connection, before its first request. `ways`: it is a server of ours."""
    tls = address.tls
    options: dict[str, Any] = {}
    if access is not None:
        options["auth_data"] = [("digest", shown) for shown in access.credentials]
        # Whatever kazoo makes by itself. `nodes` gives each node its own.
        options["default_acl"] = entries(access.acl("/"))
    if ways is not None:
        options["handler"] = _Handler(ways)
    elif tls is not None:
        options |= {
            "use_ssl": True,
            "ca": str(tls.ca) if tls.ca else None,
            "certfile": str(tls.cert) if tls.cert else None,
            "keyfile": str(tls.key) if tls.key else None,
            "verify_certs": tls.verify != "none",
            "check_hostname": tls.verify == "host",
        }
    client = _InterruptibleClient(
        hosts=hosts,
        timeout=address.timeout_s,
        connection_retry={
            "max_tries": -1,
            "delay": RECONNECT_DELAY_S,
            "backoff": 2,
            "max_delay": RECONNECT_DELAY_S_MAX,
        },
        logger=_log,
        **options,
    )
    _listen_to_handshakes(client, granted)
    return client


def _listen_to_handshakes(client: KazooClient, granted: Callable[[float], None]) -> None:
    connection = client._connection
    invoke = getattr(connection, "_invoke", None)
    if not callable(invoke):
        raise BugError(
            "this kazoo does not show its handshake",
            why="the granted session time-out is read from kazoo's ConnectionHandler._invoke",
            fix="pip install 'kazoo==2.11.0'",
        )

    def listening(timeout: float, request: Any, xid: int | None = None) -> Any:
        answer = invoke(timeout, request, xid)
        if isinstance(request, Connect) and answer[0].time_out > 0:
            granted(answer[0].time_out / 1000.0)
        return answer

    connection._invoke = listening


def hang_up(client: KazooClient) -> None:
    """Drop the present connection, so that kazoo looks for another server."""
    link = getattr(client._connection, "_socket", None)
    if link is not None:
        try:
            # The plain socket's own: that of a TLS socket drops TLS first, and kazoo's thread might
            # go on in plain text before the connection has ended.
            socket.socket.shutdown(link, socket.SHUT_RDWR)
        except OSError as error:
            _log.debug("the connection was gone already: %s", error)


def diagnose(hosts: str, context: Callable[[], ssl.SSLContext | None]) -> str:
    """Why the servers cannot be reached, server by server, as the operating system says it."""
    found = []
    for part in hosts.split(","):
        host, _, port = part.rpartition(":")
        found.append(f"{part}: {_try(host.strip('[]'), int(port), context)}")
    return "; ".join(found)


def _try(host: str, port: int, context: Callable[[], ssl.SSLContext | None]) -> str:
    try:
        with socket.create_connection((host, port), timeout=DIAGNOSE_S) as link:
            tls = context()
            if tls is not None:
                with tls.wrap_socket(link, server_hostname=host):
                    return "it speaks TLS and does not answer"
            link.sendall(b"ruok\n")  # as long as the least that TLS looks at
            try:
                answered = link.recv(4)
            except TimeoutError:
                return "it accepts connections and does not answer"
            if not answered:
                return "it hangs up at once, as a server does that speaks TLS only"
            return "it accepts connections and does not answer"
    except OSError as error:
        return str(error)


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
