"""The chaos run in short: a whole cluster is killed, cut, paused and filled, and all promises hold.

`make chaos MINUTES=30 SEED=…` is the long one.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from holdfast.system.process_identity import start_ticks
from tests.proofs.chaos import disks, network
from tests.proofs.chaos.plan import Plan

pytestmark = pytest.mark.engines

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


# In namespaces, with small disks and with a store's server where they can be had; elsewhere the
# command says why not, and does without.
@pytest.mark.timeout(900)
@pytest.mark.xdist_group("chaos")
def test_every_promise_holds_while_everything_is_killed_cut_paused_and_filled() -> None:
    words = ["--minutes", "0.55", "--seed", "3044", "--epochs", "20", "--models", "mlp"]
    found = chaos(*words)
    figures = found["figures"]
    assert figures["kills"] >= 2
    assert figures["cuts"] >= 1
    assert figures["requests"] > 100
    assert figures["commits"] > 0
    assert figures["acknowledged writes"] > 50
    assert figures["trainings, all with the right bits"] >= 1
    if not {"--no-namespaces", "--no-disks", "folder"} & set(found["command"].split()):
        assert figures["kills of envoy"] >= 1
        assert figures["kills of store"] >= 1


@pytest.mark.timeout(900)
@pytest.mark.xdist_group("chaos")
def test_a_run_that_is_interrupted_leaves_no_process_no_namespace_and_no_disk() -> None:
    words = ["--minutes", "30", "--seed", "1", "--epochs", "1", "--models", "mlp"]
    command = [sys.executable, "-m", "tests.proofs.chaos", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT, text=True) as run:
        name = f"{run.pid}-{start_ticks(run.pid)}"
        assert run.stdout is not None
        try:
            while "all replicas serve" not in (line := run.stdout.readline()):
                assert line, "it has ended"
                print(line, end="")
            assert network.marked(name), "everything runs"
        finally:
            run.send_signal(signal.SIGINT)
            said, _ = run.communicate(timeout=PATIENCE_S)
    assert run.returncode == 130, said
    assert network.marked(name) == []
    assert not [place for place, of in disks.mounted().items() if name in of]
    assert not [each for each in network.names() if name in each]
    folder = Path(said.rpartition("data in ")[2].strip())
    shutil.rmtree(folder)


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
