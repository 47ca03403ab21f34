"""`python -m simulation.serving`: look for trouble in many seeds, see one again, hunt mutants."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence

from simulation.serving.search import hunt_all, replay, search


def main(arguments: Sequence[str] | None = None) -> int:
    """0: nothing was found, and no mutant escaped."""
    parser = argparse.ArgumentParser(prog="python -m simulation.serving", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1_000, help="how many seeds to run")
    parser.add_argument("--from", dest="first", type=int, default=1, help="the first seed")
    parser.add_argument("--seed", type=int, help="run one seed and tell its whole story")
    parser.add_argument("--off", default="", help="with --seed: faults that do not happen")
    parser.add_argument("--mutants", action="store_true", help="break the code on purpose")
    parser.add_argument("--only", default="", help="with --mutants: those with this in their name")
    options = parser.parse_args(arguments)
    began_s = time.process_time()
    if options.mutants:
        return hunt_all(options.only, options.seeds)
    if options.seed is not None:
        off = frozenset(name.strip() for name in options.off.split(",") if name.strip())
        return replay(options.seed, off)
    failed = search(options.first, options.seeds)
    print(f"{options.seeds} worlds, {failed} failed; {time.process_time() - began_s:.1f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
