"""Hunt the deliberate breakages: each must be found, or the simulator is blind.

The control plane's checks of itself are off meanwhile: what finds a mutant is the world's truth.
`python -m simulation.mutants` shows which were found, by which rule, and after how many seeds.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from simulation.breakages import MUTANTS, Mutant
from simulation.world import Verdict, World

__all__ = ["MUTANTS", "Found", "Mutant", "hunt"]

SEEDS_MAX: Final = 400


@dataclass(frozen=True, slots=True)
class Found:
    """How a mutant was found; `verdict` None: it was not."""

    mutant: Mutant
    seeds: int
    verdict: Verdict | None


def hunt(mutant: Mutant, first: int = 1, seeds_max: int = SEEDS_MAX) -> Found:
    """Run seeds until the mutant shows."""
    with mutant.on():
        for count in range(1, seeds_max + 1):
            verdict = World(first + count - 1, own_checks=False).run()
            if not verdict.ok:
                return Found(mutant, count, verdict)
    return Found(mutant, seeds_max, None)


def main(arguments: Sequence[str] | None = None) -> int:
    """0: all were found."""
    parser = argparse.ArgumentParser(prog="python -m simulation.mutants", description=__doc__)
    parser.add_argument("--seeds", type=int, default=SEEDS_MAX, help="give up after so many")
    parser.add_argument("--from", dest="first", type=int, default=1, help="the first seed")
    parser.add_argument("--only", default="", help="the mutants whose names contain this")
    options = parser.parse_args(arguments)
    escaped = 0
    print(f"{'mutant':<26}{'seeds':>6}{'s':>7}  found by")
    for mutant in MUTANTS:
        if options.only not in mutant.name:
            continue
        began_s = time.perf_counter()
        found = hunt(mutant, options.first, options.seeds)
        took_s = time.perf_counter() - began_s
        escaped += found.verdict is None
        by = found.verdict.rule if found.verdict else "NOT FOUND"
        print(f"{mutant.name:<26}{found.seeds:>6}{took_s:>7.1f}  {by}", flush=True)
    print(f"{escaped} escaped" if escaped else "all found")
    return 1 if escaped else 0


if __name__ == "__main__":
    sys.exit(main())
