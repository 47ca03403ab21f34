"""What `holdfast run` does about the job that has its name: pure decisions."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from holdfast.cli.run import plan as run_plan
from holdfast.cli.run.plan import Act, decide
from holdfast.client import scripts
from holdfast.client.scripts import ScriptRun, spec_of
from holdfast.control.decide.facts import (
    Checkpoint,
    Intent,
    JobRecord,
    Phase,
    RecordedStatus,
    Setting,
)
from holdfast.control.decide.spec import CheckpointPolicy, Mode, Resources
from holdfast.wire.errors import Usage

BUNDLE = "sha256:" + "0" * 64
OTHER = "sha256:" + "1" * 64


def wanted(**changes: object) -> ScriptRun:
    plain = ScriptRun(Path("/code/train.py"), ("--epochs", "3"), "train", 4)
    return replace(plain, **changes)  # type: ignore[arg-type]


def job(phase: Phase, *steps: int, asked: ScriptRun | None = None, **changes: object) -> JobRecord:
    asked = asked or wanted()
    spec = spec_of(asked, BUNDLE, scripts.lanes_of(asked))
    checkpoints = tuple(Checkpoint(step, "manifests/m", 1, 0.0) for step in steps)
    made = JobRecord(spec, 0.0, RecordedStatus(phase, "as it is", 0.0), checkpoints=checkpoints)
    return replace(made, **changes)  # type: ignore[arg-type]


def test_a_new_name_begins_with_the_power_of_two_of_lanes_that_gives_each_worker_one() -> None:
    assert decide(None, wanted(), BUNDLE).act is Act.BEGIN
    lanes = {count: decide(None, wanted(workers=count), BUNDLE).lanes for count in (1, 2, 3, 5, 8)}
    assert lanes == {1: 1, 2: 2, 3: 4, 5: 8, 8: 8}
    assert decide(None, wanted(lanes=6), BUNDLE).lanes == 6


def test_fewer_lanes_than_workers_are_refused_with_the_number_that_works() -> None:
    with pytest.raises(Usage, match="4 workers cannot share 2 lanes") as caught:
        decide(None, wanted(lanes=2), BUNDLE)
    assert "--lanes 4" in caught.value.fix


@pytest.mark.parametrize("phase", [Phase.PAUSED, Phase.RUNNING, Phase.QUEUED])
def test_a_job_that_has_not_ended_goes_on_from_its_last_commit(phase: Phase) -> None:
    decision = decide(job(phase, 20, 40), wanted(), BUNDLE)
    assert decision.act is Act.GO_ON
    assert decision.notes == ("job train goes on from step 40",)
    assert not decision.changed


def test_a_job_goes_on_with_the_code_that_it_began_with_and_says_so() -> None:
    decision = decide(job(Phase.PAUSED, 40), wanted(), OTHER)
    assert decision.act is Act.GO_ON
    assert "has changed since it began" in decision.notes[1]
    assert "--fresh" in decision.notes[1]


def test_a_job_that_has_succeeded_starts_anew_after_saying_so() -> None:
    decision = decide(job(Phase.SUCCEEDED, 100), wanted(), BUNDLE)
    assert decision.act is Act.ANEW
    assert decision.notes[0] == "job train has succeeded at step 100; starting anew"


def test_a_failed_job_without_a_checkpoint_starts_anew() -> None:
    assert decide(job(Phase.FAILED), wanted(), OTHER).act is Act.ANEW


@pytest.mark.parametrize("phase", [Phase.FAILED, Phase.STOPPED])
def test_checkpoints_of_a_job_that_ended_badly_are_not_thrown_away_unasked(phase: Phase) -> None:
    with pytest.raises(Usage) as caught:
        decide(job(phase, 40), wanted(), BUNDLE)
    assert "step 40 is kept" in caught.value.why
    assert "--fresh" in caught.value.fix and "--name train-2" in caught.value.fix
    assert decide(job(phase, 40), wanted(fresh=True), BUNDLE).act is Act.ANEW


def test_other_arguments_are_another_job() -> None:
    with pytest.raises(Usage, match="began with another command") as caught:
        decide(job(Phase.PAUSED, 40), wanted(arguments=("--epochs", "9")), BUNDLE)
    assert "python train.py --epochs 3" in caught.value.why


def test_lanes_are_fixed_and_workers_are_not() -> None:
    paused = job(Phase.PAUSED, 40, asked=wanted(lanes=8))
    for count in (1, 3, 8):
        assert decide(paused, wanted(workers=count), BUNDLE).lanes == 8
    with pytest.raises(Usage, match="has 8 lanes"):
        decide(paused, wanted(lanes=4), BUNDLE)
    with pytest.raises(Usage, match="cannot have 9 workers") as caught:
        decide(paused, wanted(workers=9), BUNDLE)
    assert "--workers 8" in caught.value.fix


def test_only_settings_that_differ_are_changed_on_the_way() -> None:
    began = wanted(settings={"lr": "0.1", "decay": "1"})
    paused = job(Phase.PAUSED, 40, asked=began, settings=(Setting("decay", "2", 10),))
    same = decide(paused, wanted(settings={"lr": "0.1", "decay": "2"}), BUNDLE)
    assert not same.changed
    other = decide(paused, wanted(settings={"lr": "0.01"}), BUNDLE)
    assert other.changed == {"lr": "0.01"}
    assert any(said.startswith("lr=0.01 is given for the next step") for said in other.notes)


def test_a_job_that_is_being_stopped_is_not_taken_up_again() -> None:
    with pytest.raises(Usage, match="is being stopped"):
        decide(job(Phase.SHRINKING, 40, intent=Intent.STOP), wanted(), BUNDLE)


def test_jobs_whose_runs_were_killed_do_not_take_the_room_of_another() -> None:
    others = {
        "killed": job(Phase.RUNNING, 40),
        "paused": job(Phase.PAUSED, 40, intent=Intent.PAUSE),
        "ended": job(Phase.SUCCEEDED, 40),
    }
    assert run_plan.in_the_way(others) == ["killed"]


def test_a_job_may_have_as_many_workers_as_lanes_so_that_another_run_may_scale_it() -> None:
    spec = spec_of(wanted(workers=3), BUNDLE, 8)
    assert (spec.workers_min, spec.workers_max, spec.lanes) == (1, 8, 8)
    assert spec.command == ("python", "train.py", "--epochs", "3")


@pytest.mark.parametrize(
    ("text", "policy"),
    [
        ("30s", CheckpointPolicy(every_s=30.0)),
        ("1h30m", CheckpointPolicy(every_s=5400.0)),
        ("100steps", CheckpointPolicy(every_steps=100, every_s=None)),
        ("1 step", CheckpointPolicy(every_steps=1, every_s=None)),
        ("never", CheckpointPolicy(every_s=None)),
    ],
)
def test_how_often_checkpoints_are_made_is_said_in_time_or_in_steps(
    text: str, policy: CheckpointPolicy
) -> None:
    assert scripts.checkpoint_of(text) == policy


@pytest.mark.parametrize("text", ["", "30", "0s", "0steps", "steps", "often", "-1s"])
def test_what_is_neither_a_time_nor_steps_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(Usage) as caught:
        scripts.checkpoint_of(text)
    assert "100steps" in caught.value.fix


def test_settings_and_resources_are_checked_before_anything_is_started() -> None:
    assert run_plan.settings_from(["lr=0.1", "a.b=x=y"]) == {"lr": "0.1", "a.b": "x=y"}
    for wrong in ("lr", "=1", "1a=2"):
        with pytest.raises(Usage):
            run_plan.settings_from([wrong])
    assert scripts.resources_of(None, None, 0) == Resources(cpu=1.0)
    assert scripts.resources_of(0.5, "1GiB", 2) == Resources(0.5, 1024**3, 2)
    for bad in ((0.0, None, 0), (1.0, "4", 0), (1.0, None, -1)):
        with pytest.raises(Usage):
            scripts.resources_of(*bad)


def test_a_jobs_name_comes_from_its_script() -> None:
    assert scripts.name_of(Path("train.py")) == "train"
    assert scripts.name_of(Path("my model (2).py")) == "my-model-2"
    assert scripts.name_of(Path("___.py")) == "job"
    assert len(scripts.name_of(Path("x" * 200 + ".py"))) == 50


def test_a_mode_is_part_of_a_new_job_and_of_one_that_goes_on_it_cannot_be_changed() -> None:
    local = wanted(mode=scripts.mode_of("local"))
    assert spec_of(local, BUNDLE, 4).mode is Mode.LOCAL
    assert spec_of(wanted(), BUNDLE, 4).mode is Mode.SYNC
    begun = job(Phase.PAUSED, 20, asked=local)
    assert decide(begun, local, BUNDLE).act is Act.GO_ON
    assert decide(begun, wanted(), BUNDLE).act is Act.GO_ON
    with pytest.raises(Usage, match="began in mode local") as caught:
        decide(begun, wanted(mode=Mode.ASYNC), BUNDLE)
    assert "--fresh" in caught.value.fix


@pytest.mark.parametrize("text", ["serve", "syncronous", ""])
def test_a_word_that_is_no_way_to_train_is_refused_with_those_that_are(text: str) -> None:
    with pytest.raises(Usage, match="sync, local or async"):
        scripts.mode_of(text)
