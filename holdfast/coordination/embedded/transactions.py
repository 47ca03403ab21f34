"""What may be written to the tree, as values.

An operation is what a client asked for, decoded; a `WriteTransaction` adds who asked. Named tuples,
because they are immutable and the fastest thing Python can build: one is made for every write.
"""

from __future__ import annotations

from typing import NamedTuple


class AuthIdentity(NamedTuple):
    """Who somebody has shown to be: ("ip", "127.0.0.1"), ("digest", "user:base64")."""

    scheme: str
    id: str


class ACL(NamedTuple):
    """One entry of an access control list."""

    perms: int
    scheme: str
    id: str


class Create(NamedTuple):
    """Make a node. `flags` is one of the protocol's FLAG_ numbers; `ttl_ms` is -1 without a TTL."""

    path: str
    data: bytes | None
    acl: tuple[ACL, ...] | None
    flags: int
    ttl_ms: int
    wants_stat: bool


class Delete(NamedTuple):
    path: str
    version: int


class SetData(NamedTuple):
    path: str
    data: bytes | None
    version: int


class SetACL(NamedTuple):
    path: str
    acl: tuple[ACL, ...] | None
    version: int


class CheckVersion(NamedTuple):
    path: str
    version: int


class OpenSession(NamedTuple):
    """A session begins. Its identifier is the transaction's session."""

    timeout_ms: int


class CloseSession(NamedTuple):
    """A session ends, by its client or because it was silent; its ephemerals go with it."""


class DeleteContainer(NamedTuple):
    """Remove a container or TTL node if it is empty and due. Only the server asks for it."""

    path: str


class Reject(NamedTuple):
    """A write that is refused before it reaches the tree, yet takes a zxid (as in ZooKeeper).

    Inside a multi, it fails the multi as a whole when its turn comes.
    """

    error: int


Part = Create | Delete | SetData | CheckVersion | Reject


class Multi(NamedTuple):
    """All of these, or none."""

    operations: tuple[Part, ...]


Operation = (
    Create
    | Delete
    | SetData
    | SetACL
    | CheckVersion
    | Multi
    | OpenSession
    | CloseSession
    | DeleteContainer
    | Reject
)


class WriteTransaction(NamedTuple):
    """An operation and who asked for it. `session` is 0 for the server itself."""

    session: int
    identities: tuple[AuthIdentity, ...]
    operation: Operation


class Stat(NamedTuple):
    """A node's stat, in the order of the wire."""

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


class Created(NamedTuple):
    """Result of a create; `stat` is None when it was not asked for."""

    path: str
    stat: Stat | None


class Changed(NamedTuple):
    """Result of setData and setACL."""

    stat: Stat


class Done(NamedTuple):
    """Result of whatever answers with nothing: delete, check, sessions, containers."""


class FailedOperation(NamedTuple):
    """One operation of a multi that did not happen, and its code."""

    error: int


Result = Created | Changed | Done | FailedOperation


class TreeEvent(NamedTuple):
    """Something happened to `path`. `acl` is the node's, to decide who may be told."""

    type: int
    path: str
    acl: tuple[ACL, ...]


class Outcome(NamedTuple):
    """What a transaction came to.

    `error` is the reply header's. `results` has one entry for a plain operation (none if it
    failed), and one for each operation of a multi, also when it failed (then all are
    `FailedOperation`). `events` are in the order in which they must be sent.
    """

    error: int
    results: tuple[Result, ...]
    events: tuple[TreeEvent, ...]
