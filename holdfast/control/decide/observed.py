"""A job together with what agents report of its workers: what every decision looks at. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from holdfast.control.decide.facts import (
    JobRecord,
    ObservedState,
    Placement,
    WorkerFacts,
    WorkerPhase,
)

NO_LANES: Mapping[int, tuple[int, ...]] = {}
Reports = Mapping[int, tuple[str, WorkerFacts]]  # worker -> the node that reports it, and what


def by_job(observed: ObservedState) -> dict[str, dict[int, tuple[str, WorkerFacts]]]:
    """The same reports, found by job and worker."""
    found: dict[str, dict[int, tuple[str, WorkerFacts]]] = {}
    for node in observed.nodes.values():
        for facts in node.workers:
            of_job = found.get(facts.job)
            if of_job is None:
                of_job = found[facts.job] = {}
            of_job[facts.worker] = (node.node, facts)
    return found


@dataclass(frozen=True, slots=True)
class ObservedJob:
    """One job in one snapshot; made by `look`, which goes over the workers once."""

    job: JobRecord
    facts: Mapping[int, WorkerFacts]  # what is reported of placed workers
    gone: Mapping[int, Placement]  # placed; the end was reported, or the node is not there any more
    living: Mapping[int, Placement]  # all other placed workers
    unreported: frozenset[int]  # living, but their agent has not told us anything yet
    members: frozenset[int]  # who is in the job's view, alive or not
    survivors: frozenset[int]  # members that are not gone
    holders: frozenset[int]  # living, and known to hold the state: also if not in the view any more
    step: int  # the most advanced step that is known: of a worker, or of a committed checkpoint
    adopted: bool  # every member lives, has adopted the view, and holds the state
    leaving: frozenset[int]  # living and draining
    all_leave: bool  # nobody who is to stay is left
    last_step: int | None  # `step`, if somebody who lives holds it and says that it is the last
    accusers: frozenset[int]  # living, and there are members whom they cannot reach
    forgotten: frozenset[int] = frozenset()  # gone: members of whom their agent knows nothing
    store: str = ""  # what is wrong with the store of checkpoints and code, for people


def observe_job(job: JobRecord, reports: Reports, observed: ObservedState) -> ObservedJob:
    """What is seen of `job`. A report by a node where the worker is not placed does not count."""
    facts: dict[int, WorkerFacts] = {}
    gone, living = dict[int, Placement](), dict[int, Placement]()
    unreported: list[int] = []
    holders: list[int] = []
    leaving: list[int] = []
    accusers: list[int] = []
    last_step = -1
    lanes = job.view.lanes if job.view else NO_LANES
    view_number = job.view.number if job.view else 0
    step, adopted = job.committed_step, 0
    serves = job.spec.serves  # then a step means nothing
    for placement in job.placements:
        worker, node = placement.worker, placement.node
        reported = reports.get(worker)
        if reported is not None and reported[0] == node:
            said = facts[worker] = reported[1]
            if said.step is not None and said.step > step and not serves:
                step = said.step
            if said.phase is WorkerPhase.GONE:
                gone[worker] = placement
                continue
            if said.step is not None and not serves:
                holders.append(worker)
                if said.ending and said.step > last_step:
                    last_step = said.step
                if said.view >= view_number and worker in lanes:
                    adopted += 1
            if said.suspects:
                accusers.append(worker)
        elif node in observed.unreported:
            unreported.append(worker)
        elif node not in observed.nodes or worker in lanes:
            # A member was reported before it became one. Its agent's journal is lost since, and the
            # agent has ended it: to start it again would be another worker of the same number.
            gone[worker] = placement
            continue
        living[worker] = placement
        if placement.draining:
            leaving.append(worker)
    members = frozenset(lanes)
    return ObservedJob(
        job,
        facts,
        gone,
        living,
        frozenset(unreported),
        members,
        members & living.keys(),
        frozenset(holders),
        step,
        job.view is not None and adopted == len(members),
        frozenset(leaving),
        len(leaving) == len(living),
        last_step if last_step == step else None,
        frozenset(accusers),
        frozenset(one for one in gone if one not in facts and gone[one].node in observed.nodes),
        observed.store,
    )
