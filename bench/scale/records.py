"""`python -m bench.scale.records [--json]`: how large records and messages get, and what they cost.

The product's own code makes them, for jobs of 10 to 10,000 workers with as many lanes:

- the view: as a record of the coordination plane, and as the order that every member is given;
- telling all members of a new view: from the decisions to the bytes for each agent's stream;
- an agent's report, with ten workers on its machine;
- a manifest, with a part for each worker.

Times are of the processor, the median of several.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from holdfast.control.decide.commands import Decision
from holdfast.control.decide.facts import Placement
from holdfast.control.decide.views import assign
from holdfast.control.rpc.connections import AgentConnections, AgentHello
from holdfast.control.store import codec
from holdfast.storage import manifests
from holdfast.storage.manifests import Manifest
from holdfast.wire import rpc, values
from holdfast.wire.orders import GiveView, View
from holdfast.wire.proto import cluster_pb2 as pb
from holdfast.wire.reports import NodeFacts, Part, WorkerFacts, WorkerPhase
from holdfast.wire.resources import Resources

SIZES = (10, 100, 1_000, 10_000)
WORKERS_A_NODE = 10
PLACEMENTS_A_PAGE = 256


def view_of(workers: int) -> View:
    """Numbers, addresses and lanes as a long-lived job of a large cluster has them."""
    numbers = range(workers, 2 * workers)
    lanes = assign(workers, numbers, {})
    addresses = {n: f"10.{n >> 16 & 255}.{n >> 8 & 255}.{n & 255}:20{n % 1000:03}" for n in numbers}
    return View(17, lanes, None, "", addresses)


def report_of(workers: int) -> NodeFacts:
    metrics = {"loss": 0.123456, "steps_total": 100_000.0, "lane_ms": 12.5}
    held = tuple(
        WorkerFacts(
            "training-of-something",
            number,
            WorkerPhase.RUNNING,
            17,
            123_456,
            address=f"10.0.12.34:20{number:03}",
            metrics=metrics,
        )
        for number in range(workers)
    )
    return NodeFacts("node-01234.cluster", Resources(64.0, 1 << 38, 8), held)


def parts_of(count: int) -> tuple[Part, ...]:
    digest = "sha256:" + 64 * "0"
    return tuple(
        Part(f"parts/sha256/00/{64 * '0'}", 64 * 1024 * 1024, digest) for _ in range(count)
    )


def cpu_ms(act: Callable[[], object], times: int) -> float:
    gc.collect()
    taken = []
    for _ in range(times):
        begun_s = time.process_time()
        act()
        taken.append((time.process_time() - begun_s) * 1_000)
    return statistics.median(taken)


def tell(view: View, count: int) -> int:
    """As a leader tells the first `count` members: through the lines of their agents, ten on each.
    The bytes that would go out."""
    lines = AgentConnections()
    lines.begin(1)
    workers = list(view.lanes)[:count]
    nodes = [f"node-{number}" for number in range(-(-count // WORKERS_A_NODE))]
    lines.set_members(1, dict.fromkeys(nodes, 1))
    open_lines = [lines.attach(AgentHello(node, "s", "p", 1), _nothing, _nothing) for node in nodes]
    for at, worker in enumerate(workers):
        order = GiveView(nodes[at // WORKERS_A_NODE], "job", worker, view)
        lines.order(1, Decision(order, "a new view"))
    size = 0
    for line in open_lines:
        while orders := lines.take(line):
            message = pb.ToAgent(orders=pb.Orders(orders=orders))
            size += len(message.SerializeToString())
    return size


def _nothing(*_: object) -> None:
    """Nobody listens."""


def row(workers: int) -> dict[str, Any]:
    view = view_of(workers)
    times = 5 if workers > 1_000 else 15
    record = codec.view_to(view)
    told = min(workers, 200)  # of the orders; the rest cost the same
    raw = values.order_bytes(GiveView("node", "job", workers, view))
    page = [
        Placement(n, f"node-{n:05}", False, 1_700_000_000.123) for n in range(PLACEMENTS_A_PAGE)
    ]
    manifest = Manifest("job", 123_456, 17, {n: parts_of(1) for n in range(workers)})
    tell_ms = cpu_ms(lambda: tell(view, told), 3)
    return {
        "workers": workers,
        "view_record_bytes": len(record),
        "view_record_ms": cpu_ms(lambda: codec.view_to(replace(view)), times),
        "view_read_ms": cpu_ms(lambda: codec.view_from("/view", record), times),
        "view_order_bytes": len(raw),
        "view_tell_one_ms": tell_ms / told,
        "view_tell_all_s": tell_ms / told * workers / 1_000,
        "view_tell_all_bytes": len(raw) * workers,
        "view_order_read_ms": cpu_ms(lambda: values.order_from(raw), times),
        "placements_page_bytes": len(codec.placements_to(page)),
        "manifest_bytes": len(manifests.to_bytes(manifest)),
        "manifest_ms": cpu_ms(lambda: manifests.to_bytes(manifest), times),
    }


def report_row(workers: int) -> dict[str, Any]:
    facts = report_of(workers)
    raw = pb.FromAgent(snapshot=values.facts_bytes(facts)).SerializeToString()
    return {
        "workers_a_node": workers,
        "bytes": len(raw),
        "write_us": 1_000 * cpu_ms(lambda: _repeat(lambda: _written(facts)), 5) / 100,
        "read_us": 1_000 * cpu_ms(lambda: _repeat(lambda: _read(raw)), 5) / 100,
    }


def _written(facts: NodeFacts) -> bytes:
    return pb.FromAgent(snapshot=values.facts_bytes(facts)).SerializeToString()


def _read(raw: bytes) -> NodeFacts:
    return values.facts_from(rpc.parsed(pb.FromAgent, raw).snapshot)


def _repeat(act: Callable[[], object]) -> None:
    for _ in range(100):
        act()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true", help="one JSON object instead of tables")
    options = parser.parse_args()
    rows = [row(workers) for workers in SIZES]
    reports = [report_row(workers) for workers in (1, 10, 100)]
    if options.json:
        print(json.dumps({"records": rows, "reports": reports}, indent=2))
        return
    for found in (rows, reports):
        for name in found[0]:
            cells = (
                f"{one[name]:14,.3f}" if isinstance(one[name], float) else f"{one[name]:14,}"
                for one in found
            )
            print(f"{name:24}", *cells)
        print()


if __name__ == "__main__":
    main()
