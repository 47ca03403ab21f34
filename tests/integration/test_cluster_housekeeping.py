"""The leader removes blobs that nothing needs, and nothing else ever goes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from holdfast.control.decide.facts import Checkpoint, ObservedState, Phase, RecordedStatus
from holdfast.control.decide.spec import JobSpec
from holdfast.control.shell.housekeeping import Housekeeping, references
from holdfast.control.store import codec, layout
from holdfast.control.store.bundles import BundlesInPlane
from holdfast.control.store.plane import ControlPlane
from holdfast.coordination import Facts, Session, connect
from holdfast.storage import Blobs, open_store, put_part
from holdfast.storage.bundle_names import record_push
from holdfast.storage.bundles import push, renew
from holdfast.storage.keys import digest_of
from holdfast.storage.lapsing import lapsing_key, put_lapsing
from holdfast.storage.manifests import Manifest, read_manifest, verify, write_manifest
from holdfast.wire.errors import Corrupt
from holdfast.wire.reports import NodeFacts, WorkerFacts, WorkerPhase
from holdfast.wire.resources import Resources
from tests.waiting import eventually

NOBODY = ObservedState({}, frozenset())
# Two sweeps, one after the other, as the leader does them: soon, since nobody writes meanwhile.
SOON: dict[str, Any] = {"every_s": 0.02, "grace_s": 0.05, "wait_s": 0.05}


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Session]:
    with connect(f"embedded:{tmp_path}/plane?linger_s=1") as made:
        yield made


@pytest.fixture
def blobs(tmp_path: Path) -> Blobs:
    return open_store(tmp_path / "store")


def code(folder: Path, text: str) -> Path:
    folder.mkdir()
    (folder / "train.py").write_text(text)
    return folder


def keys(blobs: Blobs) -> set[str]:
    return {blob.key for kind in ("parts", "manifests", "bundles") for blob in blobs.list(kind)}


def test_whatever_a_job_a_name_or_an_attempt_needs_is_a_reference(
    session: Session, blobs: Blobs, tmp_path: Path
) -> None:
    mine = push(blobs, code(tmp_path / "mine", "print(1)"))
    named = push(blobs, code(tmp_path / "named", "print(2)"))
    record_push(BundlesInPlane(session), "trainer", named.digest, named.size_bytes, time.time())
    ControlPlane(session).submit(JobSpec("j", ("true",), bundle=mine.digest))
    part = put_part(blobs, b"in flight")
    worker = WorkerFacts("j", 1, WorkerPhase.RUNNING, parts={1: (part,)})
    observed = ObservedState({"n": NodeFacts("n", Resources(), (worker,))}, frozenset())
    needed = references(session, observed)
    assert needed.bundles == frozenset({mine.key, named.key})
    assert needed.in_flight == {part.key}
    assert needed.manifests == frozenset()


def test_the_leader_removes_what_nothing_needs_and_a_standby_removes_nothing(
    session: Session, blobs: Blobs, tmp_path: Path
) -> None:
    needed = push(blobs, code(tmp_path / "needed", "print(1)"))
    ControlPlane(session).submit(JobSpec("j", ("true",), bundle=needed.digest))
    push(blobs, code(tmp_path / "left", "print(2)"))
    part = put_part(blobs, b"of a checkpoint that was given up")
    write_manifest(blobs, Manifest("j", 1, 1, {1: (part,)}))
    leads = False
    with Housekeeping(session, blobs, lambda: NOBODY, lambda: leads, **SOON):
        time.sleep(0.5)  # pause: time in which a leader would have swept
        assert len(keys(blobs)) == 4, "a standby removes nothing"
        leads = True
        eventually(lambda: keys(blobs) == {needed.key}, "only the job's bundle is left")


def test_the_leader_removes_blobs_whose_day_has_come_and_keeps_the_others(
    session: Session, blobs: Blobs
) -> None:
    kind, image = "predictions/digits", b"of a prediction"
    over = blobs.put(lapsing_key(kind, digest_of(image), date(2020, 1, 1)), image)
    kept = put_lapsing(blobs, kind, image, 60.0)
    with Housekeeping(session, blobs, lambda: NOBODY, lambda: True, **SOON):
        eventually(lambda: not blobs.exists(over.key), "what is over goes")
    assert blobs.get(kept.key) == image


@pytest.mark.parametrize("phase", [Phase.QUEUED, Phase.PAUSED, Phase.SUCCEEDED])
def test_a_committed_checkpoint_goes_while_its_job_has_no_workers(
    session: Session, blobs: Blobs, phase: Phase
) -> None:
    """It waits, is paused or has ended: nobody holds its state but the store."""
    control, facts = ControlPlane(session), Facts(session)
    control.submit(JobSpec("j", ("true",)))
    part, left = put_part(blobs, b"all that was learned"), put_part(blobs, b"of an older one")
    manifest = Manifest("j", 10, 1, {1: (part,)})
    committed = Checkpoint(10, write_manifest(blobs, manifest), 1, 6.0)
    state = facts.read(layout.state_path("j"), fresh=True)
    assert state is not None
    seen = codec.state_from(layout.state_path("j"), state.data)
    after = replace(seen, status=RecordedStatus(phase, "because", 7.0))
    transaction = facts.transaction(lambda: True)
    transaction.replace(layout.state_path("j"), codec.state_to(after), state.version)
    transaction.create(layout.checkpoint_path("j", 10), codec.checkpoint_to(committed))
    transaction.commit()
    assert control.job("j").status.phase is phase
    assert not control.job("j").placements
    assert references(session, NOBODY).manifests == {committed.manifest}
    with Housekeeping(session, blobs, lambda: NOBODY, lambda: True, **SOON):
        eventually(lambda: not blobs.exists(left.key), "what nothing needs is removed")
    verify(blobs, read_manifest(blobs, committed.manifest))


def test_nothing_is_removed_while_a_job_cannot_be_read(
    session: Session, blobs: Blobs, tmp_path: Path
) -> None:
    ControlPlane(session).submit(JobSpec("j", ("true",)))
    put_part(blobs, b"perhaps the job's")
    facts = Facts(session)
    path = layout.state_path("j")
    found = facts.read(path, fresh=True)
    assert found is not None
    transaction = facts.transaction(lambda: True)
    transaction.replace(path, b"not a state", found.version)
    transaction.commit()
    with pytest.raises(Corrupt):
        references(session, NOBODY)
    with Housekeeping(session, blobs, lambda: NOBODY, lambda: True, **SOON):
        time.sleep(0.5)  # pause: time for several sweeps
    assert len(keys(blobs)) == 1


def test_a_bundle_that_is_pushed_or_pinned_again_is_young_again(
    blobs: Blobs, tmp_path: Path
) -> None:
    """So the sweeper, which removes only what is old, cannot take it from the job to come."""
    import os

    folder = code(tmp_path / "code", "print(1)")
    bundle = push(blobs, folder)
    (path,) = (one for one in (tmp_path / "store").rglob(bundle.key.rpartition("/")[2]))

    def aged() -> float:
        os.utime(path, (1.0, 1.0))
        found = blobs.stat(bundle.key)
        assert found is not None
        return found.modified_s

    def now() -> float:
        found = blobs.stat(bundle.key)
        assert found is not None
        return found.modified_s

    assert aged() == 1.0
    push(blobs, folder)
    assert now() > 1.0
    assert aged() == 1.0
    assert renew(blobs, bundle.digest)
    assert now() > 1.0
    assert not renew(blobs, "sha256:" + "0" * 64)
