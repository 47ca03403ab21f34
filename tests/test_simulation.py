"""Hundreds of simulated worlds; and broken ones, each of which must be found.

The seeds are fixed, so that a failure here is a failure everywhere. `python -m simulation` looks
further.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.control.decide.commands import Record
from holdfast.wire.orders import Order
from simulation.breakages import MUTANTS
from simulation.breaking import Mutant
from simulation.corpus import CONTROL_CORPUS, failed
from simulation.faults import BIRTHS_MAX, COUNTS_MAX, LOSSES_MAX, RATES_MAX
from simulation.mutants import find_again
from simulation.search import Totals, explore, failure_report, shrink
from simulation.world import CONTROL

ROOT = Path(__file__).parents[1]
# `make test` runs so many worlds, `make test-engines` the others, in shares; `make simulate` more.
SEEDS = 300
SEEDS_ALL = 1_000
SHARE = 350


def explored(first: int, count: int) -> Totals:
    totals = Totals()
    for totals in explore(CONTROL, first, count):
        if totals.failures:
            break
    return totals


def sound(first: int, count: int) -> Totals:
    """What came in so many worlds, none of which breaks a rule."""
    print(f"seeds {first} to {first + count - 1}")
    totals = explored(first, count)
    if totals.failures:
        pytest.fail(failure_report(CONTROL, *shrink(CONTROL, totals.failures[0])))
    assert totals.runs == count
    return totals


def test_nothing_breaks_a_rule_and_every_kind_of_fault_and_decision_is_among_it() -> None:
    """Worlds without one of them would show less than they say."""
    totals = sound(1, SEEDS)
    missing = {*RATES_MAX, *COUNTS_MAX, *BIRTHS_MAX, *LOSSES_MAX} - totals.struck.keys()
    assert not missing
    kinds = {kind.__name__ for kind in (*Record.__args__, *Order.__args__)}
    kinds -= {"HaltUpdate"}  # nobody updates a job that serves in this world
    kinds -= {"StartJob", "MoveTrigger", "ForgetJob"}  # and no topic starts jobs
    others = {"fenced", "refused", "restore", "suspicion", "quiet", "damaged journal", "stranded"}
    assert not {*kinds, *others} - totals.happened.keys()


@pytest.mark.engines
@pytest.mark.parametrize("first", range(SEEDS + 1, SEEDS_ALL, SHARE))
def test_nothing_breaks_a_rule_in_a_thousand_worlds(first: int) -> None:
    sound(first, SHARE)


def test_seeds_that_once_failed_break_no_rule() -> None:
    for kept in failed(CONTROL_CORPUS):
        verdict = CONTROL.run(kept.seed)
        assert verdict.ok, f"{kept.reason}\n{failure_report(CONTROL, verdict)}"


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_deliberate_breakage_is_found(mutant: Mutant) -> None:
    found = find_again(CONTROL, mutant, CONTROL_CORPUS)
    assert found.verdict is not None, f"{mutant.what}: {found.seeds} worlds showed nothing wrong"
    assert found.verdict.faults is not None
    assert found.verdict.story


def test_there_are_at_least_twenty_five_deliberate_breakages() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= 25


def test_the_same_seeds_give_the_same_traces_whatever_python_hashes_by() -> None:
    digests = set()
    for hash_seed in ("0", "1", "12345"):
        done = subprocess.run(
            [sys.executable, "-m", "simulation", "--seeds", "12", "--digest", "--json"],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=True,
        )
        digests.add(json.loads(done.stdout)["digest"])
    assert len(digests) == 1
    assert digests != {None}
