"""Triggers: each record lies in exactly one started job's range, whatever happens around them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.control.decide.commands import Decision, MoveTrigger, StartJob
from holdfast.control.decide.facts import (
    DesiredState,
    Intent,
    JobRecord,
    ObservedState,
    Phase,
    RecordedStatus,
    TopicOffsets,
    TriggerState,
)
from holdfast.control.decide.invariants import check_change
from holdfast.control.decide.records import apply_record, apply_to
from holdfast.control.decide.spec import JobSpec, Trigger, TriggerStart
from holdfast.control.decide.triggers import (
    ENDED_KEPT,
    PARTITIONS_MAX,
    decide_triggers,
    due,
    jobs_of,
    moved_to,
)
from holdfast.control.shell.leading import decide
from holdfast.wire.errors import Conflict
from holdfast.wire.triggers import TRIGGER_VARIABLE, OffsetRange, TriggeredRange, triggered_in

BY_TEN = Trigger("orders", every_records=10)
NEW = RecordedStatus(Phase.QUEUED, "it was just submitted", 0.0)


def trigger(on: Trigger = BY_TEN, **more: object) -> JobRecord:
    return JobRecord(JobSpec("etl", ("python", "etl.py"), on=on), 0.0, NEW, **more)  # type: ignore[arg-type]


def topic(*ends: int, begins: tuple[int, ...] = (), incarnation: str = "i1") -> TopicOffsets:
    return TopicOffsets(incarnation, begins or (0,) * len(ends), ends)


@dataclass
class Plane:
    """What is written. Each decision is carried out once, and then once more: nothing changes."""

    desired: DesiredState = field(default_factory=lambda: DesiredState({"etl": trigger()}))
    history: list[str] = field(default_factory=list)
    ranges: list[TriggeredRange] = field(default_factory=list)

    def look(self, offsets: TopicOffsets, now_s: float = 1.0, writes: int = 100) -> list[Decision]:
        """One look of a leader that dies after so many writes."""
        decisions = decide_triggers(self.desired, {"orders": offsets}, now_s)
        for decision in decisions[:writes]:
            record = decision.command
            before = self.etl
            self.desired = apply_to(self.desired, record, now_s=now_s)  # type: ignore[arg-type]
            check_change(before, self.etl)
            again = apply_to(self.desired, record, now_s=now_s)  # type: ignore[arg-type]
            assert again == self.desired, record
            self.history.append(decision.reason)
            if isinstance(record, StartJob):
                assert record.spec.triggered is not None
                self.ranges.append(record.spec.triggered)
        return decisions

    @property
    def etl(self) -> JobRecord:
        return self.desired.jobs["etl"]

    def end(self, name: str, phase: Phase = Phase.SUCCEEDED) -> None:
        job = replace(self.desired.jobs[name], status=RecordedStatus(phase, "x", 2.0))
        self.desired = replace(self.desired, jobs={**self.desired.jobs, name: job})

    def change(self, **changes: object) -> None:
        job = replace(self.etl, **changes)  # type: ignore[arg-type]
        self.desired = replace(self.desired, jobs={**self.desired.jobs, "etl": job})


def test_nothing_is_started_before_there_are_enough_records() -> None:
    plane = Plane()
    plane.look(topic(9))
    assert not plane.ranges
    assert "starts a job for each 10 records of topic orders" in plane.etl.status.reason
    plane.look(topic(10))
    assert [given.ranges for given in plane.ranges] == [(OffsetRange(0, 0, 10),)]


def test_a_started_job_is_the_file_without_on_and_with_its_range() -> None:
    plane = Plane()
    plane.look(topic(12))
    job = plane.desired.jobs["etl.1"]
    assert job.spec.on is None and job.spec.command == ("python", "etl.py")
    assert job.spec.triggered == TriggeredRange("etl", 1, "orders", (OffsetRange(0, 0, 10),))
    assert plane.etl.trigger is not None and plane.etl.trigger.positions == (10,)


def test_records_wait_while_a_job_of_before_lives() -> None:
    plane = Plane()
    plane.look(topic(35))
    plane.look(topic(35))
    assert len(plane.ranges) == 1
    assert "waits for the end of etl.1" in plane.etl.status.reason
    plane.end("etl.1", Phase.FAILED)
    plane.look(topic(35))
    assert [given.ranges[0].first for given in plane.ranges] == [0, 10]


def test_several_may_live_at_once_if_the_file_says_so() -> None:
    plane = Plane(DesiredState({"etl": trigger(replace(BY_TEN, at_once=3))}))
    plane.look(topic(100))
    assert [given.ranges[0].first for given in plane.ranges] == [0, 10, 20]


def test_by_time_a_job_gets_all_that_came_and_none_is_started_for_nothing() -> None:
    plane = Plane(DesiredState({"etl": trigger(Trigger("orders", every_s=60.0))}))
    plane.look(topic(0, 0), 100.0)
    plane.look(topic(3, 4), 159.0)
    assert not plane.ranges
    plane.look(topic(3, 4), 160.0)
    assert plane.ranges[0].count == 7
    plane.end("etl.1")
    plane.look(topic(3, 4), 500.0)
    assert len(plane.ranges) == 1


def test_a_clock_that_was_set_back_does_not_stop_a_trigger_by_time() -> None:
    on = Trigger("orders", every_s=60.0)
    state = TriggerState("orders", "i1", (0,), since_s=10_000.0)
    assert due(on, state, topic(5), 1.0)


def test_with_both_whichever_comes_first() -> None:
    on = Trigger("orders", every_records=10, every_s=60.0)
    plane = Plane(DesiredState({"etl": trigger(on)}))
    plane.look(topic(14), 0.0)
    assert plane.ranges[0].count == 10
    plane.end("etl.1")
    plane.look(topic(14), 59.0)
    plane.look(topic(14), 61.0)
    assert [given.count for given in plane.ranges] == [10, 4]


def test_latest_begins_with_what_comes_later_and_with_all_of_a_topic_that_comes_later() -> None:
    on = replace(BY_TEN, start=TriggerStart.LATEST)
    plane = Plane(DesiredState({"etl": trigger(on)}))
    plane.look(topic(100, 50))
    plane.look(topic(110, 50))
    assert plane.ranges[0].ranges == (OffsetRange(0, 100, 110),)
    later = Plane(DesiredState({"etl": trigger(on)}))
    later.look(TopicOffsets())
    assert "holdfast topics create orders" in later.etl.status.reason
    later.look(topic(10))
    assert later.ranges[0].ranges == (OffsetRange(0, 0, 10),)


def test_what_retention_removed_before_a_job_is_said_and_lies_in_no_range() -> None:
    plane = Plane()
    plane.look(topic(5))
    plane.look(topic(1_000, begins=(995,)))
    assert any("995 records of topic orders were removed" in each for each in plane.history)
    assert "995 records were removed before their job" in plane.etl.status.reason
    plane.look(topic(1_010, begins=(995,)))
    assert plane.ranges[0].ranges == (OffsetRange(0, 995, 1_005),)


def test_partitions_that_are_added_are_read_from_their_beginning() -> None:
    plane = Plane(DesiredState({"etl": trigger(replace(BY_TEN, start=TriggerStart.LATEST))}))
    plane.look(topic(100))
    plane.look(topic(100, 4, 6))
    assert plane.ranges[0].ranges == (OffsetRange(1, 0, 4), OffsetRange(2, 0, 6))
    assert any("2 partitions more" in each for each in plane.history)


def test_a_topic_made_anew_begins_anew_and_one_that_lost_its_end_is_waited_for() -> None:
    plane = Plane()
    plane.look(topic(10))
    plane.end("etl.1")
    plane.look(topic(7))
    assert "has lost records" in plane.etl.status.reason
    plane.look(topic(9))
    assert len(plane.ranges) == 1
    plane.look(topic(10, incarnation="i2"))
    assert any("deleted and made anew" in each for each in plane.history)
    assert plane.ranges[1].ranges == (OffsetRange(0, 0, 10),)


def test_another_topic_in_the_file_begins_at_that_topics_start() -> None:
    plane = Plane()
    plane.look(topic(10))
    spec = replace(plane.etl.spec, on=replace(BY_TEN, topic="other"))
    plane.change(spec=spec)
    decisions = decide_triggers(plane.desired, {"other": topic(3)}, 1.0)
    moves = [each.command for each in decisions if isinstance(each.command, MoveTrigger)]
    assert [move.after.positions for move in moves] == [(0,)]
    assert moves[0].after.started == 1  # its jobs go on counting


def test_a_paused_or_stopped_trigger_starts_nothing() -> None:
    for intent, phase in ((Intent.PAUSE, Phase.PAUSED), (Intent.STOP, Phase.STOPPED)):
        plane = Plane()
        plane.look(topic(0))
        plane.change(intent=intent)
        plane.look(topic(100))
        assert not plane.ranges and plane.etl.status.phase is phase


def test_topics_that_are_away_are_said_and_nothing_is_started() -> None:
    plane = Plane()
    plane.look(topic(0))
    plane.look(replace(topic(100), trouble="topics are away since 10:00"))
    assert not plane.ranges and "topics are away" in plane.etl.status.reason


def test_a_topic_with_too_many_partitions_is_refused_in_words() -> None:
    plane = Plane()
    plane.look(topic(*[1] * (PARTITIONS_MAX + 1)))
    assert not plane.ranges
    assert plane.etl.status.phase is Phase.ADMITTED


def test_a_number_whose_name_somebody_has_is_passed_over() -> None:
    mine = JobRecord(JobSpec("etl.1", ("x",)), 0.0, NEW)
    plane = Plane(DesiredState({"etl": trigger(), "etl.1": mine}))
    plane.look(topic(10))
    assert [given.number for given in plane.ranges] == [2]


def test_old_ended_jobs_are_forgotten_and_living_ones_never() -> None:
    plane = Plane(DesiredState({"etl": trigger(replace(BY_TEN, at_once=3))}))
    for number in range(1, ENDED_KEPT + 30):
        plane.look(topic(number * 10))
        if number > 1:
            plane.end(f"etl.{number}")
    plane.look(topic(0))
    known = jobs_of(plane.desired, "etl")
    assert not known[0].status.phase.final and known[0].name == "etl.1"
    assert len(known) == ENDED_KEPT + 1
    assert plane.etl.trigger is not None and plane.etl.trigger.forgotten == 28


def test_a_start_upon_an_older_place_is_a_conflict() -> None:
    plane = Plane()
    before = plane.desired
    plane.look(topic(5))
    late = [
        each.command
        for each in decide_triggers(plane.desired, {"orders": topic(10)}, 1.0)
        if isinstance(each.command, StartJob)
    ]
    plane.look(topic(10))
    moved = replace(plane.etl, trigger=TriggerState("orders", "i1", (7,)))
    with pytest.raises(Conflict):
        apply_record(moved, late[0], now_s=1.0)
    with pytest.raises(Conflict):
        apply_record(
            before.jobs["etl"], MoveTrigger("etl", moved.trigger, TriggerState("x")), now_s=1.0
        )


def test_jobs_without_on_are_decided_as_before() -> None:
    plain = JobRecord(JobSpec("train", ("x",)), 0.0, NEW)
    alone = decide(DesiredState({"train": plain}), ObservedState(), 1.0)
    both = decide(
        DesiredState({"etl": trigger(), "train": plain}),
        ObservedState(topics={"orders": topic(0)}),
        1.0,
    )
    assert [each for each in both if each.command.job == "train"] == alone
    assert {type(each.command).__name__ for each in both if each.command.job == "etl"} == {
        "MoveTrigger",
        "SetStatus",
    }


# --- properties ---------------------------------------------------------------------------------


@given(
    st.lists(st.integers(0, 500), min_size=1, max_size=8),
    st.integers(1, 2_000),
)
def test_by_count_a_range_has_exactly_so_many_records_spread_as_evenly_as_can_be(
    ends: list[int], count: int
) -> None:
    on = Trigger("orders", every_records=count)
    state = TriggerState("orders", "i1", (0,) * len(ends))
    ranges = due(on, state, topic(*ends), 1.0)
    assert sum(each.count for each in ranges) == (count if sum(ends) >= count else 0)
    taken = dict.fromkeys(range(len(ends)), 0) | {each.partition: each.count for each in ranges}
    if ranges:
        for partition, end in enumerate(ends):
            assert taken[partition] <= end
            # Who gives less than another (but for rounding) has no more.
            assert taken[partition] == end or taken[partition] + 1 >= max(taken.values())


STEP = st.one_of(
    st.tuples(st.just("produce"), st.integers(0, 3), st.integers(1, 30)),
    st.tuples(st.just("look"), st.integers(0, 4)),
    st.tuples(st.just("end"), st.sampled_from((Phase.SUCCEEDED, Phase.FAILED, Phase.STOPPED))),
    st.tuples(st.just("trim"), st.integers(0, 3), st.integers(1, 20)),
    st.tuples(st.just("grow")),
    st.tuples(st.just("wait"), st.integers(1, 100)),
    st.tuples(st.just("update"), st.integers(1, 20), st.integers(1, 3)),
    st.tuples(st.just("pause")),
)


@settings(max_examples=200)
@given(st.lists(STEP, max_size=60))
def test_each_record_lies_in_exactly_one_range_or_was_removed_before(steps: list[tuple]) -> None:  # type: ignore[type-arg]
    plane, now_s = Plane(), 0.0
    begins, ends, before_first_look = [0, 0], [0, 0], 0
    for what, *more in [*steps, ("look", 100)]:
        if what == "produce" and more[0] < len(ends):
            ends[more[0]] += more[1]
        elif what == "trim" and more[0] < len(ends):
            begins[more[0]] = min(ends[more[0]], begins[more[0]] + more[1])
        elif what == "grow" and len(ends) < 4:
            begins.append(0)
            ends.append(0)
        elif what == "wait":
            now_s += more[0]
        elif what == "pause":
            paused = plane.etl.intent is Intent.PAUSE
            plane.change(intent=Intent.RUN if paused else Intent.PAUSE)
        elif what == "update":
            on = Trigger("orders", every_records=more[0], every_s=50.0, at_once=more[1])
            plane.change(spec=replace(plane.etl.spec, on=on))
        elif what == "end":
            living = [j for j in jobs_of(plane.desired, "etl") if not j.status.phase.final]
            for job in living[:1]:
                plane.end(job.name, more[0])
        elif what == "look":
            # A leader may die after any of its writes; the next one sees what is written.
            before_first_look = sum(begins) if plane.etl.trigger is None else before_first_look
            plane.look(TopicOffsets("i1", tuple(begins), tuple(ends)), now_s, writes=more[0])
    state = plane.etl.trigger
    if state is None:
        return
    counted = [[0] * end for end in ends]
    for given_range in plane.ranges:
        for each in given_range.ranges:
            for offset in range(each.first, each.end):
                counted[each.partition][offset] += 1
    for partition, position in enumerate(state.positions):
        assert all(times <= 1 for times in counted[partition])
        assert not any(counted[partition][position:])
    missed = sum(
        times == 0
        for partition, position in enumerate(state.positions)
        for times in counted[partition][:position]
    )
    assert missed == state.trimmed + before_first_look
    numbers = [given_range.number for given_range in plane.ranges]
    assert numbers == sorted(set(numbers))


@given(st.lists(st.tuples(st.integers(0, 99), st.integers(1, 50)), max_size=6), st.integers(1, 9))
def test_a_split_range_has_the_same_offsets_once_in_parts_of_nearly_one_size(
    spans: list[tuple[int, int]], parts: int
) -> None:
    ranges = tuple(
        OffsetRange(partition, first, first + count)
        for partition, (first, count) in enumerate(spans)
    )
    whole = TriggeredRange("etl", 1, "orders", ranges)
    split = whole.split(parts)
    assert len(split) == parts

    def offsets(given: TriggeredRange) -> list[tuple[int, int]]:
        return [(r.partition, o) for r in given.ranges for o in range(r.first, r.end)]

    assert [each for part in split for each in offsets(part)] == offsets(whole)
    assert max(part.count for part in split) - min(part.count for part in split) <= 1


def test_a_worker_finds_its_range_in_its_environment() -> None:
    given = TriggeredRange("etl", 3, "orders", (OffsetRange(0, 5, 9),), "value.a > 1")
    assert triggered_in({TRIGGER_VARIABLE: given.text()}) == given
    assert triggered_in({}) is None


def test_the_place_moves_only_for_a_reason() -> None:
    state = TriggerState("orders", "i1", (5,))
    assert moved_to(BY_TEN, state, topic(9), 1.0) is None
    assert moved_to(BY_TEN, state, topic(9, begins=(5,)), 1.0) is None
