"""What must always be true of desired state, observed state and decisions; cheap, always on.

The numbers are those of the design's list. 1 and most of 2 need terms and blobs, 5 needs samples:
the simulator checks those from the world's truth. What can be seen here:

- 2: a job that has succeeded by its last step has that step committed;
- 3: the committed step only grows, but for a checkpoint that nobody could read; a view never
  starts from a checkpoint while one of its members is known to hold the state, and never at all
  while checkpoints were committed of which none can be read back;
- 4: in a view every lane is held exactly once;
- 5: a commit is of the job's own view and has the share of each of its members;
- 6: no node has more placed on it than it has; capacity is free after the worker's end is seen;
- 7: a worker's number is used once, and a record that is applied twice changes nothing more.
"""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.control.decide.commands import (
    Command,
    CommitCheckpoint,
    Decision,
    Finish,
    MarkCheckpointUnreadable,
    Order,
    PlaceWorker,
    Record,
    StartWorker,
    UnplaceWorker,
    WriteView,
)
from holdfast.control.decide.facts import (
    Attempt,
    DesiredState,
    JobRecord,
    ObservedState,
    Phase,
    View,
    WorkerFacts,
    WorkerPhase,
)
from holdfast.control.decide.observed import ObservedJob, Reports, by_job, observe_job
from holdfast.control.decide.records import apply_to
from holdfast.control.decide.spec import Resources
from holdfast.wire.errors import BugError


def broken(number: int, what: str, why: str) -> BugError:
    return BugError(f"invariant {number} does not hold: {what}", why=why)


def check_view(job: JobRecord, view: View) -> None:
    """4, for one view."""
    held = sorted(lane for lanes in view.lanes.values() for lane in lanes)
    if held != list(range(job.spec.lanes)):
        raise broken(4, f"view {view.number} of {job.name}", f"it holds the lanes {held}")


def check_job(job: JobRecord) -> None:
    """What is true of a job at any time."""
    if job.view is not None:
        check_view(job, job.view)
    if job.spec.serves and (job.view or job.checkpoints or job.status.phase is Phase.SUCCEEDED):
        raise broken(4, f"{job.name} serves", "it has a view, a checkpoint or an end of its own")
    numbers = [placement.worker for placement in job.placements]
    if len(set(numbers)) != len(numbers) or any(n >= job.next_worker for n in numbers):
        raise broken(7, f"workers of {job.name}", f"{numbers}, the next is {job.next_worker}")
    lost = [one.checkpoint.step for one in job.unreadable]
    steps = [checkpoint.step for checkpoint in job.checkpoints] + lost
    if steps != sorted(set(steps)):
        raise broken(3, f"checkpoints of {job.name}", f"{steps} do not ascend")
    if job.status.phase.final and job.placements:
        raise broken(6, f"{job.name} has {job.status.phase.value}", f"with workers {numbers}")
    if job.finished_step is not None and job.finished_step != job.committed_step:
        why = f"step {job.finished_step} is its last, step {job.committed_step} is committed"
        raise broken(2, f"{job.name} is finished", why)
    if job.status.phase is Phase.SUCCEEDED and job.finished_step is job.finished_by is None:
        raise broken(2, f"{job.name} has succeeded", "and nothing shows that it was finished")


def check_capacity(desired: DesiredState, observed: ObservedState) -> None:
    """6: what is placed on a node, with whatever else lives there, is no more than it has."""
    taken: dict[str, Resources] = {}
    placed: set[tuple[str, int, str]] = set()
    for job in desired.jobs.values():
        for placement in job.placements:
            placed.add((job.name, placement.worker, placement.node))
            promised = taken.get(placement.node, Resources())
            taken[placement.node] = promised + job.spec.resources
    for node in observed.nodes.values():
        promised = taken.get(node.node, Resources())
        for facts in node.workers:
            known = desired.jobs.get(facts.job)
            orphan = (facts.job, facts.worker, node.node) not in placed
            if orphan and known is not None and facts.phase is not WorkerPhase.GONE:
                promised = promised + known.spec.resources
        if not promised.fits(node.capacity):
            raise broken(6, f"node {node.node}", f"{promised} is promised of {node.capacity}")


