"""The tree: a state machine without I/O, clock or chance.

`apply` decides and carries out; the reads answer. What is refused, and which refusal wins when
several apply, is as in ZooKeeper 3.8.
"""

from __future__ import annotations

from typing import Final

from holdfast.coordination.embedded import paths
from holdfast.coordination.embedded import protocol as p
from holdfast.coordination.embedded.acl import OPEN, ACLs, Identities, fix_up, masked, permits
from holdfast.coordination.embedded.node import CONTAINER, FOREVER, Node
from holdfast.coordination.embedded.protocol import OperationError
from holdfast.coordination.embedded.state import (
    ROW_ACL,
    ROW_NODE,
    ROW_SESSION,
    Row,
    SessionEntry,
    TreeState,
    next_version,
)
from holdfast.coordination.embedded.transactions import (
    Changed,
    CheckVersion,
    CloseSession,
    Create,
    Created,
    Delete,
    DeleteContainer,
    Done,
    FailedOperation,
    Multi,
    OpenSession,
    Operation,
    Outcome,
    Reject,
    Result,
    SetACL,
    SetData,
    TreeEvent,
    WriteTransaction,
)
from holdfast.wire.errors import BugError

__all__ = ["ROW_ACL", "ROW_NODE", "ROW_SESSION", "Node", "OperationError", "Row", "Tree"]

# Five bytes: what ZooKeeper has room for in the field where it keeps a TTL.
_TTL_MS_MAX: Final = 0xFFFFFFFFFF
_TTL_FLAGS: Final = (p.FLAG_TTL, p.FLAG_TTL_SEQUENTIAL)
_EPHEMERAL_FLAGS: Final = (p.FLAG_EPHEMERAL, p.FLAG_EPHEMERAL_SEQUENTIAL)
_CONTAINER_FLAGS: Final = (p.FLAG_CONTAINER, p.FLAG_CONTAINER_SEQUENTIAL)
_SEQUENTIAL_FLAGS: Final = (
    p.FLAG_SEQUENTIAL,
    p.FLAG_EPHEMERAL_SEQUENTIAL,
    p.FLAG_TTL_SEQUENTIAL,
    p.FLAG_CONTAINER_SEQUENTIAL,
)
# What Java's `trim` takes away.
_BLANKS: Final = "".join(map(chr, range(0x21)))
_DONE: Final = Done()


class _ApplyContext:
    """What every operation of one transaction needs to know, and the events it leaves."""

    __slots__ = ("events", "identities", "now_ms", "session", "zxid")

    def __init__(self, transaction: WriteTransaction, zxid: int, now_ms: int) -> None:
        self.session = transaction.session
        self.identities = transaction.identities
        self.zxid = zxid
        self.now_ms = now_ms
        self.events: list[TreeEvent] = []


