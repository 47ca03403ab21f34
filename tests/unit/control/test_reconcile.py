"""Reconcile: single points of the protocol, by hand-made snapshots."""

from __future__ import annotations

from dataclasses import replace

import pytest

from holdfast.control.decide.commands import (
    Decision,
    Forget,
    GiveSettings,
    GiveView,
    Order,
    PlaceWorker,
    SetStatus,
    StartWorker,
    StopWorker,
    UnplaceWorker,
    WriteView,
)
from holdfast.control.decide.facts import (
    Attempt,
    Checkpoint,
    DesiredState,
    Exit,
    ExitKind,
    Failure,
    JobRecord,
    NodeFacts,
    ObservedState,
    Phase,
    Placement,
    RecordedStatus,
    Setting,
    View,
    WorkerFacts,
    WorkerPhase,
)
from holdfast.control.decide.membership import NOTICE_S
from holdfast.control.decide.plans import Add, JobPlan, Leave, NodeCapacity, SchedulePlan
from holdfast.control.decide.reconcile import ORPHAN_NOTICE_S, node_capacities, reconcile
from holdfast.control.decide.spec import JobSpec, Resources
from holdfast.wire.limits import GATHER_S, VIEW_WAIT_S

CAPACITY = Resources(cpu=4.0)
NOW_S = 1_000.0


