"""Checkpoints: when one is due, at which step, and when it is committed or given up."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from holdfast.control.decide.checkpoints import (
    CHECKPOINT_LEAD_STEPS,
    CHECKPOINT_LEAD_STEPS_MAX,
    begin,
    conclude,
    drops,
    due,
    lead,
    mark_unreadable,
    shares,
)
from holdfast.control.decide.commands import (
    AbandonCheckpoint,
    BeginCheckpoint,
    CommitCheckpoint,
    Decision,
    DrainWorker,
    MarkCheckpointUnreadable,
    PlaceWorker,
    RecoverCheckpoints,
    SetStatus,
    TakeShare,
    WriteView,
)
from holdfast.control.decide.facts import (
    Attempt,
    Checkpoint,
    CheckpointRecovery,
    DesiredState,
    JobRecord,
    NodeFacts,
    ObservedState,
    Part,
    Phase,
    Placement,
    Unreadable,
    View,
    WorkerFacts,
    WorkerPhase,
)
from holdfast.control.decide.observed import ObservedJob, Reports, by_job, observe_job
from holdfast.control.decide.plans import Add, JobPlan, SchedulePlan
from holdfast.control.decide.reconcile import reconcile, reconcile_job
from holdfast.control.decide.records import apply_record
from holdfast.control.decide.spec import CheckpointPolicy, Resources
from holdfast.wire.limits import CHECKPOINT_ATTEMPT_S, CHECKPOINT_RETRY_S, VIEW_WAIT_S
from tests.unit.control.pair import pair

ATTEMPT = Attempt(4, 20, 7, 100.0)
PART = Part("key", 1, "digest")
DURABLE = {4: (PART,)}


def with_policy(policy: CheckpointPolicy, **changes: Any) -> JobRecord:
    return pair(spec=replace(pair().spec, checkpoint=policy), **changes)


def worker(number: int, **changes: object) -> WorkerFacts:
    made = WorkerFacts("train", number, WorkerPhase.RUNNING, 7, 15)
    return replace(made, **changes)  # type: ignore[arg-type]


def observed_job(job: JobRecord, *facts: WorkerFacts) -> tuple[ObservedJob, Reports, ObservedState]:
    observed = ObservedState({"n1": NodeFacts("n1", Resources(cpu=4.0), facts)})
    reports = by_job(observed).get("train", {})
    return observe_job(job, reports, observed), reports, observed


def concluded(job: JobRecord, *facts: WorkerFacts, now_s: float = 101.0) -> Decision | None:
    seen, reports, _ = observed_job(job, *facts)
    return conclude(seen, reports, now_s)


@pytest.mark.parametrize(
    ("policy", "now_s", "is_due"),
    [
        (CheckpointPolicy(None, None), 1e9, False),
        (CheckpointPolicy(6, None), 100.0, False),
        (CheckpointPolicy(5, None), 100.0, True),
        (CheckpointPolicy(None, 20.0), 109.9, False),
        (CheckpointPolicy(None, 20.0), 110.0, True),
        (CheckpointPolicy(5, 1e9), 100.0, True),
    ],
)
def test_a_checkpoint_is_due_by_steps_or_by_time(
    policy: CheckpointPolicy, now_s: float, is_due: bool
) -> None:
    seen, _, _ = observed_job(with_policy(policy), worker(1), worker(2))
    assert bool(due(seen, False, now_s)) is is_due


def test_a_checkpoint_is_due_when_the_user_asks_or_all_are_about_to_leave() -> None:
    seen, _, _ = observed_job(pair(checkpoint_asked=True), worker(1), worker(2))
    assert due(seen, False, 100.0) == "its user asked"
    seen, _, _ = observed_job(pair(), worker(1), worker(2))
    assert due(seen, True, 100.0) == "the workers are about to leave"


def test_nothing_is_due_when_the_newest_checkpoint_says_it_all() -> None:
    job = pair(checkpoint_asked=True, checkpoints=(Checkpoint(15, "m", 1, 90.0),))
    seen, _, _ = observed_job(job, worker(1), worker(2))
    assert due(seen, True, 1e9) == ""


def test_an_attempt_names_a_step_ahead_of_the_most_advanced_member() -> None:
    seen, _, _ = observed_job(pair(checkpoint_asked=True), worker(1, step=15), worker(2, step=16))
    decision = begin(seen, False, 1_000.0)
    assert decision is not None
    assert decision.command == BeginCheckpoint(
        "train", Attempt(5, 16 + CHECKPOINT_LEAD_STEPS, 7, 1_000.0)
    )


def test_a_fast_job_gets_a_longer_lead_and_each_missed_attempt_a_longer_one() -> None:
    fast, _, _ = observed_job(pair(), worker(1, step=10_010), worker(2, step=10_010))
    assert lead(fast, 100.0) == CHECKPOINT_LEAD_STEPS + 500  # a thousand steps a second
    leads = [
        lead(observed_job(pair(attempts_missed=missed), worker(1), worker(2))[0], 1_000.0)
        for missed in range(40)
    ]
    assert leads[:3] == [2, 8, 32]
    assert leads == sorted(leads) and leads[-1] == CHECKPOINT_LEAD_STEPS_MAX


@pytest.mark.parametrize(
    ("changes", "facts"),
    [
        ({"attempt": ATTEMPT}, [worker(1), worker(2)]),
        ({"view": None}, [worker(1), worker(2)]),
        ({}, [worker(1), worker(2, view=6)]),
        ({}, [worker(1), worker(2, step=None)]),
        ({}, [worker(1)]),
        ({}, [worker(1), worker(2, phase=WorkerPhase.GONE)]),
        ({"abandoned_s": 100.5}, [worker(1), worker(2)]),
    ],
)
def test_no_attempt_begins_unless_every_member_can_take_part(
    changes: dict[str, Any], facts: list[WorkerFacts]
) -> None:
    seen, _, _ = observed_job(pair(checkpoint_asked=True, **changes), *facts)
    assert begin(seen, False, 101.0) is None


def test_after_a_given_up_attempt_there_is_a_pause() -> None:
    job = pair(checkpoint_asked=True, abandoned_s=100.0)
    seen, _, _ = observed_job(job, worker(1), worker(2))
    assert begin(seen, False, 100.0 + CHECKPOINT_RETRY_S) is not None


def test_each_member_is_told_its_share_until_it_has_reported_it() -> None:
    job = pair(attempt=ATTEMPT)
    seen, _, _ = observed_job(job, worker(1, parts=DURABLE), worker(2))
    assert [decision.command for decision in shares(seen)] == [
        TakeShare("n1", "train", 2, ATTEMPT, 1, 2)
    ]


def test_an_attempt_is_committed_when_all_shares_are_durable() -> None:
    job = pair(attempt=ATTEMPT)
    assert concluded(job, worker(1, parts=DURABLE), worker(2)) is None
    decision = concluded(job, worker(1, parts=DURABLE), worker(2, parts={4: ()}))
    assert decision is not None
    assert decision.command == CommitCheckpoint("train", ATTEMPT, {1: (PART,), 2: ()})


def test_parts_of_another_attempt_do_not_count() -> None:
    job = pair(attempt=ATTEMPT)
    assert concluded(job, worker(1, parts=DURABLE), worker(2, parts={3: (PART,)})) is None


def test_an_attempt_is_committed_even_if_all_members_died_since() -> None:
    dead = [worker(n, parts=DURABLE, phase=WorkerPhase.GONE) for n in (1, 2)]
    decision = concluded(pair(attempt=ATTEMPT), *dead)
    assert decision is not None and isinstance(decision.command, CommitCheckpoint)


def test_the_commit_goes_alone_so_that_no_view_starts_from_what_may_fail() -> None:
    job = pair(attempt=ATTEMPT, placements=(*pair().placements, Placement(3, "n1")))
    job = replace(job, next_worker=4)
    dead = [worker(n, parts=DURABLE, phase=WorkerPhase.GONE) for n in (1, 2)]
    fresh = worker(3, phase=WorkerPhase.READY, view=0, step=None)
    _, _, observed = observed_job(job, *dead, fresh)
    names = [
        type(decision.command).__name__
        for decision in reconcile(DesiredState({"train": job}), observed, 101.0, SchedulePlan())
    ]
    assert "CommitCheckpoint" in names and "WriteView" not in names


def test_survivors_do_not_wait_for_ever_for_a_commit_that_fails() -> None:
    job = pair(attempt=ATTEMPT)
    facts = worker(1, parts=DURABLE), worker(2, parts=DURABLE, phase=WorkerPhase.GONE)
    _, _, observed = observed_job(job, *facts)

    def names(now_s: float) -> list[str]:
        decisions = reconcile(DesiredState({"train": job}), observed, now_s, SchedulePlan())
        return [type(decision.command).__name__ for decision in decisions]

    assert "CommitCheckpoint" in names(101.0)
    late = names(100.0 + VIEW_WAIT_S)
    assert "CommitCheckpoint" not in late
    assert late.index("AbandonCheckpoint") < late.index("WriteView")


@pytest.mark.parametrize(
    ("changes", "facts", "now_s", "missed"),
    [
        ({"view": View(8, {1: (0,), 2: (1,)})}, [worker(1), worker(2)], 101.0, False),
        ({}, [worker(1), worker(2, phase=WorkerPhase.GONE)], 101.0, False),
        ({}, [worker(1), worker(2, missed=frozenset({4}))], 101.0, True),
        ({}, [worker(1), worker(2)], 100.0 + CHECKPOINT_ATTEMPT_S, False),
    ],
    ids=["view changed", "member gone", "step passed", "too long"],
)
def test_an_attempt_is_given_up(
    changes: dict[str, Any], facts: list[WorkerFacts], now_s: float, missed: bool
) -> None:
    decision = concluded(pair(attempt=ATTEMPT, **changes), *facts, now_s=now_s)
    assert decision is not None
    assert decision.command == AbandonCheckpoint("train", ATTEMPT, missed)
    assert "given up" in decision.reason


def test_an_attempt_of_an_older_view_is_not_committed_though_its_parts_are_all_there() -> None:
    job = pair(attempt=ATTEMPT, view=View(8, {1: (0,), 2: (1,)}))
    decision = concluded(job, worker(1, parts=DURABLE), worker(2, parts=DURABLE))
    assert decision is not None and isinstance(decision.command, AbandonCheckpoint)


def steps_dropped(job: JobRecord, *facts: WorkerFacts) -> list[int]:
    seen, _, _ = observed_job(job, *facts)
    return [decision.command.step for decision in drops(seen)]  # type: ignore[union-attr]


def test_old_checkpoints_are_dropped_but_not_the_newest() -> None:
    committed = tuple(Checkpoint(step, "m", 1, 1.0) for step in (1, 2, 3, 4))
    everyone = worker(1), worker(2)
    assert steps_dropped(pair(checkpoints=committed), *everyone) == [1, 2]
    none = CheckpointPolicy(keep=0)
    assert steps_dropped(with_policy(none, checkpoints=committed), *everyone) == [1, 2, 3]


def test_a_checkpoint_is_not_dropped_while_somebody_may_be_reading_it() -> None:
    committed = tuple(Checkpoint(step, "m", 1, 1.0) for step in (1, 2, 3, 4))
    job = pair(checkpoints=committed, view=View(7, {1: (0,), 2: (1,)}, restore_step=2))
    assert steps_dropped(job, worker(1), worker(2, step=None)) == [1]
    assert steps_dropped(job, worker(1), worker(2)) == [1, 2]


def test_a_checkpoint_that_nobody_can_read_is_condemned() -> None:
    view = View(7, {1: (0,), 2: (1,)}, restore_step=10)
    job = pair(view=view, checkpoints=(Checkpoint(5, "m", 1, 1.0), Checkpoint(10, "m", 1, 2.0)))
    lost = frozenset({10})
    bad = [worker(n, step=None, unreadable=lost, unreadable_why="a hole") for n in (1, 2)]
    decision = mark_unreadable(observed_job(job, *bad)[0])
    assert decision is not None
    assert decision.command == MarkCheckpointUnreadable("train", 10, "a hole")
    assert "cannot be read back: a hole; from step 5 instead" in decision.reason


def stranded(**changes: Any) -> JobRecord:
    """A job of two workers, none of whose two checkpoints could be read."""
    lost = (
        Unreadable(Checkpoint(5, "m5", 1, 1.0), "too short"),
        Unreadable(Checkpoint(10, "m10", 1, 2.0), "there is no part 3"),
    )
    view = View(7, {1: (0,), 2: (1,)}, restore_step=5)
    state: dict[str, Any] = {"view": view, "checkpoints": (), "unreadable": lost, **changes}
    return pair(**state)


def commands(job: JobRecord, *facts: WorkerFacts) -> list[object]:
    plan = JobPlan(add=(Add("n1", "room"),))
    _, reports, observed = observed_job(job, *facts)
    return [one.command for one in reconcile_job(job, reports, observed, 100.0, plan)]


def test_a_job_none_of_whose_checkpoints_can_be_read_does_not_begin_at_step_0() -> None:
    both = [worker(n, step=None, unreadable=frozenset({5, 10})) for n in (1, 2)]
    found = commands(stranded(), *both)
    assert not any(isinstance(one, WriteView | PlaceWorker) for one in found)
    assert {one.worker for one in found if isinstance(one, DrainWorker)} == {1, 2}


def test_a_stranded_job_waits_and_says_why_and_what_its_user_can_do() -> None:
    [status] = commands(stranded(placements=()))
    assert isinstance(status, SetStatus) and status.status.phase is Phase.PAUSED
    assert status.status.reason == (
        "all 2 committed checkpoints are unreadable (step 10: there is no part 3); `holdfast resume"
        " train` tries again, `holdfast resume train --from-scratch` begins at step 0"
    )


def test_a_stranded_job_tries_again_or_begins_anew_when_its_workers_are_gone() -> None:
    for recovery, steps in ((CheckpointRecovery.AGAIN, [5, 10]), (CheckpointRecovery.SCRATCH, [])):
        asked = stranded(recovery=recovery)
        both = [worker(n, step=None, unreadable=frozenset({5, 10})) for n in (1, 2)]
        assert not any(isinstance(one, RecoverCheckpoints) for one in commands(asked, *both))
        [record] = commands(replace(asked, placements=()))
        assert isinstance(record, RecoverCheckpoints)
        after = apply_record(replace(asked, placements=()), record, now_s=1.0)
        assert [one.step for one in after.checkpoints] == steps
        assert not after.unreadable and after.recovery is CheckpointRecovery.NONE
        assert any(isinstance(one, PlaceWorker) for one in commands(after))


def test_a_commit_forgets_what_could_not_be_read_before_it() -> None:
    kept = (Checkpoint(5, "m5", 1, 1.0),)
    job = stranded(checkpoints=kept, attempt=ATTEMPT)
    parts = {1: (PART,), 2: (PART,)}
    after = apply_record(job, CommitCheckpoint("train", ATTEMPT, parts), now_s=1.0, manifest="m")
    assert not after.unreadable


def test_a_checkpoint_that_one_could_read_is_not_condemned() -> None:
    job = pair(view=View(7, {1: (0,), 2: (1,)}, restore_step=10))
    bad = worker(1, step=None, unreadable=frozenset({10}))
    for other in (worker(2, step=10), worker(2, step=None)):
        assert mark_unreadable(observed_job(job, bad, other)[0]) is None
