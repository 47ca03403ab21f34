"""Hundreds of simulated services behind gateways; and broken ones, each of which must be found.

The seeds are fixed, so that a failure here is a failure everywhere. `python -m simulation.serving`
looks further.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.serve.gateway import resources
from holdfast.serve.records import RolloutStage
from simulation.breaking import Mutant
from simulation.corpus import SERVING_CORPUS, failed
from simulation.mutants import find_again
from simulation.search import Totals, explore, failure_report, shrink
from simulation.serving.breakages import MUTANTS
from simulation.serving.faults import COUNTS_MAX, LATER_MAX, RATES_MAX
from simulation.serving.settings import ACTS
from simulation.serving.world import SERVING

ROOT = Path(__file__).parents[1]
# `make test` runs so many worlds, `make test-engines` the others, in shares; `make simulate` more.
SEEDS = 100
SEEDS_ALL = 400
SHARE = 150
# The worlds that show these take a core for ten seconds: `make test-engines` plays them.
LONG = {"crashes ignored", "plans' clocks", "other clocks"}


def explored(first: int, count: int) -> Totals:
    totals = Totals()
    for totals in explore(SERVING, first, count):
        if totals.failures:
            break
    return totals


def mutant_of(name: str) -> Mutant:
    return next(mutant for mutant in MUTANTS if mutant.name == name)


def sound(first: int, count: int) -> Totals:
    """What came in so many worlds, none of which breaks a rule."""
    print(f"seeds {first} to {first + count - 1}")
    totals = explored(first, count)
    if totals.failures:
        pytest.fail(failure_report(SERVING, *shrink(SERVING, totals.failures[0])))
    assert totals.runs == count
    return totals


def test_no_service_breaks_a_rule_and_every_kind_of_fault_action_and_answer_is_among_it() -> None:
    """Worlds without one of them would show less than they say."""
    totals = sound(1, SEEDS)
    assert not {*RATES_MAX, *COUNTS_MAX, *LATER_MAX} - totals.struck.keys()
    seen = {
        *ACTS,
        *(stage.value for stage in RolloutStage),
        "refused",
        "answered",
        "answered again",
    }
    assert not {*seen, "lost", "turned away"} - totals.happened.keys()


@pytest.mark.engines
@pytest.mark.parametrize("first", range(SEEDS + 1, SEEDS_ALL, SHARE))
def test_no_service_breaks_a_rule_in_hundreds_of_worlds(first: int) -> None:
    sound(first, SHARE)


def test_seeds_that_once_failed_do_not_fail_again() -> None:
    kept = failed(SERVING_CORPUS)
    assert len(kept) > 2
    for seed, reason in kept:
        verdict = SERVING.run(seed)
        assert verdict.ok, f"{reason}\n{failure_report(SERVING, verdict)}"


@pytest.mark.parametrize(
    "mutant",
    [
        pytest.param(each, id=each.name, marks=[pytest.mark.engines] if each.name in LONG else [])
        for each in MUTANTS
    ],
)
def test_a_deliberate_breakage_of_rollouts_or_gateways_is_found(mutant: Mutant) -> None:
    found = find_again(SERVING, mutant, SERVING_CORPUS)
    assert found.verdict is not None, f"{mutant.what}: {found.seeds} worlds showed nothing wrong"
    assert found.verdict.story


def test_there_are_at_least_twenty_breakages_of_rollouts_and_ten_of_gateways() -> None:
    names = {mutant.name for mutant in MUTANTS}
    gateways = {name for name in names if name.startswith("gateway: ")}
    assert len(names) == len(MUTANTS)
    assert len(names - gateways) >= 20
    assert len(gateways) >= 10


def test_what_envoy_is_given_is_what_the_gateway_itself_works_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = []
    real = resources.resources

    def counted(*arguments: object) -> object:
        asked.append(arguments)
        return real(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(resources, "resources", counted)
    assert SERVING.run(1, own_checks=False).ok  # nothing of other worlds is kept
    assert asked


def test_a_failing_seed_is_told_as_a_story_and_made_smaller() -> None:
    with mutant_of("no fence").on():
        verdict = next(
            verdict
            for verdict in (SERVING.run(seed, own_checks=False) for seed in range(1, 60))
            if not verdict.ok and len(verdict.faults) > 5
        )
        small, off = shrink(SERVING, verdict)
    assert small.rule == verdict.rule
    assert len(small.faults) < len(verdict.faults)
    text = failure_report(SERVING, small, off)
    assert f"replay: python -m simulation.serving --seed {verdict.seed} --off" in text
    assert "plan" in text


def test_the_same_seed_gives_the_same_trace_whatever_python_hashes_by() -> None:
    command = [sys.executable, "-m", "simulation.serving", "--seeds", "12", "--digest", "--json"]
    digests = set()
    for hash_seed in ("0", "1", "12345"):
        done = subprocess.run(
            command,
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        )
        digests.add(json.loads(done.stdout)["digest"])
    assert len(digests) == 1


def test_the_command_replays_one_seed_with_its_story() -> None:
    command = [sys.executable, "-m", "simulation.serving", "--seed", "3"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert "leads 1" in done.stdout
    assert "seed 3: nothing is wrong" in done.stdout
