"""Hundreds of simulated services; and broken rollouts, each of which must be found.

The seeds are fixed, so that a failure here is a failure everywhere. `python -m simulation.serving`
looks further.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.serve.records import Stage
from simulation.breakages import Mutant
from simulation.serving.breakages import MUTANTS
from simulation.serving.search import explore, hunt, told
from simulation.serving.settings import ACTS, FAULTS
from simulation.serving.world import World

ROOT = Path(__file__).parents[1]
SEEDS = 400
SHARE = 100


@pytest.mark.parametrize("first", range(1, SEEDS, SHARE))
def test_no_rollout_breaks_a_rule_in_hundreds_of_worlds(first: int) -> None:
    print(f"seeds {first} to {first + SHARE - 1}")
    failures, _ = explore(first, SHARE)
    assert not failures, told(failures[0])


def test_every_kind_of_fault_wish_and_stage_happens() -> None:
    """Otherwise the other tests would show less than they say."""
    _, happened = explore(1, 60)
    wanted = {*FAULTS, *ACTS, *(stage.value for stage in Stage), "refused"}
    assert not wanted - happened.keys()


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_deliberate_breakage_of_rollouts_is_found(mutant: Mutant) -> None:
    found = hunt(mutant)
    assert found.verdict is not None, f"{mutant.what}: {found.seeds} worlds showed nothing wrong"
    assert found.verdict.story


def test_there_are_at_least_eight_deliberate_breakages_of_rollouts() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= 8


def test_the_same_seed_gives_the_same_trace_whatever_python_hashes_by() -> None:
    script = (
        "from simulation.serving.world import World\n"
        "print([World(seed).run(traced=True).digest for seed in (1, 2, 3, 4)])"
    )
    told = set()
    for hash_seed in ("0", "1", "12345"):
        done = subprocess.run(
            [sys.executable, "-c", script],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=True,
        )
        told.add(done.stdout)
    assert len(told) == 1
    assert World(1).run(traced=True).digest in told.pop()
