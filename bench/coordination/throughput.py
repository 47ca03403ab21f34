"""Writes and reads: with one request in flight and its latency, and with many."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from bench.coordination.bench import Bench
from bench.coordination.generator import LoadGenerator
from bench.coordination.report import FASTER, PIPELINED, Goal, Row

MANY: Final = 64
EACH: Final = 8


@dataclass(frozen=True, slots=True)
class Case:
    """One kind of load. `goal` is for its rate; latency at one in flight has its own."""

    operation: str
    by: str
    in_flight: int
    processes: int = 1
    goal: Goal | None = None
    latency_goal: Goal | None = None

    @property
    def name(self) -> str:
        client = "kazoo" if self.by == "kazoo" else "plain socket"
        if self.processes > 1:
            return f"{self.operation}, {self.processes} x {client}, {self.in_flight} in flight each"
        return f"{self.operation}, {client}, {self.in_flight} in flight"


def cases(operations: tuple[str, ...], processes: int) -> list[Case]:
    """kazoo's cases carry the goals; those of the plain socket show the server's own limit."""
    found = []
    for operation in operations:
        found.append(Case(operation, "kazoo", 1, latency_goal=FASTER))
        found.append(Case(operation, "kazoo", MANY, goal=PIPELINED))
    first = operations[0]
    found.append(Case(first, "kazoo", EACH, processes, goal=PIPELINED))
    found += [Case(operation, "socket", 1) for operation in operations]
    found += [Case(operation, "socket", MANY) for operation in operations]
    return found


def writes(bench: Bench) -> list[Row]:
    return _measure(bench, "writes", ("set", "create"))


def reads(bench: Bench) -> list[Row]:
    return _measure(bench, "reads", ("get",))


def _measure(bench: Bench, section: str, operations: tuple[str, ...]) -> list[Row]:
    servers = bench.warm_servers()
    rows: list[Row] = []
    for case in cases(operations, bench.plan.crowd_processes):
        generators = bench.generators(case.processes)
        if case.by == "kazoo":
            for server in servers.values():
                _all(generators, "connect", port=server.port)
        rate = Row(section, case.name, "/s", case.goal)
        timed = case.in_flight == 1 and case.processes == 1
        p50 = Row(section, f"{case.name}: p50", "ms", case.latency_goal)
        p99 = Row(section, f"{case.name}: p99", "ms")
        for number in range(bench.plan.rounds):
            bench.say(f"{section}: {case.name}, round {number + 1} of {bench.plan.rounds}")
            for name, server in servers.items():
                answers = _all(
                    generators,
                    "load",
                    port=server.port,
                    by=case.by,
                    operation=case.operation,
                    in_flight=case.in_flight,
                    seconds=bench.plan.round_s,
                )
                wrong = sum(answer["wrong"] for answer in answers)
                rate.add(name, sum(a["done"] / a["seconds"] for a in answers), wrong)
                if timed:
                    p50.add(name, answers[0]["p50_s"] * 1_000)
                    p99.add(name, answers[0]["p99_s"] * 1_000)
        rows += [rate, p50, p99] if timed else [rate]
    return rows


def _all(generators: list[LoadGenerator], do: str, **options: Any) -> list[dict[str, Any]]:
    """The same job for several generators at the same time."""
    for generator in generators:
        generator.send(do, **options)
    return [generator.receive() for generator in generators]
