"""Load of one kind: set, create or get, by kazoo or by the plain socket, n requests in flight.

Each generator has a folder of its own in the tree, so every answer can be checked: a set's reply
has the next version, a get's the node's own bytes, a create's the path that was asked for.
"""

from __future__ import annotations

import itertools
import time
from collections import deque
from typing import Any, Final, NamedTuple

from kazoo.client import KazooClient
from kazoo.exceptions import KazooException

from bench.coordination import wire
from bench.coordination.wire import Link

DATA_BYTES: Final = 100
NODES: Final = 16
# A kazoo request that takes longer is counted as an error.
ANSWER_S: Final = 30.0
# More than any server answers in a round; the round's time ends it first.
REQUESTS_MAX: Final = 100_000_000
_VERSION: Final = slice(32, 36)
_rounds = itertools.count(1)


class Taken(NamedTuple):
    """What one measurement of one generator gave. Latencies only with one request in flight."""

    done: int
    wrong: int
    seconds: float
    latencies_s: list[float]


def data_of(node: int) -> bytes:
    return b"%02d" % (node % 100) * (DATA_BYTES // 2)


class Operation:
    """One kind of request: the i-th of it, and whether its answer is right."""

    opcode = 0

    def __init__(self, link: Link, folder: bytes) -> None:
        self.folder = folder
        self.paths = [folder + b"/n%02d" % node for node in range(NODES)]
        wire.make_path(link, folder)
        for node, path in enumerate(self.paths):
            body = wire.create_body(path, data_of(node))
            link.expect(wire.CREATE, body, (0, wire.NODE_EXISTS))

    def body(self, index: int) -> bytes:
        raise AssertionError("each kind of request has a body")

    def is_right(self, index: int, answer: bytes) -> bool:
        raise AssertionError("each kind of request has an answer")

    def start(self, client: KazooClient, index: int) -> Any:
        """Send the i-th by kazoo; what kazoo calls an asynchronous result."""
        raise AssertionError("each kind of request is sent")

    def is_right_value(self, index: int, value: Any) -> bool:
        raise AssertionError("each kind of request has an answer")

    def tidy(self, link: Link, count: int) -> None:
        """Take back what `count` requests have left."""


class SetData(Operation):
    opcode = wire.SET_DATA

    def __init__(self, link: Link, folder: bytes) -> None:
        super().__init__(link, folder)
        self.bodies = [wire.set_body(path, data_of(n)) for n, path in enumerate(self.paths)]
        # The last set of the preparation tells where each node's version stands.
        stats = [link.expect(wire.SET_DATA, body) for body in self.bodies]
        self.versions = [int.from_bytes(stat[_VERSION], "big") for stat in stats]
        self.names = [path.decode() for path in self.paths]

    def expected(self, index: int) -> int:
        return self.versions[index % NODES] + index // NODES + 1

    def body(self, index: int) -> bytes:
        return self.bodies[index % NODES]

    def is_right(self, index: int, answer: bytes) -> bool:
        return int.from_bytes(answer[_VERSION], "big") == self.expected(index)

    def start(self, client: KazooClient, index: int) -> Any:
        return client.set_async(self.names[index % NODES], data_of(index % NODES))

    def is_right_value(self, index: int, value: Any) -> bool:
        return bool(value.version == self.expected(index))


class GetData(Operation):
    opcode = wire.GET_DATA

    def __init__(self, link: Link, folder: bytes) -> None:
        super().__init__(link, folder)
        self.bodies = [wire.get_body(path) for path in self.paths]
        self.answers = [wire.text(data_of(node)) for node in range(NODES)]
        self.names = [path.decode() for path in self.paths]

    def body(self, index: int) -> bytes:
        return self.bodies[index % NODES]

    def is_right(self, index: int, answer: bytes) -> bool:
        return answer.startswith(self.answers[index % NODES])

    def start(self, client: KazooClient, index: int) -> Any:
        return client.get_async(self.names[index % NODES])

    def is_right_value(self, index: int, value: Any) -> bool:
        return bool(value[0] == data_of(index % NODES))


class Create(Operation):
    opcode = wire.CREATE

    def __init__(self, link: Link, folder: bytes) -> None:
        super().__init__(link, folder)
        self.parent = folder + b"/round-%d" % next(_rounds)
        wire.make_path(link, self.parent)

    def path(self, index: int) -> bytes:
        return self.parent + b"/c%08d" % index

    def body(self, index: int) -> bytes:
        return wire.create_body(self.path(index), data_of(index % NODES))

    def is_right(self, index: int, answer: bytes) -> bool:
        return answer == wire.text(self.path(index))

    def start(self, client: KazooClient, index: int) -> Any:
        return client.create_async(self.path(index).decode(), data_of(index % NODES))

    def is_right_value(self, index: int, value: Any) -> bool:
        return bool(value == self.path(index).decode())

    def tidy(self, link: Link, count: int) -> None:
        link.pipeline(
            wire.DELETE,
            lambda index: wire.delete_body(self.path(index)),
            lambda _, answer: not answer,
            256,
            count,
        )
        link.expect(wire.DELETE, wire.delete_body(self.parent))


OPERATIONS: Final[dict[str, type[Operation]]] = {
    "set": SetData,
    "create": Create,
    "get": GetData,
}


def by_kazoo(client: KazooClient, operation: Operation, in_flight: int, seconds: float) -> Taken:
    """A sliding window over one kazoo client; with one in flight each request is timed."""
    window: deque[tuple[int, float, Any]] = deque()
    latencies: list[float] = []
    sent = done = wrong = 0
    clock = time.perf_counter
    started = clock()
    until = started + seconds
    going = True
    while going or window:
        while going and len(window) < in_flight:
            window.append((sent, clock(), operation.start(client, sent)))
            sent += 1
        index, since, pending = window.popleft()
        try:
            value = pending.get(timeout=ANSWER_S)
            right = operation.is_right_value(index, value)
        except (KazooException, client.handler.timeout_exception):
            right = False
        now = clock()
        if in_flight == 1:
            latencies.append(now - since)
        done += 1
        wrong += not right
        going = now < until
    return Taken(done, wrong, clock() - started, latencies)


def by_socket(link: Link, operation: Operation, in_flight: int, seconds: float) -> Taken:
    """The same over the plain socket."""
    if in_flight == 1:
        return _one_by_one(link, operation, seconds)
    clock = time.perf_counter
    started = clock()
    done, wrong = link.pipeline(
        operation.opcode,
        operation.body,
        operation.is_right,
        in_flight,
        REQUESTS_MAX,
        started + seconds,
    )
    return Taken(done, wrong, clock() - started, [])


def _one_by_one(link: Link, operation: Operation, seconds: float) -> Taken:
    latencies: list[float] = []
    wrong = 0
    clock = time.perf_counter
    started = now = clock()
    until = started + seconds
    while now < until:
        since = now
        error, answer = link.call(operation.opcode, operation.body(len(latencies)))
        now = clock()
        wrong += bool(error) or not operation.is_right(len(latencies), answer)
        latencies.append(now - since)
    return Taken(len(latencies), wrong, now - started, latencies)


def warm_up(link: Link, folder: bytes, seconds: float) -> int:
    """Exercise every operation of a server until its compiler has seen them; wrong answers."""
    wrong = 0
    for make in OPERATIONS.values():
        operation = make(link, folder)
        taken = by_socket(link, operation, 64, seconds / len(OPERATIONS))
        operation.tidy(link, taken.done)
        wrong += taken.wrong
    return wrong
