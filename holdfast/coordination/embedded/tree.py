"""The tree: a state machine without I/O, clock or chance.

`apply` decides and carries out; the reads answer. What is refused, and which refusal wins when
several apply, is as in ZooKeeper 3.8.
"""

from __future__ import annotations

from typing import Final

from holdfast.coordination.embedded import invariants, paths
from holdfast.coordination.embedded import protocol as p
from holdfast.coordination.embedded.acl import OPEN, ACLs, Identities, fix_up, masked, permits
from holdfast.coordination.embedded.node import CONTAINER, FOREVER, Node
from holdfast.coordination.embedded.refusal import OperationError
from holdfast.coordination.embedded.state import (
    ROW_ACL,
    ROW_NODE,
    ROW_SESSION,
    Row,
    SessionState,
    State,
    next_version,
)
from holdfast.coordination.embedded.transactions import (
    Changed,
    Check,
    CloseSession,
    Create,
    Created,
    Delete,
    DeleteContainer,
    Done,
    Event,
    Failed,
    Multi,
    OpenSession,
    Operation,
    Outcome,
    Reject,
    Result,
    SetACL,
    SetData,
    Transaction,
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


class _Step:
    """What every operation of one transaction needs to know, and the events it leaves."""

    __slots__ = ("events", "identities", "now_ms", "session", "zxid")

    def __init__(self, transaction: Transaction, zxid: int, now_ms: int) -> None:
        self.session = transaction.session
        self.identities = transaction.identities
        self.zxid = zxid
        self.now_ms = now_ms
        self.events: list[Event] = []


class Tree(State):
    """The nodes and the sessions of one server.

    `nodes_max` bounds the nodes; creates beyond it answer QUOTA_EXCEEDED. It is part of what is
    decided: replay a log with the bound that it was written under.
    """

    # --- writes -------------------------------------------------------------------------------

    def apply(self, transaction: Transaction, zxid: int, now_ms: int) -> Outcome:
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
        step = _Step(transaction, zxid, now_ms)
        operation = transaction.operation
        try:
            if isinstance(operation, Multi):
                results = self._multi(operation, step)
            else:
                results = (self._one(operation, step),)
        except OperationError as refusal:
            return Outcome(refusal.code, (), ())
        return Outcome(p.OK, results, tuple(step.events))

    def _one(self, operation: Operation, step: _Step) -> Result:
        if isinstance(operation, Create):
            return self._create(operation, step)
        if isinstance(operation, SetData):
            return self._set_data(operation, step)
        if isinstance(operation, Delete):
            return self._delete(operation, step)
        if isinstance(operation, Check):
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

    def _create(self, operation: Create, step: _Step) -> Result:
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
        step.events.append(Event(p.EVENT_CREATED, path, stored_acl))
        step.events.append(Event(p.EVENT_CHILDREN_CHANGED, parent_path, parent.acl))
        return Created(path, node.stat() if wants_stat else None)

    def _delete(self, operation: Delete, step: _Step) -> Result:
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

    def _set_data(self, operation: SetData, step: _Step) -> Result:
        path, data, version = operation
        self._require_session(step)
        node = self._required_valid(path)
        _require(node.acl, p.PERM_WRITE, step.identities)
        _require_version(node.version, version)
        self.set_data(node, data, step.zxid, step.now_ms)
        step.events.append(Event(p.EVENT_DATA_CHANGED, path, node.acl))
        return Changed(node.stat())

    def _check(self, operation: Check, step: _Step) -> Result:
        path, version = operation
        self._require_session(step)
        node = self._required_valid(path)
        _require(node.acl, p.PERM_READ, step.identities)
        _require_version(node.version, version)
        return _DONE

    def _set_acl(self, operation: SetACL, step: _Step) -> Result:
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

    def _multi(self, multi: Multi, step: _Step) -> tuple[Result, ...]:
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
                *(Failed(p.OK),) * before,
                Failed(refusal.code),
                *(Failed(p.RUNTIME_INCONSISTENCY),) * after,
            )
        finally:
            self.undo = None
        return tuple(results)

    def _open_session(self, operation: OpenSession, step: _Step) -> Result:
        known = self.sessions.get(step.session)
        if known is None:
            self.sessions[step.session] = SessionState(operation.timeout_ms)
        else:
            known.timeout_ms = operation.timeout_ms
        return _DONE

    def _close_session(self, step: _Step) -> Result:
        # It may be gone already: its client closed it, and its time ran out as well.
        for path in self.ephemerals_of(step.session):
            parent_path = path[: path.rfind("/")] or paths.ROOT
            self._remove(path, self.nodes[path], self.nodes[parent_path], parent_path, step)
        self.sessions.pop(step.session, None)
        return _DONE

    def _delete_container(self, operation: DeleteContainer, step: _Step) -> Result:
        path = operation.path
        node = self._required(path)
        if node.children:
            raise OperationError(p.NOT_EMPTY)
        if not _is_due(node, step.now_ms):
            raise OperationError(p.BAD_VERSION)
        parent_path = path[: path.rfind("/")] or paths.ROOT
        self._remove(path, node, self.nodes[parent_path], parent_path, step)
        return _DONE

    def _remove(self, path: str, node: Node, parent: Node, parent_path: str, step: _Step) -> None:
        self.remove(path, node, parent, parent_path, step.zxid)
        step.events.append(Event(p.EVENT_DELETED, path, node.acl))
        step.events.append(Event(p.EVENT_CHILDREN_CHANGED, parent_path, parent.acl))

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
        invariants.check(self)

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

    def _require_session(self, step: _Step) -> None:
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
