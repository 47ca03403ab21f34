"""The command line: what to measure, how much of it, where the figures go."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from rich.console import Console

from bench.coordination import machine
from bench.topics import contestants, scale
from bench.topics.measures import FULL, QUICK, TINY, Bench, Plan
from bench.topics.report import Row, table
from tests.proofs.running import hear_signals

# Not below the system's folder for temporary files: on many machines that is memory.
RESULTS: Final = Path(__file__).parents[1] / "results"
SECTIONS: Final = ("start", "rates", "latencies", "memory", "crowd", "log")
_PLANS: Final = {plan.name: plan for plan in (FULL, QUICK, TINY)}


def measure(given: argparse.Namespace, plan: Plan, folder: Path) -> list[Row]:
    """Measure what was asked for. Everything that was started is ended."""

    def say(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    rows: list[Row] = []
    wanted = given.only or SECTIONS
    if {"start", "rates", "latencies", "memory"} & set(wanted):
        with Bench(plan, folder, list(given.servers), say) as bench:
            rows += bench.start()
            rows += bench.rates() if "rates" in wanted else []
            rows += bench.latencies() if "latencies" in wanted else []
            rows += bench.memory()
    if "crowd" in wanted:
        size = given.partitions, given.consumers, given.crowd_s
        rows += scale.crowd(folder / "crowd", *size, say)
    if "log" in wanted:
        rows += scale.large_log(folder / "log", given.gigabytes, say)
    return rows


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.topics",
        description="Measure the broker beside a real Kafka and Redis streams.",
    )
    parser.add_argument("--plan", choices=list(_PLANS), default=FULL.name, help="how much of it")
    parser.add_argument("--only", action="append", choices=SECTIONS, help="may be given again")
    parser.add_argument(
        "--servers", nargs="+", choices=contestants.EVERY, default=list(contestants.EVERY)
    )
    parser.add_argument("--partitions", type=int, default=10_000, help="of the crowd")
    parser.add_argument("--consumers", type=int, default=1_000, help="of the crowd")
    parser.add_argument("--crowd-s", type=float, default=30.0, help="how long it waits")
    parser.add_argument("--gigabytes", type=float, default=10.0, help="of the large log")
    parser.add_argument("--folder", type=Path, default=RESULTS, help="on the disk in question")
    parser.add_argument("--json", type=Path, help="write every figure to this file")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """0, also where a goal is missed: that depends on the machine."""
    given = _parse(arguments)
    hear_signals()
    console = Console() if sys.stdout.isatty() else Console(width=220)
    for why in contestants.missing(given.servers):
        console.print(f"[bold red]cannot be measured:[/] {why}")
        return 2
    given.folder.mkdir(parents=True, exist_ok=True)
    facts = machine.facts(given.folder)
    with tempfile.TemporaryDirectory(prefix="topics-", dir=given.folder) as folder:
        try:
            rows = measure(given, _PLANS[given.plan], Path(folder))
        except KeyboardInterrupt:
            console.print("interrupted; nothing is left running")
            return 130
    facts["load_after"] = round(machine.load_average(), 2)
    console.print(table(rows, list(given.servers)))
    console.print("\n" + ", ".join(f"{key} {value}" for key, value in facts.items()))
    for warning in machine.warnings(facts):
        console.print(f"[yellow]warning:[/] {warning}")
    if given.json:
        document = {"machine": facts, "plan": given.plan, "rows": [one.as_json() for one in rows]}
        given.json.write_text(json.dumps(document, indent=2) + "\n")
    return 0
