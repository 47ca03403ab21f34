"""The state of the coordination plane, and the few steps by which it changes.

Nothing here decides whether a change is allowed: that is `tree`. Every step can be taken back
while an `undo` list is set, which is how a failed multi leaves no trace.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Iterator
from typing import Any, Final, Self

from holdfast.coordination.embedded import java_order, paths
from holdfast.coordination.embedded.acl import OPEN, READ_ONLY, ACLs
from holdfast.coordination.embedded.node import CONTAINER, FOREVER, Node
from holdfast.coordination.embedded.transactions import ACL
from holdfast.wire.errors import BugError
from holdfast.wire.limits import NODES_MAX

# Access control lists that nodes share instead of holding a copy each; then sharing starts anew.
# Lists above the size are not shared, so that the table stays below four megabytes.
ACLS_SHARED_MAX: Final = 4_096
ACL_SHARED_BYTES_MAX: Final = 1_024

# The first field of a row says what it is.
ROW_SESSION: Final = 1
ROW_ACL: Final = 2
ROW_NODE: Final = 3

Row = tuple[Any, ...]

_DIGESTED: Final = struct.Struct("!qqqq")


class SessionEntry:
    """An open session: its time-out and its ephemerals, each with the zxid that made it.

    `slots` is the size that ZooKeeper's hash set of them would have; it decides their order when
    the session ends.
    """

    __slots__ = ("ephemerals", "slots", "timeout_ms")

    def __init__(self, timeout_ms: int, slots: int = java_order.SLOTS_AT_FIRST) -> None:
        self.timeout_ms = timeout_ms
        self.slots = slots
        self.ephemerals: dict[str, int] = {}

    def in_order(self) -> list[str]:
        """The ephemerals in the order in which ZooKeeper lists and deletes them."""
        if len(self.ephemerals) < 2:
            return list(self.ephemerals)
        # By zxid, for a failed multi may have taken one out and put it back at the end.
        by_age = sorted(self.ephemerals, key=self.ephemerals.__getitem__)
        return java_order.copy_order(by_age, self.slots)


class TreeState:
    """Nodes by path, sessions by id, and the indexes over them."""

    def __init__(self, nodes_max: int = NODES_MAX) -> None:
        self.last_zxid = 0
        self.nodes_max = nodes_max
        self.nodes: dict[str, Node] = {}
        self.sessions: dict[int, SessionEntry] = {}
        # Containers that had a child once and are empty now; all nodes with a TTL.
        self.idle_containers: dict[str, None] = {}
        self.ttl_nodes: dict[str, None] = {}
        # Characters of the paths and bytes of the data, as ZooKeeper counts its size.
        self.data_bytes = 0
        self.undo: list[tuple[Any, ...]] | None = None
        self._shared_acls: dict[ACLs, ACLs] = {OPEN: OPEN, READ_ONLY: READ_ONLY}
        for path in (paths.ROOT, paths.PROC, paths.QUOTA, paths.CONFIG):
            self._index(path, Node(b"", OPEN, 0, 0))
        # As a fresh ZooKeeper has them: not counted as creates, and the configuration read-only.
        self.nodes[paths.ROOT].children = {"zookeeper": None}
        self.nodes[paths.PROC].children = {"quota": None, "config": None}
        self.nodes[paths.CONFIG].acl = READ_ONLY
        self.nodes[paths.CONFIG].aversion = -1

    @property
    def node_count(self) -> int:
        """All nodes, also the root and those of /zookeeper."""
        return len(self.nodes)

    @property
    def ephemeral_count(self) -> int:
        """All ephemerals of all sessions."""
        return sum(len(opened.ephemerals) for opened in self.sessions.values())

    # --- steps --------------------------------------------------------------------------------

    def insert(self, path: str, node: Node, parent: Node, parent_path: str, name: str) -> None:
        """Add a node under its parent, as its newest child."""
        if self.undo is not None:
            before = (parent.pzxid, self.sessions[node.owner].slots if node.owner else 0)
            self.undo.append((self._uninsert, path, parent, parent_path, name, before))
        if parent.children is None:
            parent.children = {}
            if parent.lifetime_ms == CONTAINER:
                self.idle_containers.pop(parent_path, None)
        parent.children[name] = None
        parent.creates += 1
        parent.pzxid = node.czxid
        self._index(path, node)

    def remove(self, path: str, node: Node, parent: Node, parent_path: str, zxid: int) -> None:
        """Take a node without children out of the tree."""
        if self.undo is not None:
            self.undo.append((self._unremove, path, node, parent, parent_path, parent.pzxid))
        self._detach(path, node, parent, parent_path, _name(path))
        parent.pzxid = zxid

    def set_data(self, node: Node, data: bytes | None, zxid: int, now_ms: int) -> None:
        """Give a node new data."""
        if self.undo is not None:
            before = (node.data, node.version, node.mzxid, node.mtime)
            self.undo.append((self._unset_data, node, before))
        self.data_bytes += len(data or b"") - len(node.data or b"")
        node.data = data
        node.version = next_version(node.version)
        node.mzxid = zxid
        node.mtime = now_ms

    def roll_back(self) -> None:
        """Take back every step since `undo` was set, the last one first."""
        assert self.undo is not None
        steps, self.undo = self.undo, None
        for step, *arguments in reversed(steps):
            step(*arguments)

    def share(self, acl: ACLs) -> ACLs:
        """The one copy of this list that all nodes share, so that each costs a pointer.

        Only of lists that a client may ask for and gets unchanged: see `shared`.
        """
        known = self._shared_acls.get(acl)
        if known is not None:
            return known
        size = sum(len(entry.scheme) + len(entry.id) + 64 for entry in acl)
        if size <= ACL_SHARED_BYTES_MAX and len(set(acl)) == len(acl):
            if len(self._shared_acls) >= ACLS_SHARED_MAX:
                self._shared_acls = {OPEN: OPEN, READ_ONLY: READ_ONLY}
            self._shared_acls[acl] = acl
        return acl

    def shared(self, acl: ACLs | None) -> ACLs | None:
        """The shared copy, if there is one: such a list has been found good before."""
        return self._shared_acls.get(acl) if acl else None

    def _index(self, path: str, node: Node) -> None:
        self.nodes[path] = node
        self.data_bytes += len(path) + len(node.data or b"")
        if node.owner:
            session = self.sessions[node.owner]
            session.ephemerals[path] = node.czxid
            session.slots = java_order.grown(session.slots, len(session.ephemerals))
        elif node.lifetime_ms > FOREVER:
            self.ttl_nodes[path] = None

    def _detach(self, path: str, node: Node, parent: Node, parent_path: str, name: str) -> None:
        assert parent.children is not None
        del self.nodes[path]
        self.data_bytes -= len(path) + len(node.data or b"")
        del parent.children[name]
        if not parent.children:
            parent.children = None
            self._note_idle(parent_path, parent)
        if node.owner:
            del self.sessions[node.owner].ephemerals[path]
        elif node.lifetime_ms > FOREVER:
            del self.ttl_nodes[path]
        elif node.lifetime_ms == CONTAINER:
            self.idle_containers.pop(path, None)

    def _note_idle(self, path: str, node: Node) -> None:
        if node.lifetime_ms == CONTAINER and node.creates and not node.children:
            self.idle_containers[path] = None

    def _uninsert(
        self, path: str, parent: Node, parent_path: str, name: str, before: tuple[int, int]
    ) -> None:
        node = self.nodes[path]
        pzxid, slots = before
        parent.creates -= 1
        parent.pzxid = pzxid
        self._detach(path, node, parent, parent_path, name)
        if node.owner:
            self.sessions[node.owner].slots = slots

    def _unremove(self, path: str, node: Node, parent: Node, parent_path: str, pzxid: int) -> None:
        if parent.children is None:
            parent.children = {}
            self.idle_containers.pop(parent_path, None)
        parent.children[_name(path)] = None
        parent.pzxid = pzxid
        self._index(path, node)
        self._note_idle(path, node)

    def _unset_data(self, node: Node, before: tuple[bytes | None, int, int, int]) -> None:
        self.data_bytes += len(before[0] or b"") - len(node.data or b"")
        node.data, node.version, node.mzxid, node.mtime = before

    # --- the whole of it ----------------------------------------------------------------------

    def rows(self) -> Iterator[Row]:
        """The whole state but `last_zxid`, as flat tuples of int, str, bytes and None.

        - `(ROW_SESSION, id, timeout_ms, slots)`: all sessions, first;
        - `(ROW_ACL, perms, scheme, id, perms, scheme, id, …)`: an access control list; the first
          such row has number 0, the next 1, and so on; it comes before the nodes that use it;
        - `(ROW_NODE, path, data, acl_number, czxid, mzxid, pzxid, ctime, mtime, version, creates,
          aversion, owner, lifetime_ms)`: data is bytes or None; a parent comes before its
          children, and the children of a node, and the ephemerals of a session, in their order.
          zxids, times, owner and lifetime_ms are 64-bit, the others 32-bit, all signed.

        Also the nodes of /zookeeper are there. The state must not change while it is iterated.
        """
        yield from self._session_rows()
        numbers: dict[ACLs, int] = {}
        for path, node in self.nodes.items():
            number = numbers.get(node.acl)
            if number is None:
                number = numbers[node.acl] = len(numbers)
                yield (ROW_ACL, *(field for entry in node.acl for field in entry))
            yield (
                ROW_NODE,
                path,
                node.data,
                number,
                node.czxid,
                node.mzxid,
                node.pzxid,
                node.ctime,
                node.mtime,
                node.version,
                node.creates,
                node.aversion,
                node.owner,
                node.lifetime_ms,
            )

    def _session_rows(self) -> Iterator[Row]:
        for session, opened in self.sessions.items():
            yield (ROW_SESSION, session, opened.timeout_ms, opened.slots)

    @classmethod
    def from_rows(cls, rows: Iterable[Row], last_zxid: int, nodes_max: int = NODES_MAX) -> Self:
        """The state that gave these rows. `BugError` if no state gives them."""
        state = cls(nodes_max)
        state.nodes.clear()
        state.data_bytes = 0
        acls: list[ACLs] = []
        try:
            for row in rows:
                if row[0] == ROW_NODE:
                    state._load_node(row, acls)
                elif row[0] == ROW_ACL:
                    entries = zip(row[1::3], row[2::3], row[3::3], strict=True)
                    acls.append(state.share(tuple(ACL(*entry) for entry in entries)))
                else:
                    _, session, timeout_ms, slots = row
                    state.sessions[session] = SessionEntry(timeout_ms, slots)
        except (KeyError, IndexError, ValueError) as error:
            raise BugError("the rows of a tree do not fit together", why=repr(error)) from error
        for path, node in state.nodes.items():
            state._note_idle(path, node)
        state.last_zxid = last_zxid
        return state

    def _load_node(self, row: Row, acls: list[ACLs]) -> None:
        _, path, data, acl, czxid, mzxid, pzxid, ctime, mtime = row[:9]
        node = Node(data, acls[acl], czxid, ctime)
        # Equal numbers share one object, as they do in a tree that was never written down.
        if mzxid != czxid:
            node.mzxid = mzxid
        if pzxid != czxid:
            node.pzxid = pzxid
        if mtime != ctime:
            node.mtime = mtime
        node.version, node.creates, node.aversion, node.owner, node.lifetime_ms = row[9:]
        if path != paths.ROOT:
            above, _, name = path.rpartition("/")
            parent = self.nodes[above or paths.ROOT]
            if parent.children is None:
                parent.children = {}
            parent.children[name] = None
        self._index(path, node)

    def digest(self) -> str:
        """SHA-256 over the whole state, `last_zxid` too, in a canonical order."""
        total = hashlib.sha256(repr((self.last_zxid, sorted(self._session_rows()))).encode())
        acls: dict[ACLs, bytes] = {}
        for path in sorted(self.nodes):
            node = self.nodes[path]
            acl = acls.get(node.acl)
            if acl is None:
                text = repr([tuple(entry) for entry in node.acl])
                acl = hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
                acls[node.acl] = acl
            name = path.encode("utf-8", "surrogatepass")
            size = -1 if node.data is None else len(node.data)
            numbers = _DIGESTED.pack(len(name), size, node.creates, node.lifetime_ms)
            total.update(b"".join((numbers, name, node.packed_stat(), acl, node.data or b"")))
        return total.hexdigest()


def next_version(version: int) -> int:
    """The version after this one; it wraps as a 32-bit number of Java does."""
    return version + 1 if version < 0x7FFFFFFF else -0x80000000


def _name(path: str) -> str:
    return path[path.rfind("/") + 1 :]
