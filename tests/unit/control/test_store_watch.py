"""A blob store that is away is named, with since when, in what people read of a job."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from holdfast.control.decide.facts import Checkpoint, DesiredState, NodeFacts, ObservedState
from holdfast.control.decide.incremental import Reconciler
from holdfast.control.decide.plans import SchedulePlan
from holdfast.control.decide.spec import Resources
from holdfast.control.shell.store_watch import StoreWatch
from holdfast.storage import open_store
from tests.unit.control.test_lifecycle import job_with, running

KEY = "manifests/train/10.json"
TRAIN = job_with(checkpoints=(Checkpoint(10, KEY, 1, 5.0),))


def test_a_store_whose_folder_is_not_mounted_is_away_since_it_was_first_missed(
    tmp_path: Path,
) -> None:
    store, woken, now_s = tmp_path / "store", [], [3600.0]
    blobs = open_store(f"file:{store}")
    blobs.put(KEY, b"{}")
    watch = StoreWatch(blobs, lambda: woken.append(1), wall_s=lambda: now_s[0])

    def look() -> str:
        watch.expects(DesiredState({"train": TRAIN}))
        watch.look()
        now_s[0] += 5.0
        return watch.trouble

    assert look() == ""
    store.rename(tmp_path / "elsewhere")
    store.mkdir()
    assert look() == "", "what was looked for may just have been removed"
    said = look()
    assert said == f"the store {blobs.address} is away since 01:00:05 UTC ({KEY} is not there)"
    assert look() == said, "the same sentence as long as it lasts"
    store.rmdir()
    (tmp_path / "elsewhere").rename(store)
    assert look() == ""
    assert len(woken) == 2


def test_one_that_does_not_lead_does_not_ask_the_store(tmp_path: Path) -> None:
    watch = StoreWatch(open_store(f"file:{tmp_path / 'none'}"), lambda: None)
    for _ in range(3):
        watch.look()
    assert watch.trouble == ""


def test_why_a_job_is_told_that_the_store_is_away_and_that_it_is_back() -> None:
    nodes = {"n1": NodeFacts("n1", Resources(cpu=4.0), (running(1), running(2)))}
    reconciler, job = Reconciler(), TRAIN

    def told(store: str) -> list[str]:
        desired = DesiredState({"train": job})
        observed = ObservedState(nodes, store=store)
        return [
            one.reason for one in reconciler.reconcile(desired, observed, 10.0, SchedulePlan({}))
        ]

    assert told("") == []
    away = "the store s3://b is away since 01:00:05 UTC (no answer)"
    assert told(away) == [f"on 2 workers; {away}"]
    job = replace(job, status=replace(job.status, reason=f"on 2 workers; {away}"))
    assert told(away) == []
    assert told("") == ["on 2 workers"]
