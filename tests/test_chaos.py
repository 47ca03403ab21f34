"""The chaos run in short: a whole cluster is killed, cut and paused, and every promise holds.

`make chaos MINUTES=30 SEED=…` is the long one.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.proofs.chaos.plan import Plan

ROOT = Path(__file__).parents[1]
# Much more than it takes: its own waits are bounded, and the machine may be busy.
PATIENCE_S = 840


def chaos(*words: str) -> dict[str, Any]:
    """A run as people start one; what it says of itself."""
    command = [sys.executable, "-m", "tests.proofs.chaos", "--json", *words]
    print(" ".join(command))
    run = subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT, text=True)
    try:
        said, _ = run.communicate(timeout=PATIENCE_S)
    finally:
        if run.poll() is None:
            run.terminate()  # it ends what it has started
            run.communicate(timeout=120)
    assert said, f"it ended with {run.returncode} and said nothing"
    found: dict[str, Any] = json.loads(said)
    print(json.dumps(found, indent=2))
    assert (run.returncode, found["violations"]) == (0, []), found["command"]
    return found


# In namespaces where they can be made; elsewhere the command says why not, and does without.
@pytest.mark.timeout(900)
@pytest.mark.xdist_group("chaos")
def test_every_promise_holds_while_everything_is_killed_cut_and_paused() -> None:
    words = ["--minutes", "0.55", "--seed", "275", "--epochs", "20", "--models", "mlp"]
    figures = chaos(*words)["figures"]
    assert figures["kills"] >= 2
    assert figures["cuts"] >= 1
    assert figures["requests"] > 100
    assert figures["commits"] > 0
    assert figures["acknowledged writes"] > 50
    assert figures["trainings, all with the right bits"] >= 1


def test_a_plan_is_printed_without_being_played_and_is_the_same_for_its_seed() -> None:
    command = [sys.executable, "-m", "tests.proofs.chaos", "--plan", "--minutes", "2", "--seed"]
    printed = subprocess.run(
        [*command, "7"],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": "4"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert printed == f"{Plan(7, minutes=2).script()}\n"
    assert printed != f"{Plan(8, minutes=2).script()}\n"
    assert all(line.startswith("chaos.") for line in printed.splitlines())
