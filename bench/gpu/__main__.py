"""Alone on a GPU: plain PyTorch beside ours, in turns, each run a process of its own.

    python -m bench.gpu --minutes 6
    python -m bench.gpu --works mlp --steps 40 --rounds 5

Prints a Markdown table: the median over all rounds with the smallest and largest, the ratio to
plain PyTorch with the same deterministic settings and with torch's defaults, and the SHA-256 of the
weights. Runs of ours that are not compiled must have the same one.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass, field
from typing import Any, Final

RUN_S_MAX: Final = 240.0


@dataclass
class Contestant:
    name: str
    arguments: tuple[str, ...]
    rows: list[dict[str, Any]] = field(default_factory=list)
    error: str = ""

    def run(self, work: str, steps: int, left_s: float) -> None:
        """Once. Whoever has failed is not asked again."""
        if self.error:
            return
        who, *options = self.arguments
        command = [sys.executable, "-m", "bench.gpu.contestant", who, work, "--steps", str(steps)]
        try:
            done = subprocess.run(
                [*command, *options],
                capture_output=True,
                text=True,
                timeout=min(RUN_S_MAX, left_s),
                check=False,
            )
        except subprocess.TimeoutExpired:
            self.error = "" if self.rows else "no time left"
            return
        found = [line for line in done.stdout.splitlines() if line.startswith("ROW ")]
        if done.returncode or not found:
            lines = done.stderr.strip().splitlines() or ["it said nothing"]
            self.error = lines[-1][:200]
            print(
                f"{work}: {self.name} failed:\n{done.stderr[-3000:]}", file=sys.stderr, flush=True
            )
            return
        for line in done.stderr.splitlines():
            if "not captured" in line:
                print(f"{work}: {self.name}: {line}", file=sys.stderr, flush=True)
        self.rows.append(json.loads(found[-1].removeprefix("ROW ")))

    @property
    def ms(self) -> float | None:
        return statistics.median(row["ms"] for row in self.rows) if self.rows else None


def contestants() -> list[Contestant]:
    return [
        Contestant("plain, torch's defaults", ("plain",)),
        Contestant("plain, deterministic", ("plain", "--deterministic")),
        Contestant("ours, eager", ("ours",)),
        Contestant("ours, captured", ("ours", "--captured")),
        Contestant("ours, `reduce-overhead`", ("ours", "--mode", "reduce-overhead")),
    ]


def table(work: str, found: list[Contestant]) -> str:
    defaults, deterministic = found[0].ms, found[1].ms
    lines = [
        f"| {work}, a step | ms (smallest to largest) | of plain, deterministic "
        "| of plain, defaults | peak MB | SHA-256 |",
        "|---|---:|---:|---:|---:|---|",
    ]
    for each in found:
        if each.ms is None:
            lines.append(f"| {each.name} | {each.error or 'not run'} | | | | |")
            continue
        times = [row["ms"] for row in each.rows]
        shas = sorted({row["sha"] for row in each.rows})
        lines.append(
            f"| {each.name} | {each.ms:.1f} ({min(times):.1f} to {max(times):.1f}) "
            f"| {_ratio(each.ms, deterministic)} | {_ratio(each.ms, defaults)} "
            f"| {max(row['peak_mb'] for row in each.rows):.0f} | {', '.join(shas)} |"
        )
    return "\n".join(lines)


def verdict(found: list[Contestant]) -> str:
    shas = {row["sha"] for each in found[2:4] for row in each.rows}
    if not shas:
        return "eager and captured: not run"
    return "eager and captured: " + ("one SHA-256" if len(shas) == 1 else f"DIFFERENT {shas}")


def _ratio(one: float, other: float | None) -> str:
    return f"{one / other:.2f}" if other else ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--works", nargs="+", default=["mlp", "gpt", "resnet"])
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--rounds", type=int, default=3, help="of all contestants, as time allows")
    parser.add_argument("--minutes", type=float, default=6.0, help="for everything")
    parser.add_argument("--only", nargs="+", default=[], help="words in contestants' names")
    given = parser.parse_args()
    end_s = time.monotonic() + given.minutes * 60
    everyone = {work: contestants() for work in given.works}
    for number in range(given.rounds):
        for work in given.works:
            for each in everyone[work]:
                left_s = end_s - time.monotonic()
                if left_s < 5 or (given.only and not any(it in each.name for it in given.only)):
                    continue
                began_s = time.monotonic()
                each.run(work, given.steps, left_s)
                took_s = time.monotonic() - began_s
                shown = f"{each.rows[-1]}" if each.rows else each.error
                print(
                    f"round {number + 1} {work} {each.name}: {shown} in {took_s:.0f} s", flush=True
                )
    for work, found in everyone.items():
        print(f"\n{table(work, found)}\n\n{verdict(found)}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
