"""Many seeds: the search, the runner, the command line, the corpus, the table of mutants."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.wire.errors import Usage
from simulation import runner, search
from simulation.__main__ import main
from simulation.breakages import MUTANTS
from simulation.corpus import CONTROL_CORPUS, KeptSeed, corpus_of
from simulation.mutants import find_again
from simulation.mutants import main as mutants_main
from simulation.runner import run_many
from simulation.search import failure_report, shrink
from simulation.verdict import Kind, Verdict
from simulation.world import CONTROL
from tests.waiting import eventually

ROOT = Path(__file__).parents[3]


def mutant(name: str):  # type: ignore[no-untyped-def]
    return next(one for one in MUTANTS if one.name == name)


def odd(
    seed: int,
    off: frozenset[str] = frozenset(),
    *,
    traced: bool = False,
    own_checks: bool = True,
) -> Verdict:
    """A world in which every seventh seed breaks a rule, whatever happens but `drop#2`."""
    faults = tuple(name for name in ("drop#1", "drop#2", "late#1") if name not in off)
    faults = tuple(name for name in faults if name.partition("#")[0] not in off)
    broken = seed % 7 == 0 and "drop#2" in faults
    rule, what = ("a rule", f"of {seed}") if broken else ("", "")
    return Verdict(seed, rule, what, 10, 1.5, faults, ("a line",), f"d{seed}", {"thing": 2})


ODD = Kind("simulation.odd", odd)


def test_several_processes_find_what_one_finds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "BLOCK_SEEDS", 8)
    for jobs in (1, 3):
        *_, totals = run_many(ODD, 1, 50, jobs=jobs)
        assert totals.runs == 50
        assert [verdict.seed for verdict in totals.failures] == [7, 14, 21, 28, 35, 42, 49]
        assert totals.digests == [f"d{seed}" for seed in range(1, 51)]
        assert (totals.events, totals.faults, totals.simulated_s) == (500, 150, 75.0)
        assert totals.struck == {"drop": 100, "late": 50}
        assert totals.happened == {"thing": 100}


def test_a_run_whose_time_is_over_ends_with_what_it_has_without_a_gap() -> None:
    for jobs in (1, 2):
        assert list(run_many(ODD, 1, 1_000_000, jobs=jobs, until_s=0.0)) == []


def test_a_failing_seed_is_made_small_by_switching_faults_off() -> None:
    small, off = shrink(ODD, odd(7))
    assert small.faults == ("drop#2",)
    text = failure_report(ODD, small, off)
    assert 'python -m simulation.odd --seed 7 --off "drop#1,late"' in text
    assert "a rule" in text and "a line" in text


def test_a_failing_world_is_made_small_and_still_breaks_the_same_rule(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(search, "SHRINK_S_MAX", 3.0)  # who looks for a bug has more time
    found = find_again(CONTROL, mutant("commit over a view"), CONTROL_CORPUS)
    assert found.verdict is not None
    with mutant("commit over a view").on():
        small, off = shrink(CONTROL, found.verdict)
        again = CONTROL.run(small.seed, off)
    assert small.rule == again.rule == found.verdict.rule
    assert len(small.faults) < len(found.verdict.faults)


def test_a_replay_tells_the_story_and_ends_with_zero_when_nothing_is_wrong(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["--seed", "3"]) == 0
    shown = capsys.readouterr().out
    assert "leads in term" in shown
    assert "seed 3: nothing is wrong" in shown
    assert main(["--seed", "3", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rule"] == ""


def test_a_search_that_finds_something_says_how_to_replay_it_and_ends_with_one(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "SHRINK_S_MAX", 1.0)
    with mutant("early commit").on():
        assert main(["--seeds", "6"]) == 1
        assert main(["--seeds", "6", "--json"]) == 1
    *text, summary = capsys.readouterr().out.strip().splitlines()
    assert any("replay: python -m simulation --seed" in line for line in text)
    shown = json.loads(summary)
    assert shown["failures"] and shown["violations"] == len(shown["failures"])
    assert shown["schedules"] == 6 and shown["next"] == 7


def test_a_search_reports_its_rate(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seeds", "2", "--from", "40", "--minutes", "10"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("2 schedules, 0 failed;")
    assert "schedules/s" in shown
    assert "faults: " in shown


def searching() -> tuple[subprocess.Popen[str], list[str]]:
    """A long search, and the processes that it has handed work to."""
    running = subprocess.Popen(
        [sys.executable, "-m", "simulation", "--seeds", "1000000", "--jobs", "2"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    children = Path(f"/proc/{running.pid}/task/{running.pid}/children")
    pids = eventually(lambda: len(found := children.read_text().split()) >= 2 and found, "two")
    return running, pids


def computes(pid: str) -> bool:
    """Whether the process is there, and not only its name in the system's list."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def test_ctrl_c_ends_all_processes_and_says_where_to_go_on() -> None:
    running, pids = searching()
    # As a terminal does it: everybody of the group gets the signal.
    os.killpg(running.pid, signal.SIGINT)
    shown, errors = running.communicate(timeout=60)
    assert running.returncode == 130, errors
    assert "to go on: python -m simulation --from" in shown
    assert "Traceback" not in errors
    assert not any(map(computes, pids))


def test_a_search_that_is_killed_leaves_no_process() -> None:
    running, pids = searching()
    running.kill()
    running.wait()
    eventually(lambda: not any(map(computes, pids)), "all of them have ended")
    running.communicate()


def test_a_mutant_leaves_nothing_behind() -> None:
    for one in MUTANTS:
        before = [getattr(where, what) for where, what, _ in one.patches]
        with one.on():
            assert [getattr(where, what) for where, what, _ in one.patches] != before
        assert [getattr(where, what) for where, what, _ in one.patches] == before


def test_the_table_of_mutants_names_the_seed_and_the_rule_and_fails_for_one_not_found(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert mutants_main(["--only", "early commit", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row["seed"] == row["schedules"] and row["rule"].startswith("2:")
    assert mutants_main(["--only", "early commit", "--seeds", "0"]) == 1
    assert "1 NOT FOUND" in capsys.readouterr().out


def test_a_corpus_is_seeds_with_reasons(tmp_path: Path) -> None:
    path = tmp_path / "corpus.txt"
    path.write_text("# a heading\n\n17  # it broke something\n")
    assert corpus_of(path) == [KeptSeed(17, "it broke something")]
    path.write_text("17\n")
    with pytest.raises(Usage, match=r"line 1 of corpus\.txt"):
        corpus_of(path)
