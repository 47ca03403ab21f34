"""One node of the tree."""

from __future__ import annotations

import struct
from typing import Final

from holdfast.coordination.embedded.acl import ACLs
from holdfast.coordination.embedded.transactions import Stat

# The lifetime of a node that is no TTL node, and of a container.
FOREVER: Final = 0
CONTAINER: Final = -1

_STAT: Final = struct.Struct("!qqqqiiiqiiq")


class Node:
    """A node's data and numbers. The tree alone writes to it.

    `creates` counts all children that were ever made: it numbers sequential nodes, and the
    visible cversion follows from it. `lifetime_ms` is FOREVER, CONTAINER, or a TTL. `children`
    holds the names in the order in which they were made, and is None while there are none,
    because most nodes are leaves.
    """

    __slots__ = (
        "acl",
        "aversion",
        "children",
        "creates",
        "ctime",
        "czxid",
        "data",
        "lifetime_ms",
        "mtime",
        "mzxid",
        "owner",
        "pzxid",
        "version",
    )

    def __init__(
        self,
        data: bytes | None,
        acl: ACLs,
        zxid: int,
        now_ms: int,
        *,
        owner: int = 0,
        lifetime_ms: int = FOREVER,
    ) -> None:
        self.data = data
        self.acl = acl
        self.czxid = zxid
        self.mzxid = zxid
        self.pzxid = zxid
        self.ctime = now_ms
        self.mtime = now_ms
        self.version = 0
        self.creates = 0
        self.aversion = 0
        self.owner = owner
        self.lifetime_ms = lifetime_ms
        self.children: dict[str, None] | None = None

    def child_names(self) -> list[str]:
        """The names of the children, oldest first."""
        children = self.children
        return list(children) if children else []

    def stat(self) -> Stat:
        """The stat as the wire shows it: cversion counts creates and deletes of children."""
        data, children = self.data, self.children
        count = len(children) if children else 0
        return Stat(
            self.czxid,
            self.mzxid,
            self.ctime,
            self.mtime,
            self.version,
            2 * self.creates - count,
            self.aversion,
            self.owner,
            len(data) if data else 0,
            count,
            self.pzxid,
        )

    def packed_stat(self) -> bytes:
        """`stat()` as bytes of the wire."""
        data, children = self.data, self.children
        count = len(children) if children else 0
        return _STAT.pack(
            self.czxid,
            self.mzxid,
            self.ctime,
            self.mtime,
            self.version,
            2 * self.creates - count,
            self.aversion,
            self.owner,
            len(data) if data else 0,
            count,
            self.pzxid,
        )
