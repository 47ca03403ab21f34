"""Many seeds, one after the other; and, of a seed that fails, the smallest trouble that does it."""

from __future__ import annotations

import gc
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Final

from simulation.world import Verdict, World

# Runs leave cycles behind. Collecting them now and then is faster than all the time.
_RUNS_PER_COLLECTION: Final = 100
# A failing seed is run again at most so often to make it small.
SHRINK_RUNS_MAX: Final = 150


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
        self.struck.update(name.partition("#")[0] for name in verdict.faults)
        self.happened.update(verdict.happened)
        self.simulated_s += verdict.simulated_s
        if verdict.digest:
            self.digests.append(verdict.digest)
        if not verdict.ok:
            self.failures.append(verdict)


def explore(
    first: int, count: int, *, until_s: float | None = None, traced: bool = False
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
            totals.add(World(seed).run(traced=traced))
            if totals.runs % _RUNS_PER_COLLECTION == 0:
                gc.collect()
            totals.cpu_s = time.process_time() - began_s
            yield totals
    finally:
        if was_on:
            gc.enable()


def shrink(verdict: Verdict) -> tuple[Verdict, frozenset[str]]:
    """The same violation with as few faults as we can find, and what was switched off for it.

    A fault that does not happen also changes when the rest happens, so one that has nothing to do
    with the violation may seem to be needed. So single ones are tried, and then any sets of them.
    """
    off: frozenset[str] = frozenset()
    best = verdict
    random = Random(verdict.seed)  # noqa: S311 - chance, not secrets
    single = _single(best, off)
    for _ in range(SHRINK_RUNS_MAX):
        if not best.faults:
            break
        tried_off = next(single, None)
        if tried_off is None:
            count = random.randint(1, len(best.faults))
            tried_off = off | set(random.sample(best.faults, count))
        tried = World(verdict.seed, tried_off).run()
        if tried.rule == verdict.rule and len(tried.faults) < len(best.faults):
            best, off = tried, tried_off
            single = _single(best, off)
    return best, off


def _single(verdict: Verdict, off: frozenset[str]) -> Iterator[frozenset[str]]:
    """What is off, with one more kind, then with one more fault."""
    kinds = sorted({name.partition("#")[0] for name in verdict.faults})
    for name in [*kinds, *verdict.faults]:
        yield off | {name}


def replay_command(seed: int, off: frozenset[str] = frozenset()) -> str:
    """What to type to see it again."""
    switched = f' --off "{",".join(sorted(off))}"' if off else ""
    return f"python -m simulation --seed {seed}{switched}"


def told(verdict: Verdict, off: frozenset[str] = frozenset()) -> str:
    """A failed run, for people."""
    lines = [
        f"seed {verdict.seed} breaks a rule",
        f"  rule:   {verdict.rule}",
        f"  what:   {verdict.what}",
        f"  replay: {replay_command(verdict.seed, off)}",
        f"  faults: {', '.join(verdict.faults) or 'none'}",
        "  the last events:",
        *(f"  {line}" for line in verdict.story),
    ]
    return "\n".join(lines)
