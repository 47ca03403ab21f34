"""Triggers: jobs that start other jobs for the records of a topic. Pure.

A job with `on:` has no workers. It is a rule: for so many records, or so long after the last start,
a job is started by the rest of its file, under its name with a number. What that job is to read are
offsets from-to of each partition (`TriggeredRange`).

- *Exactly one.* Where the trigger goes on and the started job are written in one transaction, by
  the leader of the present term alone. A range begins where the one before it ended. So every
  offset from the start on lies in exactly one range, whoever leads and however often leaders die; a
  job that fails keeps its range, and its workers are started again with the same one.
- *What is counted* are offsets up to the end of what was committed: a topic with transactions has
  offsets without a record, and a filter is applied by whoever reads.
- *Retention* may remove records before a job was started for them. They lie in no range; the
  trigger says how many (`MoveTrigger`).
- *A topic that was deleted and made anew* has other records under the same offsets: the trigger
  begins at its beginning. One that ends before the trigger's place, and was not made anew, has lost
  records: nothing is started until it has grown past that, since offsets may be given twice.
- *Back-pressure.* At most `at_once` of its jobs live at a time; records wait in the topic.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from holdfast.control.decide.commands import (
    Decision,
    ForgetJob,
    MoveTrigger,
    Record,
    SetStatus,
    StartJob,
)
from holdfast.control.decide.facts import (
    DesiredState,
    Intent,
    JobRecord,
    Phase,
    RecordedStatus,
    TopicOffsets,
    TriggerState,
)
from holdfast.control.decide.records import apply_to
from holdfast.control.decide.spans import lasts
from holdfast.control.decide.spec import JobSpec, Trigger, TriggerStart
from holdfast.control.decide.units import duration_of
from holdfast.wire.limits import JOB_NAME_CHARACTERS_MAX
from holdfast.wire.triggers import OffsetRange, TriggeredRange, ranges_text

# Each start is nodes of the plane, in one transaction with those of the others of that look.
STARTS_PER_LOOK_MAX: Final = 16
# Ended jobs of a trigger that stay to be looked at; the plane holds jobs by the thousand, not more.
ENDED_KEPT: Final = 100
_FORGOTTEN_PER_LOOK: Final = 16
# A worker finds its range in its environment, of which one variable has 128 kB.
PARTITIONS_MAX: Final = 1_000
# Of a name, for `.` and the number of a started job.
NUMBER_CHARACTERS: Final = 9
TRIGGER_NAME_CHARACTERS_MAX: Final = JOB_NAME_CHARACTERS_MAX - NUMBER_CHARACTERS


def without_triggers(desired: DesiredState) -> DesiredState:
    """The jobs that have workers. The same object, if all have."""
    jobs = {name: job for name, job in desired.jobs.items() if job.spec.on is None}
    return desired if len(jobs) == len(desired.jobs) else replace(desired, jobs=jobs)


def decide_triggers(
    desired: DesiredState, topics: Mapping[str, TopicOffsets], now_s: float
) -> list[Decision]:
    """What is to be written for all triggers."""
    decisions: list[Decision] = []
    for name, job in desired.jobs.items():
        if job.spec.on is not None and not job.status.phase.final:
            offsets = topics.get(job.spec.on.topic)
            decisions += _decide(desired, name, job.spec.on, offsets, now_s)
    return decisions


def _decide(
    desired: DesiredState, name: str, on: Trigger, offsets: TopicOffsets | None, now_s: float
) -> Iterator[Decision]:
    """The records of one trigger, each upon what those before it make of the whole."""
    job = desired.jobs[name]
    known = offsets is not None and not offsets.trouble
    if job.intent is Intent.RUN and known:
        assert offsets is not None
        moved = moved_to(on, job.trigger, offsets, now_s)
        if moved is not None:
            state, why = moved
            move = MoveTrigger(name, job.trigger, state)
            yield Decision(move, why)
            desired = _after(desired, move, now_s)
        for _ in range(STARTS_PER_LOOK_MAX):
            started = _next_start(desired, name, on, offsets, now_s)
            if started is None:
                break
            yield started
            desired = _after(desired, started.command, now_s)
    job = desired.jobs[name]
    if job.trigger is not None:
        yield from _forgotten(desired, job, job.trigger)
    status = _status_of(job, on, offsets, _living(desired, name), now_s)
    if status != job.status:
        yield Decision(SetStatus(name, status), status.reason)


def _after(desired: DesiredState, record: object, now_s: float) -> DesiredState:
    assert isinstance(record, Record)
    return apply_to(desired, record, now_s=now_s)


# --- where it goes on ---------------------------------------------------------------------------


def moved_to(
    on: Trigger, state: TriggerState | None, offsets: TopicOffsets, now_s: float
) -> tuple[TriggerState, str] | None:
    """Where the trigger goes on, and why, if that is another place than before though no job was
    started; None: it is where it was."""
    if len(offsets.begins) > PARTITIONS_MAX:
        return None  # `_status_of` says so
    if state is None or state.topic != on.topic:
        return _first_look(on, state, offsets, now_s)
    if not offsets.incarnation or _has_shrunk(state, offsets):
        return None
    why = []
    if offsets.incarnation != state.incarnation:
        how = "was deleted and made anew" if state.incarnation else "is there now"
        why.append(f"topic {on.topic} {how}: begins at its beginning")
        state = replace(state, incarnation=offsets.incarnation, positions=())
    if added := len(offsets.begins) - len(state.positions):
        more = f"{added} partition{'s' if added > 1 else ''}"
        why += [] if why else [f"topic {on.topic} has {more} more; begins at their beginning"]
        state = replace(state, positions=state.positions + (0,) * added)
    lost = [
        OffsetRange(partition, position, begins)
        for partition, (position, begins) in enumerate(
            zip(state.positions, offsets.begins, strict=False)
        )
        if begins > position
    ]
    count = sum(each.count for each in lost)
    if lost:
        why.append(
            f"{count:,} records of topic {on.topic} were removed before a job was started for them"
            f" ({ranges_text(tuple(lost))}): its retention is shorter than they waited here"
        )
    positions = tuple(map(max, state.positions, offsets.begins))
    after = replace(state, positions=positions, trimmed=state.trimmed + count)
    return (after, "; ".join(why)) if why else None


def _first_look(
    on: Trigger, state: TriggerState | None, offsets: TopicOffsets, now_s: float
) -> tuple[TriggerState, str]:
    started, forgotten = (state.started, state.forgotten) if state else (0, 0)
    at_end = on.start is TriggerStart.LATEST and offsets.incarnation
    positions = offsets.ends if at_end else offsets.begins
    if not offsets.incarnation:
        why = f"topic {on.topic} is not there yet; begins at its beginning"
    else:
        where = "end: with what comes from now on" if at_end else "beginning"
        why = f"begins topic {on.topic} at its {where}"
    return TriggerState(on.topic, offsets.incarnation, positions, now_s, started, forgotten), why


def _has_shrunk(state: TriggerState, offsets: TopicOffsets) -> bool:
    """Whether records that were there are gone from the end of the very same topic."""
    if offsets.incarnation != state.incarnation:
        return False
    fewer = len(offsets.ends) < len(state.positions)
    return fewer or any(map(int.__lt__, offsets.ends, state.positions))


# --- what is started ----------------------------------------------------------------------------


def due(
    on: Trigger, state: TriggerState, offsets: TopicOffsets, now_s: float
) -> tuple[OffsetRange, ...]:
    """The offsets that the next job is to be started for; none: it is not time yet.

    By count it is exactly so many, taken as evenly from the partitions as they have them; by time
    it is all that there is.
    """
    if offsets.incarnation != state.incarnation or _has_shrunk(state, offsets):
        return ()
    waiting = [end - position for position, end in zip(state.positions, offsets.ends, strict=False)]
    total = sum(waiting)
    if on.every_records is not None and total >= on.every_records:
        taken: Sequence[int] = _shared(waiting, on.every_records)
    elif on.every_s is not None and total and not lasts(state.since_s, on.every_s, now_s):
        taken = waiting
    else:
        return ()
    return tuple(
        OffsetRange(partition, state.positions[partition], state.positions[partition] + count)
        for partition, count in enumerate(taken)
        if count
    )


def _shared(waiting: Sequence[int], count: int) -> list[int]:
    """`count` of what waits, from each partition as much as from the others while it has it."""
    taken = [0] * len(waiting)
    left = len(waiting)
    for partition in sorted(range(len(waiting)), key=lambda each: (waiting[each], each)):
        taken[partition] = min(waiting[partition], count // left)
        count -= taken[partition]
        left -= 1
    return taken


def _next_start(
    desired: DesiredState, name: str, on: Trigger, offsets: TopicOffsets, now_s: float
) -> Decision | None:
    job = desired.jobs[name]
    state = job.trigger
    if state is None or len(_living(desired, name)) >= on.at_once:
        return None
    ranges = due(on, state, offsets, now_s)
    if not ranges:
        return None
    number = state.started + 1
    while started_name(name, number) in desired.jobs:
        number += 1  # somebody has a job of that name
    given = TriggeredRange(name, number, on.topic, ranges, on.filter)
    spec = started_spec(job.spec, given)
    reason = f"starts {spec.name} for {given.count:,} records of topic {on.topic}: " + ranges_text(
        ranges
    )
    return Decision(StartJob(name, spec, job.workers_wanted, now_s), reason)


def started_name(trigger: str, number: int) -> str:
    return f"{trigger}.{number}"


def started_spec(spec: JobSpec, given: TriggeredRange) -> JobSpec:
    """The job that a trigger of this spec starts for these records."""
    return replace(spec, name=started_name(spec.name, given.number), on=None, triggered=given)


def jobs_of(desired: DesiredState, trigger: str) -> list[JobRecord]:
    """The jobs that it has started and that are still here, by their numbers."""
    found = [
        job
        for job in desired.jobs.values()
        if job.spec.triggered is not None and job.spec.triggered.trigger == trigger
    ]
    return sorted(found, key=_number)


def _number(job: JobRecord) -> int:
    return job.spec.triggered.number if job.spec.triggered else 0


def _living(desired: DesiredState, trigger: str) -> list[JobRecord]:
    return [job for job in jobs_of(desired, trigger) if not job.status.phase.final]


def _forgotten(desired: DesiredState, job: JobRecord, state: TriggerState) -> Iterator[Decision]:
    """The oldest of its ended jobs go, so that there are no more of them for ever."""
    ended = [each for each in jobs_of(desired, job.name) if each.status.phase.final]
    count = state.forgotten
    for old in ended[: max(0, len(ended) - ENDED_KEPT)][:_FORGOTTEN_PER_LOOK]:
        count += 1
        how = old.status.phase.value
        yield Decision(
            ForgetJob(job.name, old.name, count),
            f"{old.name} has {how}; the last {ENDED_KEPT} that have ended stay",
        )


# --- what people are told -----------------------------------------------------------------------


def _status_of(
    job: JobRecord,
    on: Trigger,
    offsets: TopicOffsets | None,
    living: Sequence[JobRecord],
    now_s: float,
) -> RecordedStatus:
    phase, reason = _phase_and_reason(job, on, offsets, living)
    since_s = job.status.since_s if job.status.phase is phase else now_s
    return RecordedStatus(phase, reason, since_s)


def _phase_and_reason(
    job: JobRecord, on: Trigger, offsets: TopicOffsets | None, living: Sequence[JobRecord]
) -> tuple[Phase, str]:
    if job.intent.stops:
        return Phase.STOPPED, "stopped as its user asked; the jobs that it has started go on"
    if job.intent is Intent.PAUSE:
        return Phase.PAUSED, f"paused as its user asked; `holdfast resume {job.name}` goes on"
    rule = f"starts a job for {every_text(on)} of topic {on.topic}"
    if offsets is None or job.trigger is None:
        trouble = f"; {offsets.trouble}" if offsets is not None and offsets.trouble else ""
        return Phase.ADMITTED, f"{rule}, which is being asked for its offsets{trouble}"
    if offsets.trouble:
        return Phase.RUNNING, f"{rule}; {offsets.trouble}"
    if not offsets.incarnation:
        return Phase.ADMITTED, f"{rule}, which is not there: `holdfast topics create {on.topic}`"
    if len(offsets.begins) > PARTITIONS_MAX:
        many = f"{len(offsets.begins):,} partitions, and a job can be told at most"
        return Phase.ADMITTED, f"{rule}, but that has {many} {PARTITIONS_MAX:,} of them"
    if _has_shrunk(job.trigger, offsets):
        lost = f"topic {on.topic} has lost records that jobs were started for"
        return Phase.RUNNING, f"{rule}; waits: {lost}, and gives their offsets to others"
    told = f"; {job.trigger.started:,} started" if job.trigger.started else ""
    trimmed = job.trigger.trimmed
    told += f"; {trimmed:,} records were removed before their job" if trimmed else ""
    if len(living) >= on.at_once:
        names = ", ".join(each.name for each in living[:3])
        told += f"; the next waits for the end of {names}"
    return Phase.RUNNING, rule + told


def every_text(on: Trigger) -> str:
    """`each 10,000 records`, `what comes within 5m`."""
    count = on.every_records or 0
    by_count = "each record" if count == 1 else f"each {count:,} records"
    by_time = f"what comes within {duration_of(on.every_s or 0.0)}"
    if on.every_s is None:
        return by_count
    return f"{by_count}, or {by_time}," if on.every_records is not None else by_time
