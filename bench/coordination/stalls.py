"""What a snapshot does to those who ask meanwhile: the longest answers, with and without."""

from __future__ import annotations

from typing import Any, Final

from bench.coordination import nodes
from bench.coordination.bench import Bench
from bench.coordination.contestants import NEVER, Observer
from bench.coordination.report import Goal, Row

STALL: Final = Goal(50, at_least=False, is_ratio=False)


def snapshots(bench: Bench) -> list[Row]:
    if not bench.loaded:
        nodes.load(bench)
    plan = bench.plan
    made = Row("snapshots", f"snapshots of {plan.nodes:,} nodes in {plan.stall_s:g} s", "")
    rows = {
        (when, kind, what): Row(
            "snapshots",
            f"{kind} {what}, {when}",
            "ms",
            STALL if (when, kind, what) == ("during snapshots", "read", "longest") else None,
            worst=what == "longest",
        )
        for when in ("during snapshots", "quiet")
        for kind in ("read", "write")
        for what in ("longest", "p99.9", "p50")
    }
    for number in range(plan.stall_rounds):
        for when, every in (("quiet", NEVER), ("during snapshots", plan.snapshot_every)):
            for name in bench.names:
                bench.say(f"snapshots: {name}, {when}, {number + 1} of {plan.stall_rounds}")
                count, answers = _probe(bench, name, every)
                if every != NEVER:
                    made.add(name, count)
                for kind, answer in answers.items():
                    for what, key in (
                        ("longest", "longest_s"),
                        ("p99.9", "p999_s"),
                        ("p50", "p50_s"),
                    ):
                        wrong = answer["wrong"] if what == "longest" else 0
                        rows[when, kind, what].add(name, answer[key] * 1_000, wrong)
    return [*rows.values(), made]


def _probe(bench: Bench, name: str, every: int) -> tuple[int, dict[str, dict[str, Any]]]:
    """Restart a loaded server with this many transactions between snapshots, and probe it."""
    reader, writer = bench.generators(2)
    server = bench.restart_loaded(name, every)
    # A first short probe: a server that has just started is compiling, not snapshotting.
    for seconds in (min(3.0, bench.plan.stall_s), bench.plan.stall_s):
        with Observer(server) as observer:
            reader.send("probe", port=server.port, kind="read", seconds=seconds)
            writer.send("probe", port=server.port, kind="write", seconds=seconds)
            answers = {"read": reader.receive(), "write": writer.receive()}
    return observer.snapshots, answers
