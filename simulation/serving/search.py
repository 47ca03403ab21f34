"""Many seeds of the serving world; and what is told of those that break a rule."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Final

from simulation.breakages import Mutant
from simulation.serving.breakages import MUTANTS
from simulation.serving.world import Verdict, World

SEEDS_MAX: Final = 300


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
            verdict = World(first + count - 1).run()
            if not verdict.ok:
                return Found(mutant, count, verdict)
    return Found(mutant, seeds_max, None)


def hunt_all(only: str = "", seeds_max: int = SEEDS_MAX) -> int:
    """0: all were found."""
    escaped = 0
    for mutant in MUTANTS:
        if only in mutant.name:
            found = hunt(mutant, seeds_max=seeds_max)
            escaped += found.verdict is None
            by = found.verdict.rule if found.verdict else "NOT FOUND"
            print(f"{mutant.name:<24}{found.seeds:>5}  {by}", flush=True)
    return 1 if escaped else 0


def explore(first: int, count: int) -> tuple[list[Verdict], Counter[str]]:
    """The seeds that broke a rule, and what happened in all of them."""
    failures, happened = [], Counter[str]()
    for seed in range(first, first + count):
        verdict = World(seed).run()
        happened.update(verdict.happened)
        if not verdict.ok:
            failures.append(verdict)
    return failures, happened


def search(first: int, count: int) -> int:
    failures, happened = explore(first, count)
    for verdict in failures:
        print(told(verdict))
    print(dict(sorted(happened.items())))
    return len(failures)


def replay(seed: int, off: frozenset[str]) -> int:
    world = World(seed, off)
    verdict = world.run(traced=True)
    print("\n".join(world.kernel.story(len(world.kernel.trace))))
    print(f"{world.settings.natures}\nfaults: {world.settings.faults}")
    print(f"seed {seed}: {verdict.rule or 'nothing is wrong'} {verdict.what}".rstrip())
    return 0 if verdict.ok else 1


def told(verdict: Verdict) -> str:
    """A failed run, for people."""
    return "\n".join(
        [
            f"seed {verdict.seed} breaks a rule",
            f"  rule:   {verdict.rule}",
            f"  what:   {verdict.what}",
            f"  replay: python -m simulation.serving --seed {verdict.seed}",
        ]
    )