class Tree(TreeState):
    """The nodes and the sessions of one server.

    `nodes_max` bounds the nodes; creates beyond it answer QUOTA_EXCEEDED. It is part of what is
    decided: replay a log with the bound that it was written under.
    """

    # --- writes -------------------------------------------------------------------------------

    def apply(self, transaction: WriteTransaction, zxid: int, now_ms: int) -> Outcome:
        """Carry out one transaction, or refuse it and change nothing but `last_zxid`.

        The same transactions at the same zxids and times always come to the same outcomes and
        the same state. Nothing that a client may send makes it raise.
        """
        if zxid <= self.last_zxid:
            raise BugError(
                f"transaction {zxid:#x} comes after {self.last_zxid:#x}",
                why="zxids must grow; a log was replayed twice or out of order",
            )
        self.last_zxid = zxid
        step = _ApplyContext(transaction, zxid, now_ms)
        operation = transaction.operation
        try:
            if isinstance(operation, Multi):
                results = self._multi(operation, step)
            else:
                results = (self._one(operation, step),)
        except OperationError as refusal:
            return Outcome(refusal.code, (), ())
        return Outcome(p.OK, results, tuple(step.events))

    def _one(self, operation: Operation, step: _ApplyContext) -> Result:
        if isinstance(operation, Create):
            return self._create(operation, step)
        if isinstance(operation, SetData):
            return self._set_data(operation, step)
        if isinstance(operation, Delete):
            return self._delete(operation, step)
        if isinstance(operation, CheckVersion):
            return self._check(operation, step)
        if isinstance(operation, SetACL):
            return self._set_acl(operation, step)
        if isinstance(operation, OpenSession):
            return self._open_session(operation, step)
        if isinstance(operation, CloseSession):
            return self._close_session(step)
        if isinstance(operation, DeleteContainer):
            return self._delete_container(operation, step)
        if isinstance(operation, Reject):
            raise OperationError(operation.error)
        raise BugError(f"{operation!r} is no operation that a multi or a transaction may hold")

    def _create(self, operation: Create, step: _ApplyContext) -> Result:
        path, data, acl, flags, ttl_ms, wants_stat = operation
        if not p.FLAG_PERSISTENT <= flags <= p.FLAG_CONTAINER_SEQUENTIAL:
            raise OperationError(p.BAD_ARGUMENTS)
        lifetime_ms = CONTAINER if flags in _CONTAINER_FLAGS else FOREVER
        if flags in _TTL_FLAGS:
            if not 0 < ttl_ms <= _TTL_MS_MAX:
                raise OperationError(p.BAD_ARGUMENTS)
            lifetime_ms = ttl_ms
        elif ttl_ms >= 0:
            raise OperationError(p.BAD_ARGUMENTS)
        self._require_session(step)
        cut = path.rfind("/")
        if cut < 0 or "\0" in path:
            raise OperationError(p.BAD_ARGUMENTS)
        stored_acl = self.shared(acl) or self.share(fix_up(acl, step.identities))
        parent_path = path[:cut] or paths.ROOT
        parent = self._required(parent_path)
        _require(parent.acl, p.PERM_CREATE, step.identities)
        if flags in _SEQUENTIAL_FLAGS:
            path = f"{path}{parent.creates:010d}"
        if not paths.is_valid(path):
            raise OperationError(p.BAD_ARGUMENTS)
        if path in self.nodes:
            raise OperationError(p.NODE_EXISTS)
        if parent.owner:
            raise OperationError(p.NO_CHILDREN_FOR_EPHEMERALS)
        if len(self.nodes) >= self.nodes_max:
            raise OperationError(p.QUOTA_EXCEEDED)
        owner = step.session if flags in _EPHEMERAL_FLAGS else 0
        node = Node(data, stored_acl, step.zxid, step.now_ms, owner=owner, lifetime_ms=lifetime_ms)
        self.insert(path, node, parent, parent_path, path[cut + 1 :])
        step.events.append(TreeEvent(p.EVENT_CREATED, path, stored_acl))
        step.events.append(TreeEvent(p.EVENT_CHILDREN_CHANGED, parent_path, parent.acl))
        return Created(path, node.stat() if wants_stat else None)

    def _delete(self, operation: Delete, step: _ApplyContext) -> Result:
        path, version = operation
        self._require_session(step)
        cut = path.rfind("/")
        if cut < 0 or "\0" in path or path in paths.SPECIAL:
            raise OperationError(p.BAD_ARGUMENTS)
        parent_path = path[:cut] or paths.ROOT
        parent = self._required(parent_path)
        _require(parent.acl, p.PERM_DELETE, step.identities)
        node = self._required(path)
        _require_version(node.version, version)
        if node.children:
            raise OperationError(p.NOT_EMPTY)
        self._remove(path, node, parent, parent_path, step)
        return _DONE

    def _set_data(self, operation: SetData, step: _ApplyContext) -> Result:
        path, data, version = operation
        self._require_session(step)
        node = self._required_valid(path)
        _require(node.acl, p.PERM_WRITE, step.identities)
        _require_version(node.version, version)
        self.set_data(node, data, step.zxid, step.now_ms)
        step.events.append(TreeEvent(p.EVENT_DATA_CHANGED, path, node.acl))
        return Changed(node.stat())

    def _check(self, operation: CheckVersion, step: _ApplyContext) -> Result:
        path, version = operation
        self._require_session(step)
        node = self._required_valid(path)
        _require(node.acl, p.PERM_READ, step.identities)
        _require_version(node.version, version)
        return _DONE

    def _set_acl(self, operation: SetACL, step: _ApplyContext) -> Result:
        path, acl, version = operation
        self._require_session(step)
        if not paths.is_valid(path):
            raise OperationError(p.BAD_ARGUMENTS)
        stored_acl = self.shared(acl) or self.share(fix_up(acl, step.identities))
        node = self._required(path)
        _require(node.acl, p.PERM_ADMIN, step.identities)
        _require_version(node.aversion, version)
        node.acl = stored_acl
        node.aversion = next_version(node.aversion)
        return Changed(node.stat())

    def _multi(self, multi: Multi, step: _ApplyContext) -> tuple[Result, ...]:
        """All of the operations, or none: then each has a code, that of the culprit its own."""
        results: list[Result] = []
        self.undo = []
        try:
            for operation in multi.operations:
                results.append(self._one(operation, step))
        except OperationError as refusal:
            self.roll_back()
            step.events.clear()
            before = len(results)
            if isinstance(multi.operations[before], Reject):
                raise
            after = len(multi.operations) - before - 1
            return (
                *(FailedOperation(p.OK),) * before,
                FailedOperation(refusal.code),
                *(FailedOperation(p.RUNTIME_INCONSISTENCY),) * after,
            )
        finally:
            self.undo = None
        return tuple(results)

    def _open_session(self, operation: OpenSession, step: _ApplyContext) -> Result:
        known = self.sessions.get(step.session)
        if known is None:
            self.sessions[step.session] = SessionEntry(operation.timeout_ms)
        else:
            known.timeout_ms = operation.timeout_ms
        return _DONE

    def _close_session(self, step: _ApplyContext) -> Result:
        # It may be gone already: its client closed it, and its time ran out as well.
        for path in self.ephemerals_of(step.session):
            parent_path = path[: path.rfind("/")] or paths.ROOT
            self._remove(path, self.nodes[path], self.nodes[parent_path], parent_path, step)
        self.sessions.pop(step.session, None)
        return _DONE

    def _delete_container(self, operation: DeleteContainer, step: _ApplyContext) -> Result:
        path = operation.path
        node = self._required(path)
        if node.children:
            raise OperationError(p.NOT_EMPTY)
        if not _is_due(node, step.now_ms):
            raise OperationError(p.BAD_VERSION)
        parent_path = path[: path.rfind("/")] or paths.ROOT
        self._remove(path, node, self.nodes[parent_path], parent_path, step)
        return _DONE

    def _remove(
        self, path: str, node: Node, parent: Node, parent_path: str, step: _ApplyContext
    ) -> None:
        self.remove(path, node, parent, parent_path, step.zxid)
        step.events.append(TreeEvent(p.EVENT_DELETED, path, node.acl))
        step.events.append(TreeEvent(p.EVENT_CHILDREN_CHANGED, parent_path, parent.acl))

    # --- reads --------------------------------------------------------------------------------

    def find(self, path: str) -> Node | None:
        """The node, or None. An empty path means the root, as in ZooKeeper."""
        return self.nodes.get(path or paths.ROOT)

    def exists(self, path: str) -> Node:
        """The node, whoever asks."""
        if "\0" in path:
            raise OperationError(p.BAD_ARGUMENTS)
        return self._required(path)

    def get_data(self, path: str, identities: Identities) -> Node:
        """The node, for one who may read it."""
        node = self._required(path)
        _require(node.acl, p.PERM_READ, identities)
        return node

    # The children's names may be read by the same people as the data.
    get_children = get_data

    def get_acl(self, path: str, identities: Identities) -> tuple[ACLs, Node]:
        """The list, its digests masked for one who may not administer the node."""
        node = self._required(path)
        _require(node.acl, p.PERM_READ | p.PERM_ADMIN, identities)
        if permits(node.acl, p.PERM_ADMIN, identities):
            return node.acl, node
        return masked(node.acl), node

    def get_ephemerals(self, session: int, prefix: str) -> list[str]:
        """The session's own ephemerals whose paths begin with `prefix`; a blank one means all."""
        if prefix.strip(_BLANKS) in ("", paths.ROOT):
            return self.ephemerals_of(session)
        return [path for path in self.ephemerals_of(session) if path.startswith(prefix)]

    def ephemerals_of(self, session: int) -> list[str]:
        """The paths of a session's ephemerals; none if there is no such session."""
        opened = self.sessions.get(session)
        return opened.in_order() if opened else []

    def all_children_number(self, path: str, identities: Identities) -> int:
        """How many nodes are anywhere below this one. An empty path counts the root as well."""
        self.get_data(path, identities)
        count, waiting = int(not path), [path.rstrip("/")]
        while waiting:
            above = waiting.pop()
            names = self.nodes[above or paths.ROOT].children
            if names:
                count += len(names)
                waiting.extend(f"{above}/{name}" for name in names)
        return count

    def due_containers(self, now_ms: int) -> list[str]:
        """What `DeleteContainer` would remove now."""
        due = list(self.idle_containers)
        due.extend(path for path in self.ttl_nodes if _is_due(self.nodes[path], now_ms))
        return due

    def validate(self) -> None:
        """Check every invariant of the structure; `BugError` names the first that is broken."""
        check_state(self)

    # --- what the writes and the reads ask ----------------------------------------------------

    def _required(self, path: str) -> Node:
        node = self.nodes.get(path or paths.ROOT)
        if node is None:
            raise OperationError(p.NO_NODE)
        return node

    def _required_valid(self, path: str) -> Node:
        # A path that has a node is valid: only one that has none needs a closer look.
        node = self.nodes.get(path)
        if node is None:
            raise OperationError(p.NO_NODE if paths.is_valid(path) else p.BAD_ARGUMENTS)
        return node

    def _require_session(self, step: _ApplyContext) -> None:
        if step.session not in self.sessions:
            raise OperationError(p.SESSION_EXPIRED)