def job_with(**changes: object) -> JobRecord:
    """Two workers in view 3, all well."""
    spec = JobSpec("train", ("python", "t.py"), bundle="b1", lanes=4, workers_min=2, workers_max=4)
    made = JobRecord(
        spec,
        NOW_S - 10.0,
        RecordedStatus(Phase.RUNNING, "on 2 workers", 1.0),
        next_worker=3,
        placements=(Placement(1, "n1"), Placement(2, "n2")),
        view=View(3, {1: (0, 1), 2: (2, 3)}),
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def worker(number: int, **changes: object) -> WorkerFacts:
    made = WorkerFacts("train", number, WorkerPhase.RUNNING, 3, 7)
    return replace(made, **changes)  # type: ignore[arg-type]


def ready(number: int) -> WorkerFacts:
    return WorkerFacts("train", number, WorkerPhase.READY)


def gone(number: int, kind: ExitKind = ExitKind.SIGNAL, detail: str = "") -> WorkerFacts:
    return worker(number, phase=WorkerPhase.GONE, exit=Exit(kind, detail))


def observe(**nodes: list[WorkerFacts]) -> ObservedState:
    return ObservedState({n: NodeFacts(n, CAPACITY, tuple(facts)) for n, facts in nodes.items()})


def decide(
    job: JobRecord, observed: ObservedState, plan: JobPlan | None = None, now_s: float = NOW_S
) -> list[Decision]:
    whole = SchedulePlan({job.name: plan} if plan else {})
    return reconcile(DesiredState({job.name: job}), observed, now_s, whole)


def commands(decisions: list[Decision], *kinds: type) -> list[object]:
    return [d.command for d in decisions if isinstance(d.command, kinds)]


WELL = {"n1": [worker(1)], "n2": [worker(2)]}


def test_when_all_is_as_wanted_nothing_is_decided() -> None:
    assert decide(job_with(), observe(**WELL)) == []


def test_placing_comes_first_and_takes_the_next_numbers() -> None:
    plan = JobPlan(add=(Add("n1", "room"), Add("n2", "room")))
    decisions = decide(job_with(), observe(**WELL), plan)
    assert commands(decisions, PlaceWorker) == [
        PlaceWorker("train", Placement(3, "n1", since_s=NOW_S)),
        PlaceWorker("train", Placement(4, "n2", since_s=NOW_S)),
    ]
    assert commands(decisions, StartWorker) == []


def test_a_placed_worker_that_its_node_does_not_report_is_started() -> None:
    job = job_with(placements=(*job_with().placements, Placement(3, "n1")), next_worker=4)
    (order,) = commands(decide(job, observe(**WELL)), StartWorker)
    assert isinstance(order, StartWorker)
    assert (order.node, order.worker, order.bundle) == ("n1", 3, "b1")
    assert order.environment["HOLDFAST_LANES"] == "4"


def test_a_leaving_worker_that_was_never_reported_is_stopped_and_not_started() -> None:
    leaving = Placement(3, "n1", draining=True)
    job = job_with(placements=(*job_with().placements, leaving), next_worker=4)
    decisions = decide(job, observe(**WELL))
    assert commands(decisions, StartWorker, StopWorker) == [StopWorker("n1", "train", 3, NOTICE_S)]


def test_nothing_is_placed_on_a_node_that_is_not_there() -> None:
    plan = JobPlan(add=(Add("n9", "room"),))
    assert commands(decide(job_with(), observe(**WELL), plan), PlaceWorker) == []


def test_nothing_is_placed_during_the_pause_after_a_failure() -> None:
    job = job_with(failures=(Failure(0, "x", NOW_S - 0.5),))
    plan = JobPlan(add=(Add("n1", "room"),))
    assert commands(decide(job, observe(**WELL), plan), PlaceWorker) == []
    assert commands(decide(job, observe(**WELL), plan, NOW_S + 1.0), PlaceWorker) != []


def test_an_end_is_put_on_record_and_forgotten_only_then() -> None:
    seen = observe(n1=[worker(1)], n2=[gone(2)])
    assert commands(decide(job_with(), seen), UnplaceWorker, Forget) == [
        UnplaceWorker("train", 2, Exit(ExitKind.SIGNAL))
    ]
    after = job_with(placements=(Placement(1, "n1"),))
    assert commands(decide(after, seen), UnplaceWorker, Forget) == [Forget("n2", "train", 2)]


def test_a_worker_on_a_node_that_is_gone_is_gone() -> None:
    (record,) = commands(decide(job_with(), observe(n1=[worker(1)])), UnplaceWorker)
    assert isinstance(record, UnplaceWorker)
    assert record.worker == 2 and record.exit is not None
    assert record.exit.kind is ExitKind.LOST and record.failure is None


def test_nothing_is_decided_about_a_node_that_has_not_been_heard() -> None:
    silent = ObservedState({"n1": NodeFacts("n1", CAPACITY, (worker(1),))}, frozenset({"n2"}))
    plan = JobPlan(drain=(Leave(2, "x"),))
    assert decide(job_with(), silent, plan) == []


def test_only_the_first_failure_of_a_round_counts() -> None:
    seen = observe(n1=[gone(1, ExitKind.ERROR, "boom")], n2=[gone(2, ExitKind.ERROR, "boom")])
    records = commands(decide(job_with(), seen), UnplaceWorker)
    assert [record.failure for record in records] == [  # type: ignore[attr-defined]
        Failure(1, "boom", NOW_S, 7),
        None,
    ]


def test_an_orphan_is_stopped_and_then_forgotten() -> None:
    job = job_with(placements=(Placement(1, "n1"),), view=View(3, {1: (0, 1, 2, 3)}))
    alive, dead = observe(**WELL), observe(n1=[worker(1)], n2=[gone(2)])
    assert commands(decide(job, alive), Order) == [StopWorker("n2", "train", 2, ORPHAN_NOTICE_S)]  # type: ignore[arg-type]
    assert commands(decide(job, dead), Order) == [Forget("n2", "train", 2)]  # type: ignore[arg-type]


def test_a_worker_of_a_removed_job_is_an_orphan() -> None:
    decisions = reconcile(DesiredState(), observe(n1=[worker(1)]), NOW_S, SchedulePlan())
    assert [d.command for d in decisions] == [StopWorker("n1", "train", 1, ORPHAN_NOTICE_S)]


def test_a_worker_whose_number_was_not_given_yet_is_left_alone() -> None:
    """The report is newer than what was read of the desired state."""
    assert decide(job_with(), observe(n1=[worker(1), ready(3)], n2=[worker(2)])) == []


def test_a_member_that_is_gone_is_left_out_at_once_and_on_record_before() -> None:
    decisions = decide(job_with(), observe(n1=[worker(1)], n2=[gone(2)]))
    kinds = [type(decision.command) for decision in decisions]
    assert kinds.index(UnplaceWorker) < kinds.index(WriteView)
    (record,) = commands(decisions, WriteView)
    assert record == WriteView("train", View(4, {1: (0, 1, 2, 3)}))


def test_survivors_go_on_below_the_minimum() -> None:
    seen = observe(n1=[worker(1)], n2=[gone(2)])
    assert commands(decide(job_with(), seen), WriteView) != []
    after = job_with(placements=(Placement(1, "n1"),), view=View(4, {1: (0, 1, 2, 3)}))
    (record,) = commands(decide(after, observe(n1=[worker(1, view=4)])), SetStatus)
    assert isinstance(record, SetStatus)
    assert "fewer than the 2" in record.status.reason


def joining(**changes: object) -> JobRecord:
    placements = (*job_with().placements, Placement(3, "n1", since_s=NOW_S - 60.0))
    return job_with(placements=placements, next_worker=4, **changes)


def test_a_worker_that_is_ready_joins() -> None:
    seen = observe(n1=[worker(1), ready(3)], n2=[worker(2)])
    (record,) = commands(decide(joining(), seen), WriteView)
    assert isinstance(record, WriteView)
    assert set(record.view.lanes) == {1, 2, 3} and record.view.restore_step is None


def test_a_joiner_waits_a_moment_for_those_that_were_placed_with_it() -> None:
    job = joining()
    job = replace(
        job, placements=(*job.placements, Placement(4, "n2", since_s=NOW_S)), next_worker=5
    )
    starting = WorkerFacts("train", 4, WorkerPhase.STARTING)
    seen = observe(n1=[worker(1), ready(3)], n2=[worker(2), starting])
    assert commands(decide(job, seen), WriteView) == []
    assert commands(decide(job, seen, now_s=NOW_S + GATHER_S), WriteView) != []


def test_a_joiner_waits_for_a_checkpoint_under_way_but_not_for_ever() -> None:
    job = joining(attempt=Attempt(1, 20, 3, NOW_S), attempts=1)
    seen = observe(n1=[worker(1), ready(3)], n2=[worker(2)])
    assert commands(decide(job, seen), WriteView) == []
    assert commands(decide(job, seen, now_s=NOW_S + VIEW_WAIT_S), WriteView) != []


def fresh(*placed: Placement, **changes: object) -> JobRecord:
    return job_with(placements=placed, view=None, **changes)


def test_the_first_view_waits_for_the_minimum() -> None:
    job = fresh(Placement(1, "n1"), Placement(2, "n2"))
    starting = WorkerFacts("train", 2, WorkerPhase.STARTING)
    assert commands(decide(job, observe(n1=[ready(1)], n2=[starting])), WriteView) == []
    (record,) = commands(decide(job, observe(n1=[ready(1)], n2=[ready(2)])), WriteView)
    assert record == WriteView("train", View(1, {1: (0, 1), 2: (2, 3)}, restore_step=0))


def test_when_nobody_holds_the_state_the_last_commit_is_where_to_start() -> None:
    job = job_with(
        placements=(Placement(3, "n1"), Placement(4, "n2")),
        next_worker=5,
        checkpoints=(Checkpoint(5, "m", 1, NOW_S - 9.0),),
    )
    (record,) = commands(decide(job, observe(n1=[ready(3)], n2=[ready(4)])), WriteView)
    assert record == WriteView("train", View(4, {3: (0, 1), 4: (2, 3)}, 5, "m"))


def test_before_a_new_start_whoever_is_leaving_is_gone() -> None:
    """It might hold the state, though that was never reported."""
    job = job_with(
        placements=(Placement(2, "n2", draining=True), Placement(3, "n1"), Placement(4, "n1")),
        view=View(3, {1: (0, 1, 2, 3)}),
        next_worker=5,
    )
    leaving = worker(2, step=None)
    seen = observe(n1=[ready(3), ready(4)], n2=[leaving])
    assert commands(decide(job, seen), WriteView) == []


def draining(**changes: object) -> JobRecord:
    placements = (Placement(1, "n1"), Placement(2, "n2", draining=True))
    return job_with(placements=placements, **changes)


def test_a_leaving_member_is_left_out_of_the_next_view() -> None:
    (record,) = commands(decide(draining(), observe(**WELL)), WriteView)
    assert record == WriteView("train", View(4, {1: (0, 1, 2, 3)}))


def test_a_leaving_member_stays_until_somebody_who_stays_holds_the_state() -> None:
    seen = observe(n1=[ready(1)], n2=[worker(2)])
    job = draining(view=View(3, {2: (0, 1, 2, 3)}))
    (record,) = commands(decide(job, seen), WriteView)
    assert isinstance(record, WriteView)
    assert set(record.view.lanes) == {1, 2} and record.view.restore_step is None


def test_a_leaver_comes_back_into_the_view_if_it_alone_holds_the_state() -> None:
    job = draining(view=View(4, {1: (0, 1, 2, 3)}), next_worker=4)
    job = replace(job, placements=(*job.placements, Placement(3, "n1")))
    seen = observe(n1=[gone(1), ready(3)], n2=[worker(2)])
    (record,) = commands(decide(job, seen), WriteView)
    assert isinstance(record, WriteView)
    assert set(record.view.lanes) == {2, 3} and record.view.restore_step is None


def test_a_leaver_is_told_the_view_and_stopped_only_when_all_others_have_adopted_it() -> None:
    job = draining(view=View(4, {1: (0, 1, 2, 3)}))
    orders = commands(decide(job, observe(**WELL)), GiveView, StopWorker)
    assert [type(order) for order in orders] == [GiveView, GiveView]
    adopted = observe(n1=[worker(1, view=4)], n2=[worker(2)])
    assert commands(decide(job, adopted), GiveView, StopWorker) == [
        StopWorker("n2", "train", 2, NOTICE_S)
    ]


def test_a_view_is_given_until_it_is_adopted() -> None:
    job = job_with(view=View(4, {1: (0, 1), 2: (2, 3)}))
    seen = observe(n1=[worker(1, view=4)], n2=[worker(2, view=2)])
    assert commands(decide(job, seen), GiveView) == [GiveView("n2", "train", 2, job.view)]  # type: ignore[arg-type]


def test_a_member_whose_agent_has_just_come_back_stays_a_member() -> None:
    starting = WorkerFacts("train", 2, WorkerPhase.STARTING)
    assert commands(decide(job_with(), observe(n1=[worker(1)], n2=[starting])), WriteView) == []


def test_a_worker_is_given_the_silence_of_its_job() -> None:
    spec = replace(job_with().spec, silence_s=90.0)
    job = job_with(spec=spec, placements=(*job_with().placements, Placement(3, "n1")))
    (order,) = commands(decide(replace(job, next_worker=4), observe(**WELL)), StartWorker)
    assert isinstance(order, StartWorker)
    assert order.silence_s == 90.0


def with_settings(*settings: Setting, known: int, **changes: object) -> JobRecord:
    """A job with one setting of its file, and these; its view has `known` of them all."""
    spec = replace(job_with().spec, settings={"lr": "0.1"})
    view = replace(job_with().view, settings=known)  # type: ignore[type-var]
    return job_with(spec=spec, settings=settings, view=view, **changes)


def test_a_changed_setting_makes_a_view_with_the_same_members_and_lanes() -> None:
    job = with_settings(Setting("lr", "0.01", 120), Setting("wd", "0", 0), known=1)
    seen = observe(n1=[worker(1, settings=1)], n2=[worker(2, settings=1)])
    decisions = decide(job, seen)
    (written,) = commands(decisions, WriteView)
    assert isinstance(written, WriteView)
    assert written.view == View(4, {1: (0, 1), 2: (2, 3)}, settings=3)
    (said,) = [one.reason for one in decisions if isinstance(one.command, WriteView)]
    expected = "view 4: lr=0.01 for step 120, wd=0 for the next step; "
    assert said.startswith(expected)


def test_a_view_that_has_all_settings_stays() -> None:
    job = with_settings(Setting("lr", "0.01", 120), known=2)
    seen = observe(n1=[worker(1, settings=2)], n2=[worker(2, settings=2)])
    assert decide(job, seen) == []


@pytest.mark.parametrize(("at_step", "waits"), [(0, True), (120, False)])
def test_a_setting_waits_for_a_checkpoint_under_way_unless_it_names_its_step(
    at_step: int, waits: bool
) -> None:
    attempt = Attempt(1, 9, 3, NOW_S - 1.0)
    job = with_settings(Setting("lr", "1", at_step), known=1, attempt=attempt, attempts=1)
    seen = observe(n1=[worker(1, settings=2)], n2=[worker(2, settings=2)])
    assert bool(commands(decide(job, seen), WriteView)) is not waits
    assert commands(decide(job, seen, now_s=NOW_S + VIEW_WAIT_S), WriteView)


def test_settings_are_given_before_the_view_in_which_they_are_to_be_known() -> None:
    job = with_settings(Setting("lr", "0.01", 0), known=2)
    behind = [worker(number, view=2, settings=1) for number in (1, 2)]
    decisions = decide(job, observe(n1=behind[:1], n2=behind[1:]))
    orders = [type(one.command) for one in decisions if isinstance(one.command, Order)]
    assert orders == [GiveSettings, GiveSettings, GiveView, GiveView]


def test_settings_are_given_until_they_are_known() -> None:
    spec = replace(job_with().spec, settings={"lr": "0.1"})
    job = job_with(spec=spec, settings=(Setting("lr", "0.01", 50),))
    seen = observe(n1=[worker(1, settings=2)], n2=[worker(2, settings=1)])
    assert commands(decide(job, seen), GiveSettings) == [
        GiveSettings("n2", "train", 2, (("lr", "0.1", 0), ("lr", "0.01", 50)))
    ]


def test_a_job_that_has_ended_is_left_alone_but_for_its_orphans() -> None:
    job = job_with(placements=(), status=RecordedStatus(Phase.FAILED, "x", 1.0))
    plan = JobPlan(add=(Add("n1", "room"),))
    decisions = decide(job, observe(n1=[worker(1)], n2=[gone(2)]), plan)
    assert [type(decision.command) for decision in decisions] == [StopWorker, Forget]


def test_room_of_an_orphan_is_not_free_until_it_is_gone() -> None:
    job = job_with(placements=(Placement(1, "n1"),))
    desired = DesiredState({"train": job}, draining_nodes=frozenset({"n1"}))
    capacities = node_capacities(desired, observe(n1=[worker(1)], n2=[worker(2), gone(9)]))
    assert capacities == (
        NodeCapacity("n1", CAPACITY, True, knows_disk=False),
        NodeCapacity("n2", Resources(cpu=3.0), knows_disk=False),
    )


def test_a_node_with_a_worker_of_a_removed_job_has_no_room_at_all() -> None:
    capacities = node_capacities(DesiredState(), observe(n1=[worker(1)]))
    assert capacities == (NodeCapacity("n1", Resources(), knows_disk=False),)


@pytest.mark.parametrize("kind", [ExitKind.DONE, ExitKind.LEFT, ExitKind.STOPPED])
def test_every_decision_has_a_reason(kind: ExitKind) -> None:
    decisions = decide(job_with(), observe(n1=[worker(1)], n2=[gone(2, kind)]))
    assert decisions and all(decision.reason for decision in decisions)
