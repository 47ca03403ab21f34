"""Checkpoints of members: shares written by real processes, committed, read back, damaged."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
import safetensors.numpy

from holdfast.storage import open_store, read_part
from holdfast.storage.manifests import read_manifest
from holdfast.train.states.checkpoints import restore
from holdfast.wire.errors import Corrupt
from tests.faults.members_stage import JOB, Stage

BALLAST_BYTES = 20 * 1024 * 1024
BALLAST = ("--ballast", str(BALLAST_BYTES))


def checkpoint(stage: Stage, ahead: int = 5) -> tuple[int, str]:
    """A committed checkpoint a few steps ahead; attempts that were missed are made again."""
    while True:
        step = stage.step + ahead
        attempt = stage.checkpoint(step)
        if all(parts is not None for parts in stage.shares(attempt).values()):
            return step, stage.commit(attempt, step)
        ahead *= 2


def damage(stage: Stage, manifest: str, which: int) -> None:
    """Change a bit of one of a checkpoint's parts."""
    parts = [part for _, part in read_manifest(open_store(stage.store), manifest).parts()]
    path = Path(stage.store.removeprefix("file:")) / parts[which].key
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.chmod(0o600)
    path.write_bytes(data)


def test_a_checkpoint_is_read_back_whole_and_by_plain_safetensors(tmp_path: Path) -> None:
    with Stage(tmp_path, steps=200, step_ms=5) as stage:
        stage.start(0, 1, 2, more=BALLAST)
        stage.move([0, 1, 2], restore=0)
        stage.wait_for_step(3)
        step, manifest = checkpoint(stage)
        blobs = open_store(stage.store)
        arrays = {}
        shares = read_manifest(blobs, manifest).shares
        for parts in shares.values():
            for part in parts:
                arrays.update(safetensors.numpy.load(read_part(blobs, part)))
        assert sorted(arrays) == ["ballast", "chain", "counted", "total"]
        assert arrays["counted"].shape == (200, 8)
        assert (arrays["counted"][:step] == 1).all() and (arrays["counted"][step:] == 0).all()
        state = restore(blobs, manifest, JOB, step)
        assert bytes(state["chain"].data) == arrays["chain"].tobytes()


def test_what_did_not_change_is_not_written_again(tmp_path: Path) -> None:
    with Stage(tmp_path, steps=300, step_ms=5) as stage:
        stage.start(0, 1, more=BALLAST)
        stage.move([0, 1], restore=0)
        stage.wait_for_step(2)
        blobs = open_store(stage.store)
        first, second = (read_manifest(blobs, checkpoint(stage)[1]) for _ in range(2))
        assert second.step > first.step
        before = {part.key for _, part in first.parts()}
        new = [part for _, part in second.parts() if part.key not in before]
        assert 0 < sum(part.size_bytes for part in new) < BALLAST_BYTES // 10


def test_all_are_killed_and_any_number_goes_on_from_the_checkpoint(tmp_path: Path) -> None:
    with Stage(tmp_path, steps=120, step_ms=5) as stage:
        stage.start(0, 1, 2)
        stage.move([0, 1, 2], restore=0)
        stage.wait_for_step(5)
        step, manifest = checkpoint(stage)
        stage.wait_for_step(step + 3)
        for worker in stage.workers.values():
            worker.kill()
        stage.start(3, 4)
        stage.move([3, 4], restore=step, manifest=manifest)
        stage.wait_for_adoption()
        assert min(s for s in stage.workers[4].steps if s is not None) >= step
        stage.end(120)
        assert stage.the_answer() == stage.right_answer()


