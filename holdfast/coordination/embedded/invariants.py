"""What must always be true of the tree's state, as code."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.coordination.embedded import paths
from holdfast.coordination.embedded.node import CONTAINER, FOREVER, Node
from holdfast.wire.errors import BugError

if TYPE_CHECKING:
    from holdfast.coordination.embedded.state import State


def check(state: State) -> None:
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


def _check_place(state: State, path: str, seen: set[str]) -> None:
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


def _check_numbers(state: State, path: str, node: Node) -> None:
    _true(node.children is None or len(node.children) > 0, f"{path} keeps an empty dict")
    _true(0 <= node.czxid <= node.mzxid <= state.last_zxid, f"{path}: czxid, mzxid are unordered")
    _true(node.czxid <= node.pzxid <= state.last_zxid, f"{path}: czxid, pzxid are unordered")
    _true(node.lifetime_ms >= CONTAINER, f"{path} has lifetime {node.lifetime_ms}")
    _true(not (node.owner and node.lifetime_ms), f"{path} is ephemeral and has a lifetime")
    _true(len(node.acl) > 0, f"{path} has no ACL")
    if path not in paths.SPECIAL:
        _true(node.creates >= len(node.children or ()), f"{path} has more children than creates")
        _true(node.czxid > 0, f"{path} was made by no transaction")


def _check_indexes(state: State) -> None:
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
