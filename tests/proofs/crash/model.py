"""What one writer's part of the tree must look like.

A writer owns a subtree, so the result of each of its requests is known before it is sent. A
server that dies has kept a prefix of them: all that were acknowledged, and perhaps some of those
that were not, in order, each whole or not at all. So what is found after a restart must be the
state after one of these prefixes, to the last version number.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from holdfast.coordination.embedded import protocol
from tests.proofs import wire

NODES_MAX = 40
SHARED_MAX = 12
LEFT, RIGHT, LINE = "/shared/left", "/shared/right", "/shared/line"


class Violation(Exception):
    """A promise was broken."""


class Node(NamedTuple):
    data: bytes
    version: int
    ephemeral: bool


@dataclass(frozen=True)
class State:
    """A writer's nodes (names below its root), its nodes in the shared line, its session's end."""

    nodes: Mapping[str, Node]
    shared: frozenset[int] = frozenset()
    creates: int = 0  # ever made in the writer's own line
    closed: bool = False

    def with_node(self, name: str, node: Node | None) -> State:
        nodes = dict(self.nodes)
        if node is None:
            del nodes[name]
        else:
            nodes[name] = node
        return replace(self, nodes=nodes)

    def with_data(self, name: str, data: bytes) -> State:
        old = self.nodes[name]
        return self.with_node(name, old._replace(data=data, version=old.version + 1))


class Request(NamedTuple):
    """Something asked, its answer, and the state after it."""

    number: int
    opcode: int
    body: bytes
    error: int
    after: State
    changed: tuple[str, ...] = ()  # nodes that carry its zxid afterwards
    pair: bytes = b""  # what it writes to the shared pair
    joins: bool = False  # it makes a node in the shared line


@dataclass
class Asker:
    """Draws a writer's requests."""

    root: str
    name: str
    draw: random.Random
    number: int = 0
    paths: dict[int, str] = field(default_factory=dict)  # of our acknowledged nodes in the line

    def next(self, state: State) -> Request:
        self.number += 1
        kinds = (
            (self._set_counter, 4),
            (self._create, 5),
            (self._create_ephemeral, 2),
            (self._create_in_own_line, 3),
            (self._join_shared_line, 3),
            (self._leave_shared_line, 2),
            (self._delete, 3),
            (self._set_if_version, 3),
            (self._refused_set, 1),
            (self._multi, 4),
            (self._refused_multi, 2),
            (self._set_pair, 4),
        )
        full = len(state.nodes) >= NODES_MAX
        ask = self._delete if full else self.draw.choices(*zip(*kinds, strict=True))[0]
        request: Request = ask(state)
        return request

    def close(self, state: State) -> Request:
        """End the session; its ephemeral nodes go with it."""
        self.number += 1
        kept = {name: node for name, node in state.nodes.items() if not node.ephemeral}
        after = replace(state, nodes=kept, closed=True)
        return Request(self.number, protocol.CLOSE_SESSION, b"", protocol.OK, after)

    def _data(self) -> bytes:
        return b"%d:" % self.number + self.draw.randbytes(self.draw.randrange(60))

    def _removable(self, state: State) -> list[str]:
        return [name for name in state.nodes if name not in ("counter", "line")]

    def _set_counter(self, state: State) -> Request:
        data = b"%d" % self.number
        body = wire.set_data_body(f"{self.root}/counter", data)
        after = state.with_data("counter", data)
        return Request(self.number, protocol.SET_DATA, body, 0, after, ("counter",))

    def _create(self, state: State, flags: int = protocol.FLAG_PERSISTENT) -> Request:
        ephemeral = flags == protocol.FLAG_EPHEMERAL
        name, data = f"{'e' if ephemeral else 'n'}{self.number}", self._data()
        body = wire.create_body(f"{self.root}/{name}", data, flags)
        after = state.with_node(name, Node(data, 0, ephemeral))
        return Request(self.number, protocol.CREATE, body, 0, after, (name,))

    def _create_ephemeral(self, state: State) -> Request:
        return self._create(state, protocol.FLAG_EPHEMERAL)

    def _create_in_own_line(self, state: State) -> Request:
        name, data = f"line/q-{state.creates:010d}", self._data()
        body = wire.create_body(f"{self.root}/line/q-", data, protocol.FLAG_SEQUENTIAL)
        after = replace(state.with_node(name, Node(data, 0, False)), creates=state.creates + 1)
        return Request(self.number, protocol.CREATE, body, 0, after, (name,))

    def _join_shared_line(self, state: State) -> Request:
        if len(state.shared) >= SHARED_MAX:
            return self._leave_shared_line(state)
        path = f"{LINE}/{self.name}-{self.number}-"
        body = wire.create_body(path, self._data(), protocol.FLAG_SEQUENTIAL)
        after = replace(state, shared=state.shared | {self.number})
        return Request(self.number, protocol.CREATE, body, 0, after, joins=True)

    def _leave_shared_line(self, state: State) -> Request:
        known = sorted(number for number in state.shared if number in self.paths)
        if not known:
            return self._set_counter(state)
        gone = self.draw.choice(known)
        after = replace(state, shared=state.shared - {gone})
        body = wire.versioned_body(self.paths[gone])
        return Request(self.number, protocol.DELETE, body, 0, after)

    def _delete(self, state: State) -> Request:
        names = self._removable(state)
        if not names:
            return self._create(state)
        name = self.draw.choice(names)
        body = wire.versioned_body(f"{self.root}/{name}", state.nodes[name].version)
        return Request(self.number, protocol.DELETE, body, 0, state.with_node(name, None))

    def _set_if_version(self, state: State) -> Request:
        name, data = self.draw.choice(list(state.nodes)), self._data()
        body = wire.set_data_body(f"{self.root}/{name}", data, state.nodes[name].version)
        after = state.with_data(name, data)
        return Request(self.number, protocol.SET_DATA, body, 0, after, (name,))

    def _refused_set(self, state: State) -> Request:
        name = self.draw.choice(list(state.nodes))
        body = wire.set_data_body(f"{self.root}/{name}", b"no", state.nodes[name].version + 7)
        return Request(self.number, protocol.SET_DATA, body, protocol.BAD_VERSION, state)

    def _parts(self, state: State) -> tuple[list[tuple[int, bytes]], State, tuple[str, ...]]:
        """Three creates, the counter, and a delete if something can be deleted."""
        parts, changed = [], ["counter"]
        for letter in "abc":
            name, data = f"m{self.number}{letter}", self._data()
            body = wire.create_body(f"{self.root}/{name}", data)
            parts.append((protocol.CREATE, body))
            state = state.with_node(name, Node(data, 0, False))
            changed.append(name)
        counter = b"%d" % self.number
        parts.append((protocol.SET_DATA, wire.set_data_body(f"{self.root}/counter", counter)))
        state = state.with_data("counter", counter)
        old = [name for name in self._removable(state) if name not in changed]
        if old:
            gone = self.draw.choice(old)
            parts.append((protocol.DELETE, wire.versioned_body(f"{self.root}/{gone}")))
            state = state.with_node(gone, None)
        return parts, state, tuple(changed)

    def _multi(self, state: State) -> Request:
        parts, after, changed = self._parts(state)
        return Request(self.number, protocol.MULTI, wire.multi_body(parts), 0, after, changed)

    def _refused_multi(self, state: State) -> Request:
        """Its last part fails, so nothing of it may be seen."""
        parts, _, _ = self._parts(state)
        missing = wire.versioned_body(f"{self.root}/never-there")
        parts.append((protocol.CHECK, missing))
        body = wire.multi_body(parts)
        return Request(self.number, protocol.MULTI, body, protocol.NO_NODE, state)

    def _set_pair(self, state: State) -> Request:
        """Both shared nodes and our counter, in one transaction."""
        token, counter = f"{self.name}:{self.number}".encode(), b"%d" % self.number
        parts = [
            (protocol.SET_DATA, wire.set_data_body(LEFT, token)),
            (protocol.SET_DATA, wire.set_data_body(f"{self.root}/counter", counter)),
            (protocol.SET_DATA, wire.set_data_body(RIGHT, token)),
        ]
        after = state.with_data("counter", counter)
        body = wire.multi_body(parts)
        return Request(self.number, protocol.MULTI, body, 0, after, ("counter",), pair=token)