def _require(acl: ACLs, permission: int, identities: Identities) -> None:
    if acl is not OPEN and not permits(acl, permission, identities):
        raise OperationError(p.NO_AUTH)


def _require_version(current: int, expected: int) -> None:
    if expected not in (-1, current):
        raise OperationError(p.BAD_VERSION)


def _is_due(node: Node, now_ms: int) -> bool:
    if node.children:
        return False
    if node.lifetime_ms == CONTAINER:
        return node.creates > 0
    return node.lifetime_ms > FOREVER and now_ms - node.mtime > node.lifetime_ms


# --- invariants -----------------------------------------------------------------------------------
# What must always be true of the tree's state, as code.


def check_state(state: TreeState) -> None:
    """Look at every node and session; `BugError` names the first thing that is wrong."""
    _true(state.undo is None, "a multi is still open")
    for path in paths.SPECIAL:
        _true(path in state.nodes, f"{path} is missing")
    seen: set[str] = set()
    named = 0
    for path, node in state.nodes.items():
        _check_place(state, path, seen)
        _check_numbers(state, path, node)
        seen.add(path)
        named += len(node.children or ())
    _true(named == len(state.nodes) - 1, f"{named} children are named, of {len(state.nodes)} nodes")
    _check_indexes(state)


def _true(condition: bool, otherwise: str) -> None:
    if not condition:
        raise BugError(f"the tree is broken: {otherwise}")


