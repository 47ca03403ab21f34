"""A script without a job: the same face, its own checkpoints."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.train.members.solo import Solo
from holdfast.train.states.state import StateEntry, TrainingState
from holdfast.wire.errors import Corrupt
from tests.faults.members_stage import ROOT
from tests.waiting import eventually

COUNTER = [sys.executable, str(ROOT / "examples" / "counter.py")]


class Word:
    """A state that is one word."""

    def __init__(self) -> None:
        self.word = b""

    def fresh(self) -> None:
        self.word = b"new"

    def state(self) -> TrainingState:
        return TrainingState.of(
            0, [StateEntry.of("word", "U8", (len(self.word),), self.word)], {"kind": "w"}
        )

    def adopt(self, state: TrainingState) -> None:
        assert state.notes == {"kind": "w"}
        self.word = bytes(state["word"].data)


def test_all_lanes_are_here_and_nothing_is_written_without_a_folder(tmp_path: Path) -> None:
    word = Word()
    solo = Solo(word, 5, settings={"lr": "1"})
    solo.join()
    assert (solo.step, solo.lanes, solo.settings, word.word) == (
        0,
        (0, 1, 2, 3, 4),
        {"lr": "1"},
        b"new",
    )
    assert solo.boundary() is False and solo.step == 1
    assert solo.renew() is False
    solo.finish()
    assert list(tmp_path.iterdir()) == []


def test_with_a_folder_it_goes_on_from_its_last_checkpoint(tmp_path: Path) -> None:
    word = Word()
    solo = Solo(word, 2, folder=tmp_path)
    solo.join()
    word.word = b"after three steps"
    for _ in range(3):
        solo.boundary()
    solo.finish()
    again = Word()
    solo = Solo(again, 4, folder=tmp_path)
    solo.join()
    assert (solo.step, again.word) == (3, b"after three steps")
    solo.close()


def test_a_damaged_checkpoint_is_an_error_and_not_a_new_beginning(tmp_path: Path) -> None:
    word = Word()
    solo = Solo(word, 2, folder=tmp_path)
    solo.join()
    solo.boundary()
    solo.finish()
    for part in (tmp_path / "parts").rglob("*"):
        if part.is_file():
            part.chmod(0o600)
            part.write_bytes(b"x" + part.read_bytes()[1:])
    with pytest.raises(Corrupt):
        Solo(Word(), 2, folder=tmp_path).join()


def test_a_script_that_is_killed_and_run_again_comes_to_the_same_answer(tmp_path: Path) -> None:
    options = ["--steps", "400", "--folder", str(tmp_path / "folder")]
    answer = tmp_path / "answer"
    slowly = [*COUNTER, *options, "--step-ms", "30"]  # it must not be done before it is killed
    process = subprocess.Popen(slowly, cwd=ROOT, stdout=subprocess.DEVNULL)
    eventually((tmp_path / "folder" / "last.json").exists, "a checkpoint is there")
    process.kill()
    process.wait(60)
    begun = json.loads((tmp_path / "folder" / "last.json").read_text())["step"]
    assert 0 < begun < 400
    done = subprocess.run(
        [*COUNTER, *options, "--step-ms", "0", "--answer", str(answer)],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    assert f"after step {begun}".encode() in done.stdout
    expected = subprocess.run(
        [*COUNTER, "--steps", "400", "--expected"], cwd=ROOT, capture_output=True, check=True
    )
    assert json.loads(answer.read_text()) == json.loads(expected.stdout[len("answer ") :])


def test_checkpoints_without_the_note_of_the_last_one_are_no_new_beginning(tmp_path: Path) -> None:
    word = Word()
    solo = Solo(word, 2, folder=tmp_path, every_steps=1)
    solo.join()
    saver = solo._saver
    for number in range(3):
        word.word = f"after step {number}".encode()
        solo.boundary()
        eventually(lambda: solo._last_step() == solo.step, "it is saved")
        # What is durable may not be noted as done yet: a boundary in between saves nothing.
        eventually(lambda: saver is None or not saver.busy, "the next one can be saved")
    solo.finish()
    (tmp_path / "last.json").unlink()
    with pytest.raises(Corrupt, match="holds checkpoints"):
        Solo(Word(), 2, folder=tmp_path).join()
