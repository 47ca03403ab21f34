"""How each request that does not write is answered.

A handler gets the server, the connection and the request's body, and gives the reply's body; it
raises `OperationError` for an answer that is an error.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable
from typing import Final

from holdfast.coordination.embedded import protocol as p
from holdfast.coordination.embedded import replies
from holdfast.coordination.embedded.connection import ClientConnection
from holdfast.coordination.embedded.context import ServerContext
from holdfast.coordination.embedded.java_order import identity_order
from holdfast.coordination.embedded.jute import (
    INT,
    JuteReader,
    Malformed,
    encode_buffer,
    encode_string,
)
from holdfast.coordination.embedded.requests import decode_multi_read, decode_watches
from holdfast.coordination.embedded.transactions import AuthIdentity
from holdfast.coordination.embedded.tree import OperationError
from holdfast.coordination.embedded.watches import CHILD, DATA

# Identities that one connection may add by `auth`.
IDENTITIES_MAX: Final = 32

Handler = Callable[[ServerContext, ClientConnection, bytes], bytes]


def _exists(server: ServerContext, connection: ClientConnection, body: bytes) -> bytes:
    reader = JuteReader(body)
    path, watch = reader.string(), reader.flag()
    if watch:
        # A missing node is watched too: the client waits for it to appear.
        server.watches.add(connection, DATA, path)
    return server.tree.exists(path).packed_stat()


def _get_data(server: ServerContext, connection: ClientConnection, body: bytes) -> bytes:
    reader = JuteReader(body)
    path, watch = reader.string(), reader.flag()
    node = server.tree.get_data(path, connection.identities)
    if watch:
        server.watches.add(connection, DATA, path)
    return encode_buffer(node.data) + node.packed_stat()


def _get_children(server: ServerContext, connection: ClientConnection, body: bytes) -> bytes:
    reader = JuteReader(body)
    path, watch = reader.string(), reader.flag()
    node = server.tree.get_children(path, connection.identities)
    if watch:
        server.watches.add(connection, CHILD, path)
    return replies.strings(node.child_names())


def _get_children2(server: ServerContext, connection: ClientConnection, body: bytes) -> bytes:
    reader = JuteReader(body)
    path, watch = reader.string(), reader.flag()
    node = server.tree.get_children(path, connection.identities)
    if watch:
        server.watches.add(connection, CHILD, path)
    return replies.strings(node.child_names()) + node.packed_stat()


def _get_acl(server: ServerContext, connection: ClientConnection, body: bytes) -> bytes:
    acl, node = server.tree.get_acl(JuteReader(body).string(), connection.identities)
    return replies.acls(acl) + node.packed_stat()


def _reconfig(server: ServerContext, connection: ClientConnection, body: bytes) -> bytes:
    raise Malformed("a change of the ensemble that cannot be read")


def _sync(server: ServerContext, connection: ClientConnection, body: bytes) -> bytes:
    return encode_string(JuteReader(body).string())


def _ping(server: ServerContext, connection: ClientConnection, body: bytes) -> bytes:
    return b""


def _get_ephemerals(server: ServerContext, connection: ClientConnection, body: bytes) -> bytes:
    prefix = JuteReader(body).string()
    return replies.strings(server.tree.get_ephemerals(connection.session, prefix))


def _all_children_number(server: ServerContext, connection: ClientConnection, body: bytes) -> bytes:
    path = JuteReader(body).string()
    return INT.pack(server.tree.all_children_number(path, connection.identities))


def _who_am_i(server: ServerContext, connection: ClientConnection, body: bytes) -> bytes:
    # A digest is shown as its user alone.
    ordered = identity_order(connection.identities)
    shown = (AuthIdentity(one.scheme, one.id.partition(":")[0]) for one in ordered)
    return replies.identities(shown)


def _multi_read(server: ServerContext, connection: ClientConnection, body: bytes) -> bytes:
    answers = []
    for kind, path in decode_multi_read(body):
        try:
            if kind == p.GET_DATA:
                node = server.tree.get_data(path, connection.identities)
                answer = encode_buffer(node.data) + node.packed_stat()
            else:
                node = server.tree.get_children(path, connection.identities)
                answer = replies.strings(node.child_names())
        except OperationError as refusal:
            answers.append(replies.failed_part(refusal.code))
        else:
            answers.append(replies.part(kind, answer))
    return replies.parts(answers)


def _add_watch(server: ServerContext, connection: ClientConnection, body: bytes) -> bytes:
    reader = JuteReader(body)
    path, mode = reader.string(), reader.number()
    if mode not in (p.WATCH_PERSISTENT, p.WATCH_PERSISTENT_RECURSIVE):
        raise Malformed(f"mode {mode} of a watch")
    recursive = mode == p.WATCH_PERSISTENT_RECURSIVE
    server.watches.add_persistent(connection, path, recursive=recursive)
    return INT.pack(0)


def _check_watches(server: ServerContext, connection: ClientConnection, body: bytes) -> bytes:
    reader = JuteReader(body)
    if not server.watches.has(connection, reader.string(), reader.number()):
        raise OperationError(p.NO_WATCHER)
    return b""


def _remove_watches(server: ServerContext, connection: ClientConnection, body: bytes) -> bytes:
    reader = JuteReader(body)
    if not server.watches.remove(connection, reader.string(), reader.number()):
        raise OperationError(p.NO_WATCHER)
    return b""


def _set_watches(server: ServerContext, connection: ClientConnection, body: bytes) -> bytes:
    return _restore_watches(server, connection, body, with_persistent=False)


def _set_watches2(server: ServerContext, connection: ClientConnection, body: bytes) -> bytes:
    return _restore_watches(server, connection, body, with_persistent=True)


def _restore_watches(
    server: ServerContext, connection: ClientConnection, body: bytes, *, with_persistent: bool
) -> bytes:
    """Set the watches of a client that was away, and tell at once what it missed meanwhile."""
    wanted = decode_watches(body, with_persistent=with_persistent)
    tree, seen = server.tree, wanted.relative_zxid

    def tell(kind: int, path: str) -> None:
        connection.push(replies.event(kind, path))

    for path in wanted.data:
        node = tree.find(path)
        if node is None:
            tell(p.EVENT_DELETED, path)
        elif node.mzxid > seen:
            tell(p.EVENT_DATA_CHANGED, path)
        else:
            server.watches.add(connection, DATA, path)
    for path in wanted.exist:
        if tree.find(path) is not None:
            tell(p.EVENT_CREATED, path)
        else:
            server.watches.add(connection, DATA, path)
    for path in wanted.child:
        node = tree.find(path)
        if node is None:
            tell(p.EVENT_DELETED, path)
        elif node.pzxid > seen:
            tell(p.EVENT_CHILDREN_CHANGED, path)
        else:
            server.watches.add(connection, CHILD, path)
    for path in wanted.persistent:
        server.watches.add_persistent(connection, path, recursive=False)
    for path in wanted.recursive:
        server.watches.add_persistent(connection, path, recursive=True)
    return b""


def authenticate(connection: ClientConnection, body: bytes) -> bool:
    """Add the identity that an `auth` request shows; False if it shows none that we know."""
    reader = JuteReader(body)
    reader.number()
    scheme, secret = reader.string(), reader.buffer() or b""
    if scheme == "digest":
        user = secret.split(b":", 1)[0].decode("utf-8", "replace")
        digest = base64.b64encode(hashlib.sha1(secret, usedforsecurity=False).digest()).decode()
        identity = AuthIdentity("digest", f"{user}:{digest}")
    elif scheme == "ip":
        identity = connection.identities[0]
    else:
        return False
    if identity not in connection.identities:
        if len(connection.identities) >= IDENTITIES_MAX:
            return False
        connection.identities = (*connection.identities, identity)
    return True


HANDLERS: Final[dict[int, Handler]] = {
    p.EXISTS: _exists,
    p.GET_DATA: _get_data,
    p.GET_CHILDREN: _get_children,
    p.GET_CHILDREN2: _get_children2,
    p.GET_ACL: _get_acl,
    p.RECONFIG: _reconfig,
    p.SYNC: _sync,
    p.PING: _ping,
    p.GET_EPHEMERALS: _get_ephemerals,
    p.GET_ALL_CHILDREN_NUMBER: _all_children_number,
    p.WHO_AM_I: _who_am_i,
    p.MULTI_READ: _multi_read,
    p.ADD_WATCH: _add_watch,
    p.CHECK_WATCHES: _check_watches,
    p.REMOVE_WATCHES: _remove_watches,
    p.SET_WATCHES: _set_watches,
    p.SET_WATCHES2: _set_watches2,
}
