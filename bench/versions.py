"""An older commit beside this one: does it cost more than it did? `python -m bench.versions`.

    python -m bench.versions c41d5aa                            # training and serving, 20 minutes
    python -m bench.versions c41d5aa --only serving --rounds 3
    python -m bench.versions HEAD~1 --json out.json

Both run the bench that is part of their own checkout, taking turns, in one run; who begins changes
from round to round. A figure is the median over rounds. The ratio is the median of the rounds' own
ratios, with the interval in which it lies with 95 % (bootstrap): a goal is met if the interval
reaches it. Processor time is what counts; by the clock, others on the machine are measured too.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bench.coordination.machine import load_average

ROOT: Final = Path(__file__).parents[1]
GOAL: Final = 1.03
RESAMPLES: Final = 2000


@dataclass(frozen=True, slots=True)
class Part:
    """A bench, and its figures: of which row, which field, where less is better."""

    command: tuple[str, ...]
    figures: tuple[tuple[str, str, str], ...]  # what it is called, the row's name, the field


OVERHEAD: Final = ("bench.training.overhead", "--parameters", "1000000", "--blocks", "6")
RECOVERY: Final = (
    "bench.training.recovery",
    "--only",
    "ours",
    "--kind",
    "worker",
    "--workers",
    "2",
)
PARTS: Final = {
    "training": Part(
        OVERHEAD,
        (
            ("a step of 2 workers, 1 M parameters: CPU, ms", "1000000", "ours CPU"),
            ("the same by the clock, ms", "1000000", "ours ms"),
            ("beside it, DDP's CPU, ms", "1000000", "DDP CPU"),
        ),
    ),
    "recovery": Part(
        (*RECOVERY, "--workers", "2", "--kills", "3", "--no-digests"),
        (("a worker is killed: stall of the others, s", "ours", "stall_s"),),
    ),
    "serving": Part(
        ("bench.serving.throughput", "--only", "ours", "--seconds", "4"),
        (
            ("a request to one replica: CPU, us", "ours, one replica", "cpu_us"),
            ("through the gateway to two: CPU, us", "ours, gateway and two replicas", "cpu_us"),
            ("the same, p99 at 100 a second, ms", "ours, gateway and two replicas", "steady_p99"),
        ),
    ),
}


@contextmanager
def checkout(revision: str) -> Iterator[Path]:
    """The older commit, in a folder of its own."""
    with tempfile.TemporaryDirectory(prefix="versions-") as held:
        place = Path(held, "before")
        git = ("git", "-C", str(ROOT), "worktree")
        subprocess.run([*git, "add", "--quiet", "--detach", str(place), revision], check=True)
        try:
            yield place
        finally:
            subprocess.run([*git, "remove", "--force", str(place)], check=True)


def measured(part: Part, place: Path) -> dict[str, float]:
    """One round of a checkout's own bench."""
    with tempfile.NamedTemporaryFile(suffix=".json") as said:
        environment = {**os.environ, "PYTHONPATH": str(place), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-m", *part.command, "--json", said.name]
        ran = subprocess.run(
            command,
            check=False,
            cwd=place,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        if ran.returncode:
            raise SystemExit(f"{' '.join(command)} in {place} ended with 1:\n{ran.stdout}")
        rows = json.loads(Path(said.name).read_text())["rows"]
    return {what: _figure(rows, row, field) for what, row, field in part.figures}


def _figure(rows: list[dict[str, Any]], name: str, field: str) -> float:
    row = next(row for row in rows if name in (row.get("name"), str(row.get("parameters"))))
    if field in row:
        return float(row[field])
    return statistics.median(float(clock[field]) for clock in row["clocks"])


def interval(ratios: Sequence[float], chance: random.Random) -> tuple[float, float]:
    """Where the median lies with 95 %."""
    found = sorted(
        statistics.median(chance.choices(ratios, k=len(ratios))) for _ in range(RESAMPLES)
    )
    return found[int(0.025 * RESAMPLES)], found[int(0.975 * RESAMPLES) - 1]


def show(what: str, before: Sequence[float], after: Sequence[float]) -> dict[str, Any]:
    ratios = [new / old for old, new in zip(before, after, strict=True)]
    low, high = interval(ratios, random.Random(1))
    ratio = statistics.median(ratios)
    verdict = "reached" if low <= GOAL else f"MISSED (goal {GOAL})"
    old, new = statistics.median(before), statistics.median(after)
    print(
        f"{what:48}{old:>10.3f}{new:>10.3f}{ratio:>8.3f}  {low:.3f} to {high:.3f}  {verdict}",
        flush=True,
    )
    return {"what": what, "before": list(before), "after": list(after), "ratio": ratio}


def main(argv: Sequence[str] | None = None) -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("revision", help="the older commit")
    options.add_argument("--only", nargs="+", choices=sorted(PARTS), default=list(PARTS))
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--json", type=Path)
    given = options.parse_args(argv)
    print(f"load {load_average():.1f}, {given.rounds} rounds, {given.revision} and this checkout")
    print(f"{'':48}{'before':>10}{'after':>10}{'ratio':>8}  95 %")
    rows = []
    with checkout(given.revision) as before:
        for name in given.only:
            part = PARTS[name]
            found: dict[Path, list[dict[str, float]]] = {before: [], ROOT: []}
            for number in range(given.rounds):
                for place in (before, ROOT) if number % 2 == 0 else (ROOT, before):
                    found[place].append(measured(part, place))
            for what, _, _ in part.figures:
                old, new = ([each[what] for each in found[place]] for place in (before, ROOT))
                rows.append(show(what, old, new))
    if given.json:
        given.json.write_text(json.dumps({"load": load_average(), "rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
