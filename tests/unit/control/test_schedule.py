"""The planner, rule by rule. The stories with their sentences are in tests/golden/schedule."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.control.decide.claims import AGING_S
from holdfast.control.decide.facts import Intent, Phase, Placement, RecordedStatus
from holdfast.control.decide.schedule import Add, JobPlan, Leave, SchedulePlan, validate
from holdfast.control.decide.spec import Resources
from holdfast.wire.errors import BugError
from tests.unit.control.clusters import Cluster, running
from tests.unit.control.stories import GOLDEN, replay


@pytest.mark.parametrize("path", sorted(GOLDEN.glob("*.txt")), ids=lambda path: path.stem)
def test_the_story_is_told_as_it_is_written(path) -> None:  # type: ignore[no-untyped-def]
    text = path.read_text()
    assert replay(text) == text


def test_there_are_stories() -> None:
    assert len(list(GOLDEN.glob("*.txt"))) >= 6


def _ten_slots() -> Cluster:
    cluster = Cluster()
    cluster.node("a", 5)
    cluster.node("b", 5)
    return cluster


def test_production_takes_five_of_ten_and_the_experiment_grows_back() -> None:
    cluster = _ten_slots()
    cluster.submit("exp", (2, 10))
    cluster.settle()
    assert cluster.counts() == {"exp": 10}
    survivors_before = {p.worker for p in running(cluster.jobs["exp"])}

    cluster.submit("prod", (5, 5), priority=10)
    made = cluster.step()
    assert len(made.drains["exp"]) == 5
    assert not made.adds, "the room is not free before the processes are gone"
    cluster.gone()
    made = cluster.step()
    assert len(made.adds["prod"]) == 5
    assert {p.worker for p in running(cluster.jobs["exp"])} < survivors_before

    cluster.finish("prod")
    cluster.settle()
    assert cluster.counts() == {"exp": 10, "prod": 0}


def test_a_gang_never_holds_a_part_of_its_minimum() -> None:
    cluster = _ten_slots()
    cluster.submit("first", (6, 6))
    cluster.submit("gang", (5, 5))
    cluster.settle()
    assert cluster.counts() == {"first": 6, "gang": 0}
    cluster.finish("first")
    cluster.settle()
    assert cluster.counts()["gang"] == 5


def test_a_gang_goes_onto_as_few_machines_as_possible() -> None:
    cluster = Cluster()
    for name, cpu in (("a", 3), ("b", 8), ("c", 4), ("d", 9)):
        cluster.node(name, cpu)
    cluster.submit("tight", (4, 4))
    assert cluster.step().adds == {"tight": ("c",) * 4}
    cluster.submit("wide", (11, 11))
    assert set(cluster.step().adds["wide"]) == {"d", "a"}


def test_a_job_grows_on_the_machines_that_it_already_uses() -> None:
    cluster = Cluster()
    cluster.node("a", 2)
    cluster.node("b", 8)
    cluster.submit("job", (3, 3))
    cluster.submit("other", (2, 2))
    cluster.settle()
    cluster.submit("later", (1, 4))
    cluster.settle()
    assert {p.node for p in running(cluster.jobs["job"])} == {"b"}
    assert {p.node for p in running(cluster.jobs["other"])} == {"a"}
    assert {p.node for p in running(cluster.jobs["later"])} == {"b"}


def test_a_lower_priority_never_shrinks_a_higher_one() -> None:
    cluster = _ten_slots()
    cluster.submit("prod", (2, 10), priority=10)
    cluster.settle()
    cluster.submit("exp", (2, 4))
    made = cluster.step()
    assert not made.changes
    assert "exp" in made.waits


def test_nobody_is_stopped_so_that_another_may_grow() -> None:
    cluster = _ten_slots()
    cluster.submit("exp", (6, 6))
    cluster.settle()
    cluster.submit("prod", (2, 10), priority=10)
    cluster.settle()
    assert cluster.counts() == {"exp": 6, "prod": 4}


def test_surplus_of_a_lower_priority_goes_to_a_higher_one_that_grows() -> None:
    cluster = _ten_slots()
    cluster.submit("exp", (2, 10))
    cluster.settle()
    cluster.submit("prod", (2, 6), priority=10)
    cluster.settle()
    assert cluster.counts() == {"exp": 4, "prod": 6}


def test_the_lowest_priority_shrinks_first() -> None:
    cluster = Cluster()
    cluster.node("a", 12)
    for name, priority in (("low", 0), ("middle", 1), ("high", 2)):
        cluster.submit(name, (1, 4), priority=priority)
    cluster.settle()
    cluster.submit("prod", (4, 4), priority=9)
    made = cluster.step()
    assert {name: len(gone) for name, gone in made.drains.items()} == {"low": 3, "middle": 1}


def test_exactly_as_many_are_drained_as_are_needed() -> None:
    cluster = Cluster()
    cluster.node("a", 10)
    cluster.submit("exp", (1, 10))
    cluster.settle()
    cluster.submit("big", (1, 1), priority=1, need=Resources(3.0))
    made = cluster.step()
    assert len(made.drains["exp"]) == 3


def test_a_worker_whose_room_would_not_help_is_not_drained() -> None:
    cluster = Cluster()
    cluster.node("a", 2)
    cluster.node("b", 8)
    cluster.submit("exp", (1, 10))
    cluster.settle()
    cluster.submit("big", (1, 1), priority=1, need=Resources(3.0))
    made = cluster.step()
    nodes = {p.worker: p.node for p in cluster.jobs["exp"].placements}
    assert [nodes[worker] for worker in made.drains["exp"]] == ["b", "b", "b"]


def test_drains_that_are_under_way_are_counted_before_new_ones() -> None:
    cluster = _ten_slots()
    cluster.submit("exp", (2, 10))
    cluster.settle()
    cluster.submit("prod", (5, 5), priority=10)
    cluster.step()
    cluster.submit("also", (2, 2), priority=9)
    made = cluster.step()
    assert len(made.drains["exp"]) == 2


@pytest.mark.parametrize("intent", [Intent.PAUSE, Intent.STOP])
def test_a_job_that_is_to_pause_or_stop_gets_nothing_and_its_room_is_promised(
    intent: Intent,
) -> None:
    cluster = _ten_slots()
    cluster.submit("first", (5, 5))
    cluster.submit("elastic", (2, 5))
    cluster.settle()
    cluster.change("first", intent=intent)
    cluster.submit("next", (5, 5), priority=1)
    made = cluster.step()
    assert "first" not in made.jobs
    assert not made.changes, "the room of the leaving job is enough: nobody shrinks"
    assert "first" in made.waits["next"]


def test_a_final_job_is_ignored_but_its_workers_take_room_until_they_are_gone() -> None:
    cluster = _ten_slots()
    cluster.submit("done", (10, 10))
    cluster.settle()
    cluster.change("done", status=RecordedStatus(Phase.SUCCEEDED, "done", 0.0))
    cluster.submit("next", (1, 10))
    made = cluster.step()
    assert "done" not in made.jobs
    assert not made.adds
    cluster.change("done", placements=())
    assert len(cluster.step().adds["next"]) == 10


def test_scale_is_clamped_to_what_the_job_allows() -> None:
    cluster = _ten_slots()
    cluster.submit("job", (2, 6))
    cluster.change("job", workers_wanted=99)
    cluster.settle()
    assert cluster.counts() == {"job": 6}
    cluster.change("job", workers_wanted=0)
    cluster.settle()
    assert cluster.counts() == {"job": 2}


def test_a_queue_stays_within_its_limit_and_shrinks_when_it_is_lowered() -> None:
    cluster = _ten_slots()
    cluster.queue("lab", 0, limit=6)
    cluster.submit("one", (1, 9), queue="lab", priority=1)
    cluster.submit("two", (2, 9), queue="lab")
    cluster.settle()
    assert cluster.counts() == {"one": 4, "two": 2}
    cluster.queue("lab", 0, limit=4)
    cluster.settle()
    assert cluster.counts() == {"one": 2, "two": 2}
    cluster.queue("lab", 0, limit=2)
    cluster.settle()
    assert cluster.counts() == {"one": 2, "two": 0}


def test_a_quota_of_gpus_counts_gpus_alone() -> None:
    cluster = Cluster()
    cluster.node("a", 64, 64, 8)
    cluster.submit("exp", (1, 8), priority=5, need=Resources(1.0, 1, 1))
    cluster.settle()
    cluster.queues["prod"] = replace(_gpu_queue(cluster), guaranteed=Resources(gpu=4))
    cluster.submit("nightly", (1, 8), queue="prod", need=Resources(1.0, 1, 1))
    cluster.settle()
    assert cluster.counts() == {"exp": 4, "nightly": 4}


def _gpu_queue(cluster: Cluster):  # type: ignore[no-untyped-def]
    cluster.queue("prod", 0)
    return cluster.queues["prod"]


def test_a_gang_that_lost_a_worker_gets_it_back_before_others_start() -> None:
    cluster = _ten_slots()
    cluster.submit("gang", (5, 5))
    cluster.submit("elastic", (1, 5))
    cluster.settle()
    cluster.change("gang", placements=cluster.jobs["gang"].placements[1:])
    cluster.submit("new", (1, 1))
    made = cluster.step()
    assert len(made.adds["gang"]) == 1
    assert len(cluster.plan().drains) == 0
    assert len(made.drains["elastic"]) == 1, "for the new one"


def test_workers_leave_a_drained_machine_when_their_replacements_are_in_the_view() -> None:
    cluster = Cluster()
    cluster.node("a", 8)
    cluster.node("b", 8)
    cluster.submit("job", (3, 6))
    cluster.change("job", workers_wanted=3)
    cluster.settle()
    (home,) = {p.node for p in running(cluster.jobs["job"])}
    cluster.change("job", workers_wanted=6)
    cluster.drain_node(home)
    made = cluster.step()
    assert len(made.adds["job"]) >= 3
    assert not made.drains, "the new ones hold no state yet"
    cluster.gone()
    made = cluster.step()
    assert len(made.drains["job"]) == 3
    cluster.settle()
    assert home not in {p.node for p in cluster.jobs["job"].placements}


def test_a_placement_on_a_machine_that_is_not_there_is_replaced() -> None:
    cluster = _ten_slots()
    cluster.submit("job", (2, 2))
    cluster.change("job", placements=(Placement(1, "lost"), Placement(2, "a")), next_worker=3)
    assert cluster.step().adds == {"job": ("a",)}


def test_a_machine_that_came_back_smaller_sheds_its_last_in_rank() -> None:
    cluster = Cluster()
    cluster.node("a", 6)
    cluster.submit("prod", (1, 3), priority=1)
    cluster.submit("exp", (1, 3))
    cluster.settle()
    cluster.node("a", 4)
    cluster.settle()
    assert cluster.counts() == {"prod": 3, "exp": 1}


@settings(max_examples=20, deadline=None)
@given(
    gap=st.integers(1, 2),
    size=st.integers(1, 6),
    small=st.integers(1, 6),
    life_h=st.integers(1, 5),
)
def test_nothing_starves_under_a_stream_of_higher_priorities(
    gap: int, size: int, small: int, life_h: int
) -> None:
    """There are always eight jobs of higher priority that wait; each runs for `life_h` hours. The
    low one is overtaken only by those that came before it had waited long enough, and when its
    turn has come it runs for as long as a point of priority is worth."""
    cluster = Cluster()
    cluster.node("a", 3)
    cluster.node("b", 3)
    cluster.submit("low", (small, 6))
    ran_h = 0
    for hour in range(250):
        cluster.now_s = hour * 3_600.0
        counts = cluster.counts()
        for name, job in list(cluster.jobs.items()):
            since_s = job.admitted_s if job.admitted_s is not None else cluster.now_s
            if counts[name] and name != "low" and cluster.now_s - since_s >= life_h * 3_600:
                del cluster.jobs[name]
        waiting = [name for name in cluster.jobs if not counts[name] and name != "low"]
        for number in range(len(waiting), 8):
            cluster.submit(f"high-{hour}-{number}", (size, size), priority=gap)
        cluster.settle()
        ran_h = ran_h + 1 if cluster.counts()["low"] >= small else 0
        if ran_h * 3_600 >= AGING_S:
            return
    raise AssertionError("it never had its turn")


def test_every_waiting_job_knows_its_place_in_the_queue() -> None:
    cluster = Cluster()
    cluster.node("a", 1)
    for number in range(12):
        cluster.submit(f"j{number:02}", (1, 1))
        cluster.now_s += 1
    waits = cluster.step().waits
    assert waits["j01"].endswith("it is 1st in queue default")
    assert waits["j02"].endswith("it is 2nd in queue default")
    assert waits["j11"].endswith("it is 11th in queue default")


BAD_PLANS = {
    "more than": JobPlan(workers=3, add=(Add("a", "r"),) * 3),
    "fewer than": JobPlan(workers=1, add=(Add("a", "r"),)),
    "is not there": JobPlan(workers=2, add=(Add("z", "r"),) * 2),
    "given more than it has": JobPlan(workers=2, add=(Add("small", "r"),) * 2),
    "does not have": JobPlan(drain=(Leave(7, "r"),), waits="x"),
    "waits without a reason": JobPlan(),
    "without a reason": JobPlan(workers=2, add=(Add("a", ""),) * 2),
    "the plan says": JobPlan(workers=1, waits="x"),
}


@pytest.mark.parametrize("complaint", BAD_PLANS)
def test_a_plan_that_breaks_a_rule_is_refused(complaint: str) -> None:
    cluster = _ten_slots()
    cluster.node("small", 1)
    cluster.submit("job", (2, 2))
    with pytest.raises(BugError, match=complaint):
        validate(
            SchedulePlan({"job": BAD_PLANS[complaint]}),
            tuple(cluster.jobs.values()),
            tuple(cluster.nodes.values()),
        )
