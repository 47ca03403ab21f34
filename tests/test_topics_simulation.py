"""The broker's core in simulated worlds; and broken ones, each of which must be found.

The seeds are fixed, so that a failure here is a failure everywhere. `python -m simulation.topics`
looks further.
"""

from __future__ import annotations

import pytest

from simulation.breaking import Mutant
from simulation.corpus import TOPICS_CORPUS
from simulation.mutants import find_again
from simulation.search import Totals, explore, failure_report, shrink
from simulation.topics.breakages import MUTANTS
from simulation.topics.faults import COUNTS_MAX, RATES_MAX
from simulation.topics.world import TOPICS_WORLD

SEEDS = 60


def test_a_broker_breaks_a_promise_in_one_of_many_worlds() -> None:
    totals = Totals()
    for totals in explore(TOPICS_WORLD, 1, SEEDS):
        if totals.failures:
            pytest.fail(failure_report(TOPICS_WORLD, *shrink(TOPICS_WORLD, totals.failures[0])))
    assert totals.runs == SEEDS
    assert set(totals.struck) == {*RATES_MAX, *COUNTS_MAX}, "every kind of fault happens"
    for what in ("committed", "aborted", "unknown", "restarts"):
        assert totals.happened[what] > 0, what


def test_a_seed_is_played_differently_the_second_time() -> None:
    first, again = (TOPICS_WORLD.run(7, traced=True) for _ in range(2))
    assert first.digest == again.digest
    assert first.digest != TOPICS_WORLD.run(8, traced=True).digest


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_broken_broker_is_not_found(mutant: Mutant) -> None:
    found = find_again(TOPICS_WORLD, mutant, TOPICS_CORPUS)
    assert found.verdict is not None, f"{mutant.what}: {found.seeds} seeds did not show it"