def test_everyone_says_that_a_damaged_checkpoint_cannot_be_read_and_takes_the_older(
    tmp_path: Path,
) -> None:
    with Stage(tmp_path, steps=200, step_ms=5) as stage:
        stage.start(0, 1)
        stage.move([0, 1], restore=0)
        stage.wait_for_step(2)
        older, older_manifest = checkpoint(stage)
        newer, newer_manifest = checkpoint(stage)
        for worker in stage.workers.values():
            worker.kill()
        damage(stage, newer_manifest, which=1)
        with pytest.raises(Corrupt):
            restore(open_store(stage.store), newer_manifest, JOB, newer)
        stage.start(2, 3, 4)
        stage.move([2, 3, 4], restore=newer, manifest=newer_manifest)
        stage.wait(
            "all say so",
            lambda: all(stage.workers[n].said["unreadable"] == [newer] for n in (2, 3, 4)),
        )
        assert all(stage.workers[n].said["step"] is None for n in (2, 3, 4))
        stage.move([2, 3, 4], restore=older, manifest=older_manifest)
        stage.wait_for_adoption()
        stage.end(200)
        assert stage.the_answer() == stage.right_answer()


def test_a_member_killed_while_it_writes_its_share_leaves_nothing_that_is_used(
    tmp_path: Path,
) -> None:
    with Stage(tmp_path, steps=300, step_ms=5) as stage:
        stage.start(0, 1, more=BALLAST)
        stage.move([0, 1], restore=0)
        stage.wait_for_step(2)
        store = Path(stage.store.removeprefix("file:"))
        attempt = stage.checkpoint(stage.step + 10)
        stage.wait("somebody writes", lambda: any(store.rglob("*")) if store.exists() else False)
        stage.workers[1].kill()
        stage.move([0])
        stage.wait_for_adoption()
        step, manifest = checkpoint(stage)  # the next attempt, of who is left
        assert attempt not in stage.workers[1].parts or stage.workers[1].parts[attempt]
        stage.workers[0].kill()
        stage.start(2, more=BALLAST)
        stage.move([2], restore=step, manifest=manifest)
        stage.end(300)
        assert stage.the_answer() == stage.right_answer()


def test_an_attempt_whose_step_has_passed_is_missed(tmp_path: Path) -> None:
    with Stage(tmp_path, steps=200, step_ms=5) as stage:
        stage.start(0, 1)
        stage.move([0, 1], restore=0)
        stage.wait_for_step(10)
        assert stage.shares(stage.checkpoint(4)) == {0: None, 1: None}
        checkpoint(stage)


def test_a_store_that_takes_nothing_does_not_stop_training(tmp_path: Path) -> None:
    with Stage(tmp_path, steps=300, step_ms=10) as stage:
        store = Path(stage.store.removeprefix("file:"))
        store.write_text("a file where the folder should be")
        stage.start(0, 1)
        stage.move([0, 1], restore=0)
        stage.wait_for_step(2)
        step = stage.step + 10
        attempt = stage.checkpoint(step)
        stage.wait_for_step(step + 20)
        assert not any(attempt in worker.parts for worker in stage.workers.values())
        store.unlink()  # the store is back: the share of that step is still written
        manifest = stage.commit(attempt, step)
        assert restore(open_store(stage.store), manifest, JOB, step).step == step
        assert stage.step > step


def test_a_checkpoint_that_cannot_be_read_now_is_waited_for(tmp_path: Path) -> None:
    with Stage(tmp_path, steps=120, step_ms=5) as stage:
        stage.start(0)
        stage.move([0], restore=0)
        stage.wait_for_step(2)
        step, manifest = checkpoint(stage)
        stage.workers[0].kill()
        store = Path(stage.store.removeprefix("file:"))
        away = store.with_name("away")
        store.rename(away)
        store.symlink_to("store")  # every call fails: too many levels of links
        stage.start(1)
        stage.move([1], restore=step, manifest=manifest)
        stage.wait("it is told", lambda: stage.workers[1].said["view"] == 2)
        stage.workers[1].signal(signal.SIGTERM)  # it can still be asked to leave
        assert stage.workers[1].process.wait(60) == 0
        assert stage.workers[1].said["unreadable"] == []
        stage.start(2)
        stage.move([2], restore=step, manifest=manifest)
        stage.wait("it is told", lambda: stage.workers[2].said["view"] == 3)
        store.unlink()
        away.rename(store)
        stage.end(120)
        assert stage.the_answer() == stage.right_answer()
