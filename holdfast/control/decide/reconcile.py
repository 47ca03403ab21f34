"""`reconcile(...)`: what to do next, each with a reason. Pure: no I/O, no clock, no chance.

Levels, not edges: one call looks at one snapshot and gives what brings it nearer to what is
wanted. The same snapshot gives the same decisions, in the same order. When all is as wanted there
are none.

What the coordinator around it may rely on, and what it must do:

- *Records* (writes) of a job follow from the snapshot alone, except that workers are numbered in
  the order of their `Place`. Carry them out in order; after one that failed or whose outcome is
  not known, read the desired state again before deciding again.
- *Orders* follow from what is already written: a worker is started in the snapshot after the one
  in which it was placed, a view is given when it is written. So an order never runs ahead of the
  record that it carries out. Orders are outstanding until the agent's report shows them done: the
  coordinator sends one again only if the agent may have lost it (a new connection, or a time-out).
- An order belongs to the session of the agent that it was sent in. An agent that comes back in a
  new session must not obey what was sent in the old one: its room may be promised by then.
- Room: a placement holds its room until its worker's end was reported (`Unplace`), or its node is
  not there any more. If that node comes back, its worker is a stray: it is stopped, then
  forgotten, and until then `node_rooms` does not count its room as free. (A replica that answers
  is stopped when it has been replaced.)
- A node that is alive but has not reported to this leader (`Observed.unheard`) is left alone. As
  long as there is one, the plan was made without knowing all machines: it takes no worker away.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Final

from holdfast.control.decide import checkpoints, life, membership, serving, updating
from holdfast.control.decide.commands import (
    CommitCheckpoint,
    Decision,
    Drain,
    Finish,
    Forget,
    GiveSettings,
    Place,
    SetStatus,
    StartWorker,
    StopWorker,
    Unplace,
    WriteView,
)
from holdfast.control.decide.facts import Desired, Job, Observed, Placement, WorkerPhase
from holdfast.control.decide.life import Departure
from holdfast.control.decide.plans import JobPlan, NodeRoom, Plan
from holdfast.control.decide.sight import Reports, Sight, by_job, look
from holdfast.control.decide.spans import lasts
from holdfast.control.decide.spec import JobSpec, Network, Resources
from holdfast.wire import talk
from holdfast.wire.limits import REPLICA_NOTICE_S, VIEW_WAIT_S

# A worker that nobody wants any more has nothing to save.
STRAY_NOTICE_S: Final = 5.0


def reconcile(desired: Desired, observed: Observed, now_s: float, plan: Plan) -> list[Decision]:
    """The decisions for all jobs, and for workers that belong to none."""
    reports = by_job(observed)
    decisions: list[Decision] = []
    for name, job in desired.jobs.items():
        of_job = plan.of(name)
        if observed.unheard and of_job.drain:
            of_job = replace(of_job, drain=())
        decisions += reconcile_job(job, reports.pop(name, {}), observed, now_s, of_job)
    for name in sorted(reports):
        decisions += strays(name, None, reports[name])
    return decisions


def reconcile_job(
    job: Job, reports: Reports, observed: Observed, now_s: float, plan: JobPlan
) -> list[Decision]:
    """The decisions for one job."""
    sight = look(job, reports, observed)
    decisions = list(_records(sight, reports, observed, now_s, plan))
    if job.placements:
        decisions += _starts(sight)
        decisions += _settings(sight)  # before the view in which they are to be known
        decisions += membership.tell(sight)
        decisions += checkpoints.shares(sight)
    if len(reports) != len(sight.facts):
        kept = serving.kept_strays(sight, reports, plan) if job.spec.serves else frozenset[int]()
        decisions += strays(job.name, job, reports, kept)
    return decisions


def node_rooms(desired: Desired, observed: Observed) -> tuple[NodeRoom, ...]:
    """What the scheduler may hand out: each node that is there, less what its strays still use."""
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
        found.append(NodeRoom(node.node, capacity, draining, knows_disk))
    return tuple(found)


# --- records --------------------------------------------------------------------------------


def _records(
    sight: Sight, reports: Reports, observed: Observed, now_s: float, plan: JobPlan
) -> Iterator[Decision]:
    job = sight.job
    if job.status.phase.final:
        return
    recovered = checkpoints.recover(sight)
    if recovered is not None:
        yield recovered
        return  # all else follows from what is there then
    cause = life.departure(sight, plan, now_s)
    last = life.finished_step(sight)
    if last is not None and job.finished_step is None:
        yield Decision(Finish(job.name, last), f"finished: step {last} is committed")
    yield from _cast_out(sight)
    end, following = _end_and_next(sight, reports, cause, now_s)
    if end is not None:
        yield end
    # Whoever a view leaves out as gone is first put on record as gone. Otherwise, if the leader
    # died in between, it could come back with its node, placed and with the state.
    yield from _unplace(sight, now_s)
    if following is not None:
        yield following
    yield from _place_and_drain(sight, observed, cause, now_s, plan)
    yield from checkpoints.drops(sight)
    status = life.status_of(sight, plan, cause, now_s)
    if status != job.status:
        yield Decision(SetStatus(job.name, status), status.reason)


def _unplace(sight: Sight, now_s: float) -> Iterator[Decision]:
    counted = False
    for worker in sight.gone:
        end = life.end_of(sight, worker)
        failure = None if counted else life.failure_of(sight, worker, end, now_s)
        counted = (counted or failure is not None) and not sight.job.spec.serves
        said = f": {life.bounded(end.detail)}" if end.detail else ""
        reason = f"worker {worker} is gone ({end.kind.value}){said}"
        early = life.unfinished(sight, worker, end)
        if early and not sight.job.spec.serves:
            reason += "; it was asked to leave before the last step was committed"
        yield Decision(Unplace(sight.job.name, worker, end, failure, early), reason)


def _cast_out(sight: Sight) -> Iterator[Decision]:
    """Members whom others cannot reach leave. On record before the view without them: otherwise,
    if the leader died in between, they would be taken for those who are ready to join."""
    for worker, why in sorted(membership.outcasts(sight).items()):
        if worker not in sight.leaving:
            yield Decision(Drain(sight.job.name, worker, why), f"worker {worker} leaves: {why}")


def _end_and_next(
    sight: Sight, reports: Reports, cause: Departure | None, now_s: float
) -> tuple[Decision | None, Decision | None]:
    """The end of the attempt under way; and the next view, or else the next attempt.

    A commit goes alone: it may fail, and a view may have to start from what it commits. But those
    who hold the state do not wait for a store that cannot be reached.
    """
    if sight.job.spec.serves:
        return None, None
    condemned = checkpoints.condemn(sight)
    if condemned is not None:
        return condemned, None  # the view that starts from the one before follows upon it
    wanted = membership.wanted_members(sight)
    view = membership.next_view(sight, wanted, now_s)
    end = checkpoints.conclude(sight, reports, now_s)
    if end is not None and isinstance(end.command, CommitCheckpoint):
        hurry = view is not None and sight.holders
        if not hurry or lasts(end.command.attempt.since_s, VIEW_WAIT_S, now_s):
            return end, None
        end = None
    if view is not None:
        assert isinstance(view.command, WriteView)
        return end or checkpoints.give_up_for_view(sight, view.command.view.number), view
    if sight.job.attempt is not None or wanted != sight.members:
        return end, None
    if cause is not None and life.may_leave(sight, cause, now_s)[0]:
        return end, None
    return end, checkpoints.begin(sight, cause is not None and cause.saves, now_s)


def _place_and_drain(
    sight: Sight, observed: Observed, cause: Departure | None, now_s: float, plan: JobPlan
) -> Iterator[Decision]:
    job = sight.job
    if cause is not None:
        leave, why = life.may_leave(sight, cause, now_s)
        holders = sight.holders
        for worker, placement in sight.living.items():
            useless = job.finished_by is not None and worker not in holders
            if not placement.draining and (leave or useless):
                reason = f"worker {worker} leaves: {cause.reason} ({why})"
                yield Decision(Drain(job.name, worker, cause.reason), reason)
        return
    if sight.last_step is None and not plan.held:
        worker = job.next_worker
        for add in plan.add[: life.may_start(job, len(plan.add), now_s)]:
            if add.node in observed.nodes:
                revision = job.wanted_revision
                placed = Placement(worker, add.node, since_s=now_s, revision=revision)
                yield Decision(Place(job.name, placed), f"worker {worker}: {add.reason}")
                worker += 1
    if job.is_updating and not plan.held:
        yield from updating.steps(sight, plan, now_s)
    for out in plan.drain:
        found = sight.living.get(out.worker)
        if job.spec.serves and serving.stays_yet(sight, out.worker, plan, now_s):
            continue
        if found is not None and not found.draining:
            reason = f"worker {out.worker} leaves: {out.reason}"
            yield Decision(Drain(job.name, out.worker, out.reason), reason)


# --- orders ---------------------------------------------------------------------------------


def _starts(sight: Sight) -> Iterator[Decision]:
    """Start what is placed and not reported. What leaves already is stopped instead (`tell`): the
    agent then knows that it must never start it, however late an older order arrives."""
    job = sight.job
    for worker in sorted(sight.living.keys() - sight.facts.keys() - sight.leaving):
        placement = sight.living[worker]
        if worker in sight.unheard:
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
        talk.LANES_VARIABLE: str(spec.lanes),
        talk.MODE_VARIABLE: spec.mode.value,
    }
    if spec.network is Network.TRUSTED:
        first[talk.NETWORK_VARIABLE] = spec.network.value
    if spec.settings:
        first[talk.SETTINGS_VARIABLE] = json.dumps(dict(spec.settings), sort_keys=True)
    return first


def _settings(sight: Sight) -> Iterator[Decision]:
    """The settings of the job file from the first step on, then those changed at run time."""
    job = sight.job
    if not job.spec.settings and not job.settings:
        return
    known = tuple((s.name, s.value, s.at_step) for s in membership.settings_of(job))
    for worker, placement in sight.living.items():
        facts = sight.facts.get(worker)
        if facts is not None and facts.settings < len(known):
            yield Decision(
                GiveSettings(placement.node, job.name, worker, known),
                f"worker {worker} knows {facts.settings} of {len(known)} settings",
            )


def strays(
    name: str, job: Job | None, reports: Reports, kept: frozenset[int] = frozenset()
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
            notice_s = REPLICA_NOTICE_S if job and job.spec.serves else STRAY_NOTICE_S
            yield Decision(StopWorker(node, name, worker, notice_s), reason)
