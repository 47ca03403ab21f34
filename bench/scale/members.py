"""`python -m bench.scale.members [--json]`: what the list of agents costs a leader.

Members that another client has put there; one follows them, as a leader follows its agents. Then:
how long a new leader takes to know all of them, and, when one more joins, how long until the
follower is told, with the processor time that it spent on it.
"""

from __future__ import annotations

import json
import statistics
import threading
import time
from typing import Any

from bench.coordination import wire
from bench.coordination.wire import Link
from bench.scale import over_server
from holdfast.coordination import Membership, connect
from holdfast.coordination.membership import Members
from tests.servers.embedded import EmbeddedServer

SIZES = (100, 1_000, 10_000)
JOINS = 5
PATH = "/holdfast/nodes"
DATA = json.dumps(
    {"mark": 32 * "a", "data": {"address": "10.0.0.1:7000", "cpu": 64.0, "memory_bytes": 1 << 38}}
).encode()
_PATIENCE_S = 120.0


class MemberCounter:
    """The members that the follower was told of last."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._count = -1

    def __call__(self, members: Members) -> None:
        with self._changed:
            self._count = len(members)
            self._changed.notify_all()

    def wait(self, count: int) -> None:
        with self._changed:
            if not self._changed.wait_for(lambda: self._count == count, _PATIENCE_S):
                raise TimeoutError(f"{self._count} of {count} members are known")


def measure(server: EmbeddedServer, count: int) -> dict[str, Any]:
    link = Link(server.port).open()
    wire.make_path(link, PATH.encode())

    def create(number: int) -> None:
        path = f"{PATH}/node-{number:05}".encode()
        link.expect(wire.CREATE, wire.create_body(path, DATA))

    for number in range(count):
        create(number)
    counter = MemberCounter()
    joins = []
    with connect(f"zk://127.0.0.1:{server.port}") as session:
        begun_s, begun_cpu_s = time.monotonic(), time.process_time()
        with Membership(session, PATH).watch(counter):
            counter.wait(count)
            first = (time.monotonic() - begun_s, time.process_time() - begun_cpu_s)
            for number in range(count, count + JOINS):
                begun_s, begun_cpu_s = time.monotonic(), time.process_time()
                create(number)
                counter.wait(number + 1)
                joins.append((time.monotonic() - begun_s, time.process_time() - begun_cpu_s))
    link.close()
    took_s, used_s = zip(*joins, strict=True)
    return {
        "members": count,
        "first_s": round(first[0], 3),
        "first_cpu_s": round(first[1], 3),
        "join_ms": round(1e3 * statistics.median(took_s), 1),
        "join_cpu_ms": round(1e3 * statistics.median(used_s), 1),
    }


if __name__ == "__main__":
    over_server.run("members", __doc__, SIZES, measure)
