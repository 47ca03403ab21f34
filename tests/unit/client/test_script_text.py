"""What a script's text says of its lanes and of its options."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.cli.run import plan as run_plan
from holdfast.client.scripts import ScriptLanes, ScriptRun, lanes_in, strange_options
from holdfast.wire.errors import Usage
from tests.unit.cli.running import holdfast

OURS = ("--workers", "--lanes", "--set", "--dir", "--fresh", "--gpu")


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("train.launch(main, lanes=8)", ScriptLanes(8, 1)),
        ("\nif x:\n    launch(\n        main,\n        lanes=8,\n    )", ScriptLanes(8, 5)),
        ("LANES = 4\ntrain.launch(main, lanes=LANES)", ScriptLanes(4, 2)),
        ("N: int = 4\nN = 5\ntrain.launch(main, lanes=N)", ScriptLanes(None, 3)),
        ("train.launch(main, lanes=args.lanes)", ScriptLanes(None, 1)),
        ("train.launch(main, lanes=2)\ntrain.launch(main, lanes=4)", ScriptLanes(None, 1)),
        ("train.launch(main, lanes=None)", None),
        ("train.launch(main)", None),
        ("train.launch(main, lanes=8", None),
    ],
)
def test_the_number_of_lanes_is_read_where_it_stands(source: str, said: ScriptLanes | None) -> None:
    assert lanes_in(source) == said


def choice(
    script: ScriptLanes | None, workers: int = 2, lanes: int | None = None
) -> tuple[int, str]:
    wanted = ScriptRun(Path("/code/train.py"), (), "train", workers, lanes, script_lanes=script)
    decided = run_plan.decide(None, wanted, "sha256:0")
    return decided.lanes, " ".join(decided.notes)


def test_the_lanes_of_the_script_win_over_the_number_of_workers_and_that_is_said() -> None:
    assert choice(ScriptLanes(8, 12)) == (8, "8 lanes, said by train.py:12")
    assert choice(ScriptLanes(8, 12), workers=1)[0] == 8


def test_a_flag_that_changes_the_number_of_lanes_is_said_with_what_the_script_says() -> None:
    lanes, said = choice(ScriptLanes(8, 12), lanes=4)
    assert lanes == 4
    assert said.startswith("4 lanes, said by --lanes; train.py:12 says 8")
    assert choice(ScriptLanes(8, 12), lanes=8) == (8, "")


def test_lanes_that_come_from_the_workers_alone_are_said() -> None:
    assert choice(None, workers=1) == (1, "")
    lanes, said = choice(None, workers=3)
    assert lanes == 4 and said.startswith("4 lanes, for 3 workers; the result depends on the lanes")
    lanes, said = choice(ScriptLanes(None, 12))
    assert lanes == 2 and "what train.py:12 says is only known when it runs" in said


def test_more_workers_than_lanes_of_the_script_are_refused_with_both_ways_out() -> None:
    with pytest.raises(Usage, match="16 workers cannot share 8 lanes") as caught:
        choice(ScriptLanes(8, 12), workers=16)
    assert "train.py:12 says 8" in caught.value.why
    assert caught.value.fix == "--workers 8; or, for other bits, --lanes 16, or more"


def test_more_lanes_in_a_script_than_a_job_may_have_are_refused_with_their_place() -> None:
    with pytest.raises(Usage, match="1,000,000 lanes are too many") as caught:
        choice(ScriptLanes(1_000_000, 12))
    assert "train.py:12" in caught.value.why


@pytest.mark.parametrize(
    ("arguments", "source", "hints"),
    [
        (["--cluster", "x"], "print(1)", {"--cluster": "holdfast submit"}),
        (["--cluster", "x"], "add_argument('--cluster')", {}),
        (["--cluster=x"], "def main(cluster: str): ...", {}),
        (["--worker", "4"], "workers = 3", {"--worker": "holdfast run has --workers"}),
        (["--epochs", "3", "-v", "file"], "", {}),
    ],
)
def test_an_option_that_the_script_does_not_name_and_that_is_like_ours_gets_a_hint(
    arguments: list[str], source: str, hints: dict[str, str]
) -> None:
    found = dict(strange_options(arguments, source, OURS))
    assert found.keys() == hints.keys()
    assert all(hints[name] in found[name] for name in hints)


def test_an_unknown_option_before_the_script_is_not_taken_for_the_script(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print(1)")
    done = holdfast("run", "--cluster", "x", "train.py", cwd=tmp_path)
    assert done.returncode == Usage.exit_code
    assert "holdfast run has no option --cluster" in done.stderr
