"""A node, an operation on one, and how it can fail: the values of `nodes`."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple


class Znode(NamedTuple):
    """A node as it was read. `owner` is the session of an ephemeral node, else 0."""

    path: str
    data: bytes
    version: int
    czxid: int
    owner: int
    created_ms: int


class Op(NamedTuple):
    """One operation of a transaction. A version of -1 fits any."""

    kind: Literal["create", "put", "delete", "check"]
    path: str
    data: bytes = b""
    version: int = -1
    ephemeral: bool = False
    sequence: bool = False


class ReplyLost(Exception):
    """The request was sent, and whether it was done is not known."""


class Rejected(Exception):
    """The transaction was not done, because of its operation number `index`."""

    def __init__(self, index: int, cause: Exception) -> None:
        super().__init__(f"operation {index}: {cause!r}")
        self.index = index
        self.cause = cause


def parent_of(path: str) -> str:
    return path.rpartition("/")[0] or "/"


def znode_of(path: str, data: bytes | None, stat: Any) -> Znode:
    return Znode(path, data or b"", stat.version, stat.czxid, stat.ephemeralOwner, stat.ctime)