def check_change(before: JobRecord, after: JobRecord, records: Iterable[Record] = ()) -> None:
    """3 and 7, for a job before and after these records."""
    check_job(after)
    if before.status.phase.final and after.status.phase is not before.status.phase:
        raise broken(3, f"{before.name} has {before.status.phase.value}", "and has changed since")
    if after.next_worker < before.next_worker or after.attempts < before.attempts:
        raise broken(7, f"numbers of {before.name}", "one would be used again")
    old, new = (job.view.number if job.view else 0 for job in (before, after))
    if new < old:
        raise broken(3, f"view of {before.name}", f"{old}, then {new}")
    _check_trigger(before, after)
    unreadable = any(isinstance(record, MarkCheckpointUnreadable) for record in records)
    if after.committed_step < before.committed_step and not unreadable:
        steps = f"{before.committed_step}, then {after.committed_step}"
        raise broken(3, f"committed step of {before.name}", steps)


def _check_trigger(before: JobRecord, after: JobRecord) -> None:
    """A trigger's place in one and the same topic never goes back: none is given twice."""
    old, new = before.trigger, after.trigger
    if old is None or new is None or old.incarnation != new.incarnation or old.topic != new.topic:
        return
    kept = zip(old.positions, new.positions, strict=False)
    if len(new.positions) < len(old.positions) or any(now < then for then, now in kept):
        raise broken(7, f"the place of {before.name}", f"{old.positions}, then {new.positions}")


def check_decisions(
    desired: DesiredState, observed: ObservedState, decisions: Iterable[Decision]
) -> None:
    """3 to 7, for decisions and the snapshot that they follow from."""
    reports = by_job(observed)
    all_seen: dict[str, ObservedJob] = {}
    for decision in decisions:
        command = decision.command
        job = desired.jobs.get(command.job)
        if not decision.reason:
            raise BugError(f"a decision has no reason: {command}")
        if job is None:
            if not isinstance(command, Order):
                raise BugError(f"a record of a job that does not exist: {command}")
            continue
        if job.name not in all_seen:
            all_seen[job.name] = observe_job(job, reports.get(job.name, {}), observed)
        _check_command(all_seen[job.name], command, reports.get(job.name, {}), observed)


def _durable(reported: tuple[str, WorkerFacts] | None, attempt: Attempt) -> bool:
    return reported is not None and attempt.number in reported[1].parts


def _check_command(
    seen: ObservedJob, command: Command, reports: Reports, observed: ObservedState
) -> None:
    job = seen.job
    match command:
        case WriteView(view=view):
            check_view(job, view)
            if job.is_stranded:
                why = f"{len(job.unreadable)} checkpoints cannot be read, and nobody gave them up"
                raise broken(3, f"view {view.number} of {job.name}", why)
            holders = sorted(worker for worker in seen.holders if worker in view.lanes)
            if view.restore_step is not None and holders:
                raise broken(3, f"view {view.number} of {job.name}", f"{holders} hold the state")
            if view.restore_step is None and not holders:
                raise broken(3, f"view {view.number} of {job.name}", "nobody holds the state")
        case UnplaceWorker(worker=worker):
            if worker not in seen.gone:
                raise broken(6, f"room of worker {worker} of {job.name}", "its end was not seen")
        case CommitCheckpoint(attempt=attempt, parts=parts):
            lanes = job.view.lanes if job.view and job.view.number == attempt.view else {}
            said = {worker for worker in parts if _durable(reports.get(worker), attempt)}
            if set(parts) != set(lanes) or said != set(lanes):
                why = f"of {sorted(lanes)} only {sorted(said)} have reported their shares"
                raise broken(5, f"attempt {attempt.number} of {job.name}", why)
        case Finish(step=step):
            if step != seen.last_step or step != job.committed_step:
                why = f"step {step}: last is {seen.last_step}, committed {job.committed_step}"
                raise broken(2, f"the end of {job.name}", why)
        case PlaceWorker(placement=placement):
            if placement.worker < job.next_worker or placement.node not in observed.nodes:
                raise broken(6, f"worker {placement.worker} of {job.name}", str(placement))
        case StartWorker(worker=worker):
            if worker not in seen.living:
                raise broken(6, f"worker {worker} of {job.name}", "is started without a placement")
        case _:
            pass  # nothing about it could break an invariant by itself


def check_twice(desired: DesiredState, record: Record, now_s: float) -> None:
    """7, for a record: the second time changes nothing."""
    once = apply_to(desired, record, now_s=now_s)
    if apply_to(once, record, now_s=now_s) != once:
        raise broken(7, f"{type(record).__name__} of {record.job}", "twice is not the same as once")
