"""The command line of the bench: what to measure, how much of it, where the figures go."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.console import Console

from bench.coordination import contestants, fanout, machine, nodes, stalls, throughput
from bench.coordination.bench import Bench
from bench.coordination.plan import FULL, QUICK, Plan
from bench.coordination.report import Report, Row, table
from tests.servers import zookeeper_missing

# Not below the system's folder for temporary files: on many machines that is memory.
RESULTS: Final = Path(__file__).parents[1] / "results"


class Section(StrEnum):
    """What `--only` takes; in the order in which it is measured."""

    WRITES = "writes"
    READS = "reads"
    WATCHES = "watches"
    NODES = "nodes"
    SNAPSHOTS = "snapshots"


_MEASURES: Final[dict[Section, Callable[[Bench], list[Row]]]] = {
    Section.WRITES: throughput.writes,
    Section.READS: throughput.reads,
    Section.WATCHES: fanout.watches,
    Section.NODES: nodes.nodes,
    Section.SNAPSHOTS: stalls.snapshots,
}
_ON_WARM_SERVERS: Final = (Section.WRITES, Section.READS, Section.WATCHES)


def measure(
    plan: Plan,
    folder: Path,
    sections: Sequence[Section] = tuple(Section),
    *,
    with_zookeeper: bool = True,
    say: Callable[[str], None] = lambda _: None,
) -> Report:
    """Measure these sections with data below `folder`. Everything that was started is ended."""
    folder.mkdir(parents=True, exist_ok=True)
    report = Report(machine.facts(folder), plan.name)
    names = contestants.names(with_zookeeper=with_zookeeper)
    with (
        tempfile.TemporaryDirectory(prefix="run-", dir=folder) as run_folder,
        Bench(plan, Path(run_folder), names, say) as bench,
    ):
        for section in Section:
            if section not in sections:
                continue
            if section not in _ON_WARM_SERVERS:
                bench.rest()
            report.rows += _MEASURES[section](bench)
    report.machine["load_after"] = round(machine.load_average(), 2)
    return report


def main(
    *,
    quick: Annotated[
        bool, typer.Option("--quick", help="Small sizes: less than a minute.")
    ] = False,
    only: Annotated[
        list[Section] | None, typer.Option("--only", help="One section; may be given again.")
    ] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write every figure to this file.")
    ] = None,
    zookeeper: Annotated[bool, typer.Option(help="Measure a real ZooKeeper beside ours.")] = True,
    folder: Annotated[
        Path, typer.Option(help="Where data is put; has to be on the disk in question.")
    ] = RESULTS,
) -> None:
    """Measure the embedded coordination server beside a real ZooKeeper.

    Ends with 1 if any answer was wrong or an error. A missed goal is shown, and ends with 0.
    """
    console, progress = Console(), Console(stderr=True)
    if zookeeper and (missing := zookeeper_missing()):
        progress.print(f"without ZooKeeper, so without ratios: {missing}")
    plan = QUICK if quick else FULL
    if progress.is_terminal:
        with progress.status("starting") as status:
            report = measure(
                plan, folder, only or list(Section), with_zookeeper=zookeeper, say=status.update
            )
    else:
        report = measure(plan, folder, only or list(Section), with_zookeeper=zookeeper)
    if not console.is_terminal:
        console.width = 200
    console.print(table(report))
    console.print("\n" + ", ".join(f"{key} {value}" for key, value in report.machine.items()))
    for warning in machine.warnings(report.machine):
        console.print(f"[yellow]warning:[/] {warning}")
    if json_file:
        json_file.write_text(json.dumps(report.as_json(), indent=2) + "\n")
    if report.wrong:
        console.print(f"[bold red]{report.wrong} answers were errors or wrong[/]")
        sys.exit(1)


def run() -> None:
    """`python -m bench.coordination`."""
    typer.run(main)
