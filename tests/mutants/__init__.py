"""Mutants of the code itself: each breaks one promise on purpose, and a named test must fail.

- `mutant`      what one is
- `syncs`       each call that makes something durable, removed
- `brokers`     six promises of the broker, which the proof of topics sees broken
- `guards`      each condition that keeps two from overwriting one another, removed
- `python -m tests.mutants [NAME…]` (`make mutants-code`) applies each to a copy of the tree, runs
  its test there, and expects it to fail

`simulation.mutants` breaks the decisions in memory, for the simulated world; here the text of a
file is changed, so that real processes run it too.
"""

from __future__ import annotations

from tests.mutants import brokers, guards, syncs
from tests.mutants.mutant import Mutant

MUTANTS: tuple[Mutant, ...] = (*syncs.MUTANTS, *guards.MUTANTS, *brokers.MUTANTS)