def _check_place(state: TreeState, path: str, seen: set[str]) -> None:
    _true(paths.is_valid(path), f"{path!r} is no valid path")
    if path == paths.ROOT:
        return
    above, _, name = path.rpartition("/")
    parent = state.nodes.get(above or paths.ROOT)
    if parent is None:
        raise BugError(f"the tree is broken: {path} has no parent")
    _true((above or paths.ROOT) in seen, f"{path} stands before its parent")
    _true(name in (parent.children or ()), f"{path} is unknown to its parent")
    _true(not parent.owner, f"{path} is the child of an ephemeral")


def _check_numbers(state: TreeState, path: str, node: Node) -> None:
    _true(node.children is None or len(node.children) > 0, f"{path} keeps an empty dict")
    _true(0 <= node.czxid <= node.mzxid <= state.last_zxid, f"{path}: czxid, mzxid are unordered")
    _true(node.czxid <= node.pzxid <= state.last_zxid, f"{path}: czxid, pzxid are unordered")
    _true(node.lifetime_ms >= CONTAINER, f"{path} has lifetime {node.lifetime_ms}")
    _true(not (node.owner and node.lifetime_ms), f"{path} is ephemeral and has a lifetime")
    _true(len(node.acl) > 0, f"{path} has no ACL")
    if path not in paths.SPECIAL:
        _true(node.creates >= len(node.children or ()), f"{path} has more children than creates")
        _true(node.czxid > 0, f"{path} was made by no transaction")


def _check_indexes(state: TreeState) -> None:
    ephemerals = {
        path: (node.owner, node.czxid) for path, node in state.nodes.items() if node.owner
    }
    indexed = {
        path: (session, czxid)
        for session, opened in state.sessions.items()
        for path, czxid in opened.ephemerals.items()
    }
    _true(ephemerals == indexed, f"ephemerals {ephemerals} are indexed as {indexed}")
    for session, opened in state.sessions.items():
        fits = 4 * len(opened.ephemerals) <= 3 * opened.slots
        _true(fits, f"session {session:#x} has too few slots")
    size = sum(len(path) + len(node.data or b"") for path, node in state.nodes.items())
    _true(size == state.data_bytes, f"{size} bytes are counted as {state.data_bytes}")
    idle = {
        path
        for path, node in state.nodes.items()
        if node.lifetime_ms == CONTAINER and node.creates and not node.children
    }
    _true(idle == set(state.idle_containers), f"idle containers {idle} are indexed wrongly")
    ttl = {path for path, node in state.nodes.items() if node.lifetime_ms > FOREVER}
    _true(ttl == set(state.ttl_nodes), f"TTL nodes {ttl} are indexed wrongly")
