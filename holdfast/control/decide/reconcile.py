"""`reconcile(...)`: what to do next, each with a reason. Pure: no I/O, no clock, no chance.

Levels, not edges: one call looks at one snapshot and gives what brings it nearer to what is
wanted. The same snapshot gives the same decisions, in the same order. When all is as wanted there
are none.

What the coordinator around it may rely on, and what it must do:

- *Records* (writes) of a job follow from the snapshot alone, except that workers are numbered in
  the order of their `PlaceWorker`. Carry them out in order; after one that failed or whose outcome
  is not known, read the desired state again before deciding again.
- *Orders* follow from what is already written: a worker is started in the snapshot after the one
  in which it was placed, a view is given when it is written. So an order never runs ahead of the
  record that it carries out. Orders are outstanding until the agent's report shows them done: the
  coordinator sends one again only if the agent may have lost it (a new connection, or a time-out).
- An order belongs to the session of the agent that it was sent in. An agent that comes back in a
  new session must not obey what was sent in the old one: its room may be promised by then.
- Room: a placement holds its room until its worker's end was reported (`UnplaceWorker`), or its
  node is not there any more. If that node comes back, its worker is an orphan: it is stopped, then
  forgotten, and until then `node_capacities` does not count its room as free. (A replica that
  answers is stopped when it has been replaced.)
- A node that is alive but has not reported to this leader (`ObservedState.unreported`) is left
  alone. As long as there is one, the plan was made without knowing all machines: it takes no worker
  away.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Final

from holdfast.control.decide import checkpoints, lifecycle, membership, serving, updating
from holdfast.control.decide.commands import (
    CommitCheckpoint,
    Decision,
    DrainWorker,
    Finish,
    Forget,
    GiveSettings,
    PlaceWorker,
    SetStatus,
    StartWorker,
    StopWorker,
    UnplaceWorker,
    WriteView,
)
from holdfast.control.decide.facts import (
    DesiredState,
    JobRecord,
    ObservedState,
    Placement,
    WorkerPhase,
)
from holdfast.control.decide.lifecycle import Departure
from holdfast.control.decide.observed import ObservedJob, Reports, by_job, observe_job
from holdfast.control.decide.plans import JobPlan, NodeCapacity, SchedulePlan
from holdfast.control.decide.spans import lasts
from holdfast.control.decide.spec import JobSpec, Network, Resources
from holdfast.wire import worker_messages
from holdfast.wire.limits import REPLICA_NOTICE_S, VIEW_WAIT_S
from holdfast.wire.triggers import TRIGGER_VARIABLE

# A worker that nobody wants any more has nothing to save.
ORPHAN_NOTICE_S: Final = 5.0


def reconcile(
    desired: DesiredState, observed: ObservedState, now_s: float, plan: SchedulePlan
) -> list[Decision]:
    """The decisions for all jobs, and for workers that belong to none."""
    reports = by_job(observed)
    decisions: list[Decision] = []
    for name, job in desired.jobs.items():
        of_job = plan.of(name)
        if observed.unreported and of_job.drain:
            of_job = replace(of_job, drain=())
        decisions += reconcile_job(job, reports.pop(name, {}), observed, now_s, of_job)
    for name in sorted(reports):
        decisions += orphans(name, None, reports[name])
    return decisions


def reconcile_job(
    job: JobRecord, reports: Reports, observed: ObservedState, now_s: float, plan: JobPlan
) -> list[Decision]:
    """The decisions for one job."""
    seen = observe_job(job, reports, observed)
    decisions = list(_records(seen, reports, observed, now_s, plan))
    if job.placements:
        decisions += _starts(seen)
        decisions += _settings(seen)  # before the view in which they are to be known
        decisions += membership.send_view(seen)
        decisions += checkpoints.shares(seen)
    if len(reports) != len(seen.facts):
        kept = serving.kept_orphans(seen, reports, plan) if job.spec.serves else frozenset[int]()
        decisions += orphans(job.name, job, reports, kept)
    return decisions


def node_capacities(desired: DesiredState, observed: ObservedState) -> tuple[NodeCapacity, ...]:
    """What the scheduler may hand out: each node that is there, less what its orphans still use."""
    placed = {
        (job.name, placement.worker): placement.node
        for job in desired.jobs.values()
        for placement in job.placements
    }
    found = []
    for node in observed.nodes.values():
        capacity = node.capacity
        for facts in node.workers:
            if facts.phase is WorkerPhase.GONE:
                continue
            if placed.get((facts.job, facts.worker)) != node.node:
                job = desired.jobs.get(facts.job)
                # Nobody knows what a worker of a removed job takes: perhaps everything.
                capacity = capacity - job.spec.resources if job else Resources()
        draining, knows_disk = node.node in desired.draining_nodes, node.capacity.disk_bytes > 0
        found.append(NodeCapacity(node.node, capacity, draining, knows_disk))
    return tuple(found)


# --- records --------------------------------------------------------------------------------


def _records(
    seen: ObservedJob, reports: Reports, observed: ObservedState, now_s: float, plan: JobPlan
) -> Iterator[Decision]:
    job = seen.job
    if job.status.phase.final:
        return
    recovered = checkpoints.recover(seen)
    if recovered is not None:
        yield recovered
        return  # all else follows from what is there then
    cause = lifecycle.departure(seen, plan, now_s)
    last = lifecycle.finished_step(seen)
    if last is not None and job.finished_step is None:
        yield Decision(Finish(job.name, last), f"finished: step {last} is committed")
    yield from _remove_unreachable(seen)
    end, following = _end_and_next(seen, reports, cause, now_s)
    if end is not None:
        yield end
    # Whoever a view leaves out as gone is first put on record as gone. Otherwise, if the leader
    # died in between, it could come back with its node, placed and with the state.
    yield from _unplace(seen, now_s)
    if following is not None:
        yield following
    yield from _place_and_drain(seen, observed, cause, now_s, plan)
    yield from checkpoints.drops(seen)
    status = lifecycle.status_of(seen, plan, cause, now_s)
    if status != job.status:
        yield Decision(SetStatus(job.name, status), status.reason)


def _unplace(seen: ObservedJob, now_s: float) -> Iterator[Decision]:
    counted = False
    for worker in seen.gone:
        end = lifecycle.end_of(seen, worker)
        failure = None if counted else lifecycle.failure_of(seen, worker, end, now_s)
        counted = (counted or failure is not None) and not seen.job.spec.serves
        said = f": {lifecycle.bounded(end.detail)}" if end.detail else ""
        reason = f"worker {worker} is gone ({end.kind.value}){said}"
        early = lifecycle.unfinished(seen, worker, end)
        if early and not seen.job.spec.serves:
            reason += "; it was asked to leave before the last step was committed"
        yield Decision(UnplaceWorker(seen.job.name, worker, end, failure, early), reason)


def _remove_unreachable(seen: ObservedJob) -> Iterator[Decision]:
    """Members whom others cannot reach leave. On record before the view without them: otherwise,
    if the leader died in between, they would be taken for those who are ready to join."""
    for worker, why in sorted(membership.unreachable_members(seen).items()):
        if worker not in seen.leaving:
            yield Decision(
                DrainWorker(seen.job.name, worker, why), f"worker {worker} leaves: {why}"
            )


def _end_and_next(
    seen: ObservedJob, reports: Reports, cause: Departure | None, now_s: float
) -> tuple[Decision | None, Decision | None]:
    """The end of the attempt under way; and the next view, or else the next attempt.

    A commit goes alone: it may fail, and a view may have to start from what it commits. But those
    who hold the state do not wait for a store that cannot be reached.
    """
    if seen.job.spec.serves:
        return None, None
    unreadable = checkpoints.mark_unreadable(seen)
    if unreadable is not None:
        return unreadable, None  # the view that starts from the one before follows upon it
    wanted = membership.wanted_members(seen)
    view = membership.next_view(seen, wanted, now_s)
    end = checkpoints.conclude(seen, reports, now_s)
    if end is not None and isinstance(end.command, CommitCheckpoint):
        hurry = view is not None and seen.holders
        if not hurry or lasts(end.command.attempt.since_s, VIEW_WAIT_S, now_s):
            return end, None
        end = None
    if view is not None:
        assert isinstance(view.command, WriteView)
        return end or checkpoints.give_up_for_view(seen, view.command.view.number), view
    if seen.job.attempt is not None or wanted != seen.members:
        return end, None
    if cause is not None and lifecycle.may_leave(seen, cause, now_s)[0]:
        return end, None
    return end, checkpoints.begin(seen, cause is not None and cause.saves, now_s)


def _place_and_drain(
    seen: ObservedJob, observed: ObservedState, cause: Departure | None, now_s: float, plan: JobPlan
) -> Iterator[Decision]:
    job = seen.job
    if cause is not None:
        leave, why = lifecycle.may_leave(seen, cause, now_s)
        holders = seen.holders
        for worker, placement in seen.living.items():
            useless = job.finished_by is not None and worker not in holders
            if not placement.draining and (leave or useless):
                reason = f"worker {worker} leaves: {cause.reason} ({why})"
                yield Decision(DrainWorker(job.name, worker, cause.reason), reason)
        return
    if seen.last_step is None and not plan.held:
        worker = job.next_worker
        for add in plan.add[: lifecycle.may_start(job, len(plan.add), now_s)]:
            if add.node in observed.nodes:
                revision = job.wanted_revision
                placed = Placement(worker, add.node, since_s=now_s, revision=revision)
                yield Decision(PlaceWorker(job.name, placed), f"worker {worker}: {add.reason}")
                worker += 1
    if job.is_updating and not plan.held:
        yield from updating.steps(seen, plan, now_s)
    for out in plan.drain:
        found = seen.living.get(out.worker)
        if job.spec.serves and serving.stays_yet(seen, out.worker, plan, now_s):
            continue
        if found is not None and not found.draining:
            reason = f"worker {out.worker} leaves: {out.reason}"
            yield Decision(DrainWorker(job.name, out.worker, out.reason), reason)


# --- orders ---------------------------------------------------------------------------------


def _starts(seen: ObservedJob) -> Iterator[Decision]:
    """Start what is placed and not reported. What leaves already is stopped instead (`tell`): the
    agent then knows that it must never start it, however late an older order arrives."""
    job = seen.job
    for worker in sorted(seen.living.keys() - seen.facts.keys() - seen.leaving):
        placement = seen.living[worker]
        if worker in seen.unreported:
            continue
        spec = job.spec_of(placement)
        order = StartWorker(
            node=placement.node,
            job=job.name,
            worker=worker,
            bundle=spec.bundle,
            command=spec.command,
            resources=spec.resources,
            environment=_environment(spec),
            silence_s=spec.silence_s,
            queue=spec.queue,
            ports=spec.ports,
            ready=spec.ready,
            live=spec.live,
            references=spec.secrets,
            requirements=spec.requirements,
        )
        yield Decision(order, f"worker {worker} is placed on {placement.node}, not reported there")


def _environment(spec: JobSpec) -> Mapping[str, str]:
    first = {
        **spec.env,
        worker_messages.LANES_VARIABLE: str(spec.lanes),
        worker_messages.MODE_VARIABLE: spec.mode.value,
    }
    if spec.network is Network.TRUSTED:
        first[worker_messages.NETWORK_VARIABLE] = spec.network.value
    if spec.log_topic:
        first[worker_messages.LOG_TOPIC_VARIABLE] = "1"
    if spec.triggered is not None:
        first[TRIGGER_VARIABLE] = spec.triggered.text()
    if spec.settings:
        first[worker_messages.SETTINGS_VARIABLE] = json.dumps(dict(spec.settings), sort_keys=True)
    return first


def _settings(seen: ObservedJob) -> Iterator[Decision]:
    """The settings of the job file from the first step on, then those changed at run time."""
    job = seen.job
    if not job.spec.settings and not job.settings:
        return
    known = tuple((s.name, s.value, s.at_step) for s in membership.settings_of(job))
    for worker, placement in seen.living.items():
        facts = seen.facts.get(worker)
        if facts is not None and facts.settings < len(known):
            yield Decision(
                GiveSettings(placement.node, job.name, worker, known),
                f"worker {worker} knows {facts.settings} of {len(known)} settings",
            )


def orphans(
    name: str, job: JobRecord | None, reports: Reports, kept: frozenset[int] = frozenset()
) -> Iterator[Decision]:
    """Workers that are reported and not placed: stop them, but for those that are `kept` for now;
    take note of those that have ended."""
    placed = {p.worker: p.node for p in job.placements} if job else {}
    for worker in sorted(reports):
        node, facts = reports[worker]
        if placed.get(worker) == node:
            continue
        if facts.phase is WorkerPhase.GONE:
            yield Decision(Forget(node, name, worker), f"the end of worker {worker} is on record")
        elif worker not in kept and (job is None or worker < job.next_worker):
            # A number that was not given yet: the report is newer than what we read. It can wait.
            reason = f"worker {worker} on {node} is not wanted any more"
            # A replica is still asked by gateways, whoever has placed it.
            notice_s = REPLICA_NOTICE_S if job and job.spec.serves else ORPHAN_NOTICE_S
            yield Decision(StopWorker(node, name, worker, notice_s), reason)
