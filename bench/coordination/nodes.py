"""A hundred thousand nodes: the time to load them, the memory they take, the time to restart."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from bench.coordination.bench import Bench
from bench.coordination.contestants import Observer, family, rss_bytes, time_start
from bench.coordination.report import Goal, Row
from tests.servers import ServerProcess

MEMORY: Final = Goal(300, at_least=False, is_ratio=False)
RESTART: Final = Goal(3, at_least=False, is_ratio=False)
MB: Final = 1_000_000
# A snapshot that the load has caused is given so long to end before memory is read.
SETTLE_S_MAX: Final = 30.0


def nodes(bench: Bench) -> list[Row]:
    rows = load(bench)
    plan = bench.plan
    count = f"{plan.nodes:,} nodes"
    polite = Row("nodes", f"{count}: restart after SIGTERM", "s", RESTART)
    hard = Row("nodes", f"{count}: restart after kill -9", "s", RESTART)
    memory = Row("nodes", f"{count}: memory after a restart", "MB", MEMORY)
    (generator,) = bench.generators(1)
    ways: list[tuple[Row, Callable[[ServerProcess], object]]] = [
        (polite, ServerProcess.stop),
        (hard, ServerProcess.kill),
    ]
    for number in range(plan.restarts):
        for row, end in ways:
            for name, server in bench.loaded.items():
                bench.say(f"{row.what}, {name}, {number + 1} of {plan.restarts}")
                end(server)
                seconds = time_start(server)
                lost = generator.call("missing", port=server.port, count=plan.nodes, seed=number)
                row.add(name, seconds, lost["wrong"])
                memory.add(name, rss_bytes(server.pid) / MB)
    return [*rows, polite, hard, memory]


def load(bench: Bench) -> list[Row]:
    """Load fresh servers and leave them running in `bench.loaded`."""
    plan = bench.plan
    count = f"{plan.nodes:,} nodes"
    seconds = Row("nodes", f"{count}: time to load", "s")
    memory = Row("nodes", f"{count}: memory after the load", "MB", MEMORY)
    peak = Row("nodes", f"{count}: peak while loading, with its snapshot's process", "MB")
    (generator,) = bench.generators(1)
    for name in bench.names:
        bench.say(f"nodes: loading {count} into {name}")
        server = bench.start_loaded(name)
        with Observer(server) as observer:
            answer = generator.call("fill", port=server.port, count=plan.nodes)
            _settle(server)
        seconds.add(name, answer["seconds"], answer["wrong"])
        memory.add(name, rss_bytes(server.pid) / MB)
        peak.add(name, observer.peak_bytes / MB)
    return [seconds, memory, peak]


def _settle(server: ServerProcess) -> None:
    deadline = time.monotonic() + SETTLE_S_MAX
    while len(family(server.pid)) > 1 and time.monotonic() < deadline:
        time.sleep(0.1)
    time.sleep(0.3)  # two looks of the observer
