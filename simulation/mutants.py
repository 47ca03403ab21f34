"""Hunt the deliberate breakages of all worlds: each must be found, or the simulator is blind.

The code's checks of itself are off meanwhile: what finds a mutant is the world's truth.
`python -m simulation.mutants` shows what was broken, and which seed showed it by which rule.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from simulation import breakages
from simulation.breaking import Mutant
from simulation.corpus import CONTROL_CORPUS, SERVING_CORPUS, TOPICS_CORPUS, record, shown
from simulation.runner import processes
from simulation.search import HUNT_SEEDS_MAX, HuntResult, hunt
from simulation.serving import breakages as serving_breakages
from simulation.serving.world import SERVING
from simulation.topics import breakages as topics_breakages
from simulation.topics.world import TOPICS_WORLD
from simulation.verdict import Kind
from simulation.world import CONTROL

# Each kind of world with what is broken in it, and where the seeds are kept that showed it.
WORLDS: Final[tuple[tuple[Kind, tuple[Mutant, ...], Path], ...]] = (
    (CONTROL, breakages.MUTANTS, CONTROL_CORPUS),
    (SERVING, serving_breakages.MUTANTS, SERVING_CORPUS),
    (TOPICS_WORLD, topics_breakages.MUTANTS, TOPICS_CORPUS),
)


class Row(NamedTuple):
    """What is shown of one hunt. `seed` None: the mutant was not found."""

    world: str
    mutant: str
    what: str
    schedules: int
    seed: int | None
    rule: str
    violation: str


def hunt_all(only: str, first: int, seeds_max: int, jobs: int) -> Iterator[Row]:
    """Hunt those with `only` in their names, each in a process of its own."""
    wanted = [
        (world, index)
        for world, (_, mutants, _) in enumerate(WORLDS)
        for index, mutant in enumerate(mutants)
        if only in mutant.name
    ]
    # Forked, and told only where to look: what replaces a function cannot be sent.
    with processes(jobs, tasks_each=1) as pool:
        yield from pool.imap(partial(_hunted, first, seeds_max), wanted)


def find_again(kind: Kind, mutant: Mutant, corpus: Path) -> HuntResult:
    """By the seed that showed it last; when the code has changed, by another one."""
    seed = shown(corpus).get(mutant.name)
    found = None if seed is None else hunt(kind, mutant, seed, 1)
    return found if found is not None and found.verdict is not None else hunt(kind, mutant)


def _hunted(first: int, seeds_max: int, where: tuple[int, int]) -> Row:
    kind, mutants, _ = WORLDS[where[0]]
    mutant = mutants[where[1]]
    found = hunt(kind, mutant, first, seeds_max)
    verdict = found.verdict
    told = (None, "", "") if verdict is None else (verdict.seed, verdict.rule, verdict.what)
    return Row(kind.module, mutant.name, mutant.what, found.seeds, *told)


def main(arguments: Sequence[str] | None = None) -> int:
    """0: all were found."""
    options = _parser().parse_args(arguments)
    rows = []
    if not options.json:
        print(f"{'mutant':<28}{'schedules':>9}  {'seed':>5}  found by")
    try:
        for row in hunt_all(options.only, options.first, options.seeds, options.jobs):
            rows.append(row)
            if not options.json:
                _show(row)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    if options.record:
        for kind, _, corpus in WORLDS:
            here = [row for row in rows if row.world == kind.module]
            record(corpus, {row.mutant: row.seed for row in here if row.seed is not None})
    escaped = sum(row.seed is None for row in rows)
    if options.json:
        print(json.dumps([row._asdict() for row in rows]))
    else:
        print(f"{len(rows)} mutants, {f'{escaped} NOT FOUND' if escaped else 'all found'}")
    return 1 if escaped else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m simulation.mutants",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="""examples:
  python -m simulation.mutants --jobs 2          # the whole table
  python -m simulation.mutants --only fence      # those with this in their names""",
    )
    parser.add_argument("--seeds", type=int, default=HUNT_SEEDS_MAX, help="give up after so many")
    parser.add_argument("--from", dest="first", type=int, default=1, help="the first seed")
    parser.add_argument("--only", default="", help="the mutants whose names contain this")
    parser.add_argument("--jobs", type=int, default=1, help="processes that share the work")
    parser.add_argument("--record", action="store_true", help="keep the seeds, for the tests")
    parser.add_argument("--json", action="store_true", help="for programs")
    return parser


def _show(row: Row) -> None:
    seed = "-" if row.seed is None else str(row.seed)
    print(f"{row.mutant:<28}{row.schedules:>9}  {seed:>5}  {row.rule or 'NOT FOUND'}")
    print(f"    {row.what}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
