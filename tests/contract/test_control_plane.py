"""The leader's records in the coordination plane: fenced, upon what was read, nothing twice."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from holdfast.control.decide.commands import (
    BeginCheckpoint,
    CommitCheckpoint,
    Decision,
    DrainWorker,
    DropCheckpoint,
    MarkCheckpointUnreadable,
    RecoverCheckpoints,
    UnplaceWorker,
)
from holdfast.control.decide.facts import (
    Attempt,
    CheckpointRecovery,
    Exit,
    ExitKind,
    Failure,
    Intent,
    Phase,
    QueueQuota,
)
from holdfast.control.decide.spec import JobSpec, Resources
from holdfast.control.store import layout
from holdfast.control.store.codec import PLACEMENTS_PER_NODE
from holdfast.control.store.history import HISTORY_PAGE_ENTRIES, HISTORY_PAGES_KEPT
from holdfast.control.store.plane import ControlPlane
from holdfast.coordination import Session
from holdfast.wire.errors import BugError, Conflict, Fenced, Refused, Usage
from tests.contract.expiring import expire
from tests.contract.leading import SPEC, Leading, decided, place, status
from tests.contract.planes import Plane
from tests.waiting import eventually

Sessions = Callable[..., Session]


@pytest.fixture
def control(session: Session) -> ControlPlane:
    return ControlPlane(session)


@pytest.fixture
def leading(session: Session) -> Leading:
    return Leading(session)


def test_records_are_seen_by_everyone_and_by_the_next_leader(
    control: ControlPlane, leading: Leading, another: Sessions
) -> None:
    control.submit(SPEC)
    leading.ledger.read()
    view = leading.run_to_a_view()
    leading.write(status(Phase.RUNNING))
    control.ask_checkpoint("train")
    leading.ledger.read()
    attempt = Attempt(1, 10, 1, 6.0)
    leading.write(BeginCheckpoint("train", attempt))
    leading.write(CommitCheckpoint("train", attempt, {1: (), 2: ()}), manifest="m/10")
    failure = Failure(2, "ValueError", 7.0, 11)
    gone = UnplaceWorker("train", 2, Exit(ExitKind.ERROR, "ValueError"), failure)
    leading.write(gone, DrainWorker("train", 1, "enough"), place(3, "b"))
    job = leading.ledger.desired.jobs["train"]
    assert control.job("train") == job
    assert job.view == view
    assert [p.worker for p in job.placements] == [1, 3]
    assert (job.failures, job.attempt, job.checkpoint_asked) == ((failure,), None, False)
    assert (job.committed_step, job.checkpoints[0].term) == (10, leading.leadership.term)
    story = [(entry.what, entry.reason) for entry in decided(control)]
    assert story[0] == ("PlaceWorker", "because of PlaceWorker (and 1 more like it)")
    assert [what for what, _ in story[1:]] == [
        "WriteView",
        "SetStatus",
        "BeginCheckpoint",
        "CommitCheckpoint",
        "UnplaceWorker",
        "DrainWorker",
        "PlaceWorker",
    ]
    leading.leadership.resign()
    following = Leading(another(8))
    assert following.ledger.desired == leading.ledger.desired
    following.write(status(Phase.GROWING))
    assert control.job("train").status.phase is Phase.GROWING
    assert control.history("train")[-1].term == following.leadership.term


def test_words_that_no_process_can_be_given_are_refused_and_nothing_is_submitted(
    control: ControlPlane,
) -> None:
    for word in ("zero\0byte", "half a character \udc80"):
        with pytest.raises(Usage):
            control.submit(JobSpec("poison", ("python", word)))
    assert "poison" not in control.jobs()


def test_a_record_that_changes_nothing_writes_nothing(
    control: ControlPlane, leading: Leading
) -> None:
    control.submit(SPEC)
    leading.ledger.read()
    leading.run_to_a_view()
    before = control.history("train")
    leading.write(place(2), DrainWorker("train", 9, "gone long ago"))
    assert control.history("train") == before


def test_a_commit_exists_or_not_and_a_dropped_one_is_gone(
    control: ControlPlane, leading: Leading
) -> None:
    control.submit(SPEC)
    leading.ledger.read()
    leading.run_to_a_view()
    for number, step in ((1, 10), (2, 20), (3, 30)):
        attempt = Attempt(number, step, 1, 6.0)
        commit = CommitCheckpoint("train", attempt, {1: (), 2: ()})
        leading.write(BeginCheckpoint("train", attempt))
        with pytest.raises(BugError, match="after its manifest"):
            leading.write(commit)
        assert control.job("train").committed_step == step - 10
        leading.ledger.read()
        leading.write(commit, manifest=f"m/{step}")
        assert control.job("train").committed_step == step
    leading.write(DropCheckpoint("train", 10), MarkCheckpointUnreadable("train", 30))
    assert [c.step for c in control.job("train").checkpoints] == [20]
    with pytest.raises(Usage, match="step 20 is committed"):
        control.change_setting("train", "lr", "1", 20)
    with pytest.raises(Refused, match="no unreadable checkpoints"):
        control.begin_from_scratch("train")
    leading.write(MarkCheckpointUnreadable("train", 20, "a hole"))
    leading.write(*(UnplaceWorker("train", worker, None) for worker in (1, 2)))
    assert control.job("train").waits_for_recovery
    control.set_intent("train", Intent.RUN)
    assert control.job("train").recovery is CheckpointRecovery.AGAIN
    leading.ledger.read()
    leading.write(RecoverCheckpoints("train", CheckpointRecovery.AGAIN))
    found = control.job("train")
    assert ([c.manifest for c in found.checkpoints], found.unreadable) == (["m/20", "m/30"], ())
    assert found.recovery is CheckpointRecovery.NONE


def test_a_deposed_leaders_records_are_fenced(
    control: ControlPlane, leading: Leading, session: Session, another: Sessions
) -> None:
    control.submit(SPEC)
    leading.ledger.read()
    leading.run_to_a_view()
    attempt = Attempt(1, 10, 1, 6.0)
    leading.write(BeginCheckpoint("train", attempt))
    before = control.job("train")
    expire(session)
    following = Leading(another(8))
    for record, manifest in (
        (place(3), ""),
        (CommitCheckpoint("train", attempt, {1: (), 2: ()}), "m/10"),
    ):
        with pytest.raises(Fenced):
            leading.write(record, manifest=manifest)
    with pytest.raises(Fenced):
        leading.ledger.note("train", [Decision(place(3), "no")])
    assert control.job("train") == before
    following.write(CommitCheckpoint("train", attempt, {1: (), 2: ()}), manifest="m/10")
    assert control.job("train").checkpoints[-1].term == following.leadership.term


def test_a_change_under_the_leaders_feet_is_a_conflict_and_then_seen(
    control: ControlPlane, leading: Leading
) -> None:
    control.submit(SPEC)
    leading.ledger.read()
    leading.run_to_a_view()
    control.ask_checkpoint("train")
    leading.ledger.read()
    attempt = Attempt(1, 10, 1, 6.0)
    leading.write(BeginCheckpoint("train", attempt))
    control.set_intent("train", Intent.PAUSE)  # the commit would clear what was asked for
    commit = CommitCheckpoint("train", attempt, {1: (), 2: ()})
    with pytest.raises(Conflict):
        leading.write(commit, manifest="m/10")
    assert leading.ledger.refresh().jobs["train"].intent is Intent.PAUSE
    leading.write(commit, manifest="m/10")
    assert control.job("train").intent is Intent.PAUSE


def test_the_leader_is_woken_and_sees_what_users_did(
    control: ControlPlane, leading: Leading, another: Sessions, plane: Plane
) -> None:
    users = ControlPlane(another(8))

    def seen(what: Callable[[], bool], why: str) -> None:
        def look() -> bool:
            if leading.woken.wait(0.1):
                leading.woken.clear()
                leading.ledger.refresh()
            return what()

        eventually(look, why)

    ledger = leading.ledger
    users.submit(SPEC)
    seen(lambda: "train" in ledger.desired.jobs, "the job")
    users.set_intent("train", Intent.STOP)
    seen(lambda: ledger.desired.jobs["train"].intent is Intent.STOP, "the intent")
    users.change_setting("train", "lr", "1", 3)
    seen(lambda: bool(ledger.desired.jobs["train"].settings), "the setting")
    users.put_queue(QueueQuota("q", Resources()))
    seen(lambda: "q" in ledger.desired.queues, "the queue")
    users.put_queue(QueueQuota("q", Resources(2.0)))
    seen(lambda: ledger.desired.queues["q"].guaranteed.cpu == 2.0, "the queue's change")
    plane.disturb(plane.disturbances[0])
    users.drain_node("a")
    seen(lambda: ledger.desired.draining_nodes == {"a"}, "the machine")
    leading.write(status(Phase.STOPPED))
    users.remove("train")
    seen(lambda: not ledger.desired.jobs, "its removal")
    users.submit(replace(SPEC, lanes=2))
    seen(lambda: "train" in ledger.desired.jobs, "the new one of that name")
    assert ledger.desired.jobs["train"].spec.lanes == 2
    leading.write(place(1))
    assert [entry.what for entry in decided(users)] == ["PlaceWorker"]


def test_an_ended_job_is_left_alone_and_removed_as_a_whole(
    control: ControlPlane, leading: Leading, session: Session
) -> None:
    control.submit(SPEC)
    leading.ledger.read()
    leading.run_to_a_view()
    attempt = Attempt(1, 10, 1, 6.0)
    leading.write(BeginCheckpoint("train", attempt))
    leading.write(CommitCheckpoint("train", attempt, {1: (), 2: ()}), manifest="m/10")
    leading.write(*(UnplaceWorker("train", worker, Exit(ExitKind.DONE)) for worker in (1, 2)))
    leading.write(status(Phase.SUCCEEDED))
    acts: list[Callable[[], object]] = [
        lambda: control.scale("train", 1),
        lambda: control.ask_checkpoint("train"),
    ]
    for act in acts:
        with pytest.raises(Refused, match="has succeeded"):
            act()
    control.remove("train")
    assert session.nodes.children(layout.JOBS) == []
    with pytest.raises(Conflict):
        leading.write(status(Phase.FAILED))
    eventually(lambda: leading.ledger.refresh().jobs == {}, "it is gone")


def test_a_job_that_cannot_be_read_is_named_and_keeps_nobody_else_from_theirs(
    control: ControlPlane, leading: Leading, session: Session
) -> None:
    control.submit(SPEC)
    control.submit(replace(SPEC, name="other"))
    path = layout.state_path("train")
    session.nodes.delete(path)
    session.nodes.create(path, b'{"format":99}')
    desired = leading.ledger.read()
    assert set(desired.jobs) == {"other"}
    assert path in str(leading.ledger.unreadable["train"])


def test_the_history_keeps_the_newest_and_is_bounded(
    control: ControlPlane, leading: Leading, session: Session
) -> None:
    control.submit(SPEC)
    leading.ledger.read()
    total = HISTORY_PAGE_ENTRIES * (HISTORY_PAGES_KEPT + 1) + 3
    for start in range(0, total, 200):
        some = range(start, min(start + 200, total))
        record = status(Phase.QUEUED)
        leading.ledger.note("train", [Decision(record, f"reason {n}") for n in some])
    leading.ledger.note("train", [Decision(status(Phase.QUEUED), "long " * 10_000)])
    kept = decided(control)
    assert len(session.nodes.children(layout.history_path("train"))) == HISTORY_PAGES_KEPT
    assert [entry.reason for entry in kept[:-1]] == [
        f"reason {n}" for n in range(total - len(kept) + 1, total)
    ]
    assert len(kept) > HISTORY_PAGE_ENTRIES * (HISTORY_PAGES_KEPT - 2)
    assert len(kept[-1].reason) < 5_000


def test_a_thousand_workers_are_placed_and_gone_in_few_transactions(
    control: ControlPlane, leading: Leading, session: Session, another: Sessions
) -> None:
    control.submit(replace(SPEC, lanes=1_000, workers_max=1_000))
    leading.ledger.read()
    decisions = [Decision(place(n, f"node-{n % 50}"), f"worker {n}") for n in range(1, 1_001)]
    calls = 0
    while decisions:
        decisions = decisions[leading.ledger.carry_out("train", decisions) :]
        calls += 1
    assert calls <= 4
    assert len(control.job("train").placements) == 1_000
    left: list[Decision] = [
        Decision(UnplaceWorker("train", n, Exit(ExitKind.LEFT)), "x" * 4_000)
        for n in range(1, 1_001)
    ]
    while left:
        left = left[leading.ledger.carry_out("train", left) :]
    assert control.job("train").placements == ()
    assert session.nodes.children(layout.placements_path("train")) == []
    assert control.job("train").next_worker == 1_001 > PLACEMENTS_PER_NODE


def test_a_job_that_was_removed_and_submitted_again_between_two_looks_is_another_one(
    control: ControlPlane, leading: Leading
) -> None:
    control.submit(SPEC)
    leading.ledger.read()
    leading.run_to_a_view()
    leading.write(*(UnplaceWorker("train", worker, Exit(ExitKind.DONE)) for worker in (1, 2)))
    leading.write(status(Phase.SUCCEEDED))
    control.remove("train")
    again = control.submit(replace(SPEC, lanes=2))
    with pytest.raises(Conflict):
        leading.ledger.note("train", [Decision(status(Phase.FAILED), "too late")])
    eventually(lambda: leading.ledger.refresh().jobs.get("train") == again, "it is seen")
    leading.write(place(again.next_worker))
    assert [entry.what for entry in decided(control)] == ["PlaceWorker"]
