"""A script as a job: what is said when the job divides a step otherwise than its script does."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from holdfast.client.scripts import ScriptRun, other_lanes
from holdfast.control.decide.spec import JobSpec, Mode

SPEC = JobSpec("job", ("python", "train.py"), lanes=4, workers_max=4, bundle=".")


def test_a_job_with_other_lanes_than_its_script_is_told_before_it_gives_other_bits(
    tmp_path: Path,
) -> None:
    (tmp_path / "train.py").write_text("train.launch(main, lanes=8)\n")
    said = other_lanes(SPEC, tmp_path)
    assert "4 lanes" in said and "train.py:1 says 8" in said and "`lanes: 8`" in said
    assert other_lanes(replace(SPEC, lanes=8, workers_max=8), tmp_path) == ""


def test_nothing_is_said_where_nothing_is_known(tmp_path: Path) -> None:
    assert other_lanes(SPEC, tmp_path) == "", "the script is elsewhere"
    (tmp_path / "train.py").write_text("train.launch(main)\n")
    assert other_lanes(SPEC, tmp_path) == "", "it says nothing"
    assert other_lanes(replace(SPEC, mode=Mode.SERVE, lanes=1), tmp_path) == ""


def test_a_script_whose_name_begins_with_a_dash_is_not_taken_for_options_of_python() -> None:
    wanted = ScriptRun(Path("/code/-x.py"), ("--epochs", "3"), "x", 1)
    assert wanted.command == ("python", "./-x.py", "--epochs", "3")
    assert replace(wanted, script=Path("/code/x.py")).command[1] == "x.py"
