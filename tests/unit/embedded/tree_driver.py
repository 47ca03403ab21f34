"""A tree with sessions, and short words for what is asked of it."""

from __future__ import annotations

from holdfast.coordination.embedded import protocol as p
from holdfast.coordination.embedded.transactions import (
    ACL,
    AuthIdentity,
    CheckVersion,
    CloseSession,
    Create,
    Created,
    Delete,
    Multi,
    OpenSession,
    Operation,
    Outcome,
    SetData,
    Stat,
    WriteTransaction,
)
from holdfast.coordination.embedded.tree import Tree

OPEN = (ACL(p.PERM_ALL, "world", "anyone"),)
LOCAL = AuthIdentity("ip", "127.0.0.1")
EVA = AuthIdentity("digest", "eva:secret")


def create(
    path: str,
    flags: int = p.FLAG_PERSISTENT,
    acl: tuple[ACL, ...] | None = OPEN,
    data: bytes | None = b"",
    ttl_ms: int = -1,
) -> Create:
    return Create(path, data, acl, flags, ttl_ms, wants_stat=True)


class Driver:
    """Applies operations with growing zxids; the time is ten times the zxid."""

    def __init__(self, nodes_max: int | None = None) -> None:
        self.tree = Tree() if nodes_max is None else Tree(nodes_max)
        self.session = self.open()

    def open(self) -> int:
        session = 0x100 + self.tree.last_zxid
        assert self.outcome(OpenSession(4_000), session).error == p.OK
        return session

    def outcome(
        self, operation: Operation, session: int | None = None, *more: AuthIdentity
    ) -> Outcome:
        zxid = self.tree.last_zxid + 1
        asker = self.session if session is None else session
        transaction = WriteTransaction(asker, (LOCAL, *more), operation)
        return self.tree.apply(transaction, zxid, 10 * zxid)

    def error(self, operation: Operation, *more: AuthIdentity) -> int:
        return self.outcome(operation, None, *more).error

    def make(self, path: str, flags: int = p.FLAG_PERSISTENT, session: int | None = None) -> str:
        """Create a node that must succeed; its path."""
        outcome = self.outcome(create(path, flags), session)
        assert outcome.error == p.OK
        (result,) = outcome.results
        assert isinstance(result, Created)
        return result.path

    def events(self, operation: Operation, session: int | None = None) -> list[tuple[int, str]]:
        return [(event.type, event.path) for event in self.outcome(operation, session).events]

    def codes(self, *operations: Create | Delete | SetData | CheckVersion) -> list[int]:
        """The codes of a multi's operations, 0 for those that happened or might have."""
        results = self.outcome(Multi(operations)).results
        return [getattr(result, "error", p.OK) for result in results]

    def close(self, session: int | None = None) -> Outcome:
        return self.outcome(CloseSession(), session)

    def stat(self, path: str) -> Stat:
        return self.tree.exists(path).stat()