@dataclass
class Stream:
    """What a writer has asked: the state after the acknowledged part, and the open rest."""

    state: State
    open: list[Request] = field(default_factory=list)

    @property
    def planned(self) -> State:
        return self.open[-1].after if self.open else self.state

    def acknowledge(self) -> Request:
        request = self.open.pop(0)
        self.state = request.after
        return request

    def settle(self, found: State, who: str) -> list[Request]:
        """Find the prefix that `found` shows; those of the open requests that happened.

        Raises `Violation` if it shows none: something acknowledged is missing, or something is
        there by half, or in another order than it was asked for.
        """
        states = [self.state, *(request.after for request in self.open)]
        for count, state in enumerate(states):
            if state == found:
                happened, self.open = self.open[:count], []
                self.state = state
                return happened
        raise Violation(
            f"{who}: the state is that of no prefix of what was asked; {len(self.open)} requests "
            f"were open.\nagainst the acknowledged state: {difference(self.state, found)}\n"
            f"against the state with all open ones: {difference(self.planned, found)}"
        )


def difference(wanted: State, found: State) -> str:
    """What differs, for people."""
    lines = []
    for name in sorted({*wanted.nodes, *found.nodes}):
        one, other = wanted.nodes.get(name), found.nodes.get(name)
        if one != other:
            lines.append(f"  {name}: {one} wanted, {other} found")
    if wanted.shared != found.shared:
        lines.append(f"  in the shared line: {sorted(wanted.shared ^ found.shared)} differ")
    if wanted.creates != found.creates:
        lines.append(f"  creates in its line: {wanted.creates} wanted, {found.creates} found")
    if wanted.closed != found.closed:
        lines.append(f"  session closed: {wanted.closed} wanted, {found.closed} found")
    return "\n".join(["", *lines]) if lines else "nothing"
