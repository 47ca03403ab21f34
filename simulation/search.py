"""Many seeds, one after the other; of a seed that fails the smallest trouble that does it; and the
hunt for mutants. For every kind of world the same."""

from __future__ import annotations

import gc
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Final

from simulation.breaking import Mutant
from simulation.verdict import NO_FAULTS_OFF, Kind, Verdict

# Runs leave cycles behind. Collecting them now and then is faster than all the time.
_RUNS_PER_COLLECTION: Final = 100
# A failing seed is run again at most so often, and for so long, to make it small: one that never
# ends takes a second or two each time.
SHRINK_RUNS_MAX: Final = 150
SHRINK_S_MAX: Final = 30.0
# How much of the end of a story is told.
STORY_EVENTS: Final = 60
# A mutant that so many seeds do not show is not found.
HUNT_SEEDS_MAX: Final = 1_000


@dataclass(slots=True)
class Totals:
    """What a search did, and what it found."""

    runs: int = 0
    events: int = 0
    faults: int = 0
    simulated_s: float = 0.0
    cpu_s: float = 0.0
    failures: list[Verdict] = field(default_factory=list)
    digests: list[str] = field(default_factory=list)
    struck: Counter[str] = field(default_factory=Counter)  # faults by kind
    happened: Counter[str] = field(default_factory=Counter)

    def add(self, verdict: Verdict) -> None:
        self.runs += 1
        self.events += verdict.events
        self.faults += len(verdict.faults)
        for name in verdict.faults:
            self.struck[name.partition("#")[0]] += 1
        self.happened.update(verdict.happened)
        self.simulated_s += verdict.simulated_s
        if verdict.digest:
            self.digests.append(verdict.digest)
        if not verdict.ok:
            self.failures.append(verdict)

    def join(self, later: Totals) -> None:
        """Add what a search of the seeds after these did."""
        self.runs += later.runs
        self.events += later.events
        self.faults += later.faults
        self.simulated_s += later.simulated_s
        self.cpu_s += later.cpu_s
        self.failures += later.failures
        self.digests += later.digests
        self.struck.update(later.struck)
        self.happened.update(later.happened)


def explore(
    kind: Kind, first: int, count: int, *, until_s: float | None = None, traced: bool = False
) -> Iterator[Totals]:
    """Run the seeds from `first` on; the totals so far after each. Ends after the monotonic time
    `until_s`, if given."""
    totals = Totals()
    was_on = gc.isenabled()
    gc.disable()
    began_s = time.process_time()
    try:
        for seed in range(first, first + count):
            if until_s is not None and time.monotonic() >= until_s:
                return
            totals.add(kind.run(seed, traced=traced))
            if totals.runs % _RUNS_PER_COLLECTION == 0:
                gc.collect()
            totals.cpu_s = time.process_time() - began_s
            yield totals
    finally:
        if was_on:
            gc.enable()


# --- a failing seed -------------------------------------------------------------------------------


def shrink(kind: Kind, verdict: Verdict) -> tuple[Verdict, frozenset[str]]:
    """The same violation with as few faults as we can find, and what was switched off for it.

    A fault that does not happen also changes when the rest happens, so one that has nothing to do
    with the violation may seem to be needed. So single ones are tried, and then any sets of them.
    """
    off: frozenset[str] = NO_FAULTS_OFF
    best = verdict
    random = Random(verdict.seed)  # noqa: S311 - chance, not secrets
    single = _single(best, off)
    until_s = time.process_time() + SHRINK_S_MAX
    for _ in range(SHRINK_RUNS_MAX):
        if not best.faults or time.process_time() >= until_s:
            break
        tried_off = next(single, None)
        if tried_off is None:
            count = random.randint(1, len(best.faults))
            tried_off = off | set(random.sample(best.faults, count))
        tried = kind.run(verdict.seed, tried_off)
        if tried.rule == verdict.rule and len(tried.faults) < len(best.faults):
            best, off = tried, tried_off
            single = _single(best, off)
    return best, off


def _single(verdict: Verdict, off: frozenset[str]) -> Iterator[frozenset[str]]:
    """What is off, with one more kind, then with one more fault."""
    kinds = sorted({name.partition("#")[0] for name in verdict.faults})
    for name in [*kinds, *verdict.faults]:
        yield off | {name}


def replay_command(kind: Kind, seed: int, off: frozenset[str] = NO_FAULTS_OFF) -> str:
    """What to type to see it again."""
    switched = f' --off "{",".join(sorted(off))}"' if off else ""
    return f"python -m {kind.module} --seed {seed}{switched}"


def failure_report(kind: Kind, verdict: Verdict, off: frozenset[str] = NO_FAULTS_OFF) -> str:
    """A failed run, for people."""
    lines = [
        f"seed {verdict.seed} breaks a rule",
        f"  rule:   {verdict.rule}",
        f"  what:   {verdict.what}",
        f"  replay: {replay_command(kind, verdict.seed, off)}",
        f"  faults: {', '.join(verdict.faults) or 'none'}",
        "  the last events:",
        *(f"  {line}" for line in verdict.story[-STORY_EVENTS:]),
    ]
    return "\n".join(lines)


# --- mutants --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class HuntResult:
    """How a mutant was found, after how many `seeds`; `verdict` None: it was not."""

    mutant: Mutant
    seeds: int
    verdict: Verdict | None


def hunt(kind: Kind, mutant: Mutant, first: int = 1, seeds_max: int = HUNT_SEEDS_MAX) -> HuntResult:
    """Run seeds until the mutant shows."""
    with mutant.on():
        for count in range(1, seeds_max + 1):
            verdict = kind.run(first + count - 1, own_checks=False)
            if not verdict.ok:
                return HuntResult(mutant, count, verdict)
    return HuntResult(mutant, seeds_max, None)
