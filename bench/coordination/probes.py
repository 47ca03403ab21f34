"""One client that asks again and again, and keeps every latency: stalls show as the longest."""

from __future__ import annotations

import time
from typing import Final

from bench.coordination import wire
from bench.coordination.clients import Taken, data_of
from bench.coordination.wire import Link

NODE: Final = b"/bench/probed"
READ_EVERY_S: Final = 0.002


def probe_reads(link: Link, seconds: float) -> Taken:
    """A read every two milliseconds, each counted with those that it kept from being sent."""
    wire.make_path(link, NODE)
    link.expect(wire.SET_DATA, wire.set_body(NODE, data_of(0)))
    body, expected = wire.get_body(NODE), wire.text(data_of(0))
    latencies: list[float] = []
    wrong = 0
    clock = time.perf_counter
    started = now = due = clock()
    while now < started + seconds:
        if due > now:
            time.sleep(due - now)
        since = clock()
        error, answer = link.call(wire.GET_DATA, body)
        now = clock()
        latencies += with_the_unsent(now - since, READ_EVERY_S)
        wrong += bool(error) or not answer.startswith(expected)
        due = max(now, due + READ_EVERY_S)
    return Taken(len(latencies), wrong, now - started, latencies)


def with_the_unsent(latency_s: float, every_s: float) -> list[float]:
    """A latency, and those of the requests that were due while it lasted.

    One answer that takes 100 ms is one of many for a client that waits for it, but it is fifty
    for clients that come every 2 ms: without them a stall would vanish from the percentiles.
    """
    found = [latency_s]
    while found[-1] > every_s:
        found.append(found[-1] - every_s)
    return found


def probe_writes(link: Link, seconds: float) -> Taken:
    """One write after the other, each to the same node."""
    node = NODE + b"-by-writes"
    wire.make_path(link, node)
    body = wire.set_body(node, data_of(1))
    latencies: list[float] = []
    wrong = 0
    clock = time.perf_counter
    started = now = clock()
    while now < started + seconds:
        since = now
        error, _ = link.call(wire.SET_DATA, body)
        now = clock()
        latencies.append(now - since)
        wrong += bool(error)
    return Taken(len(latencies), wrong, now - started, latencies)
