"""`python -m bench.control.reconcile [--json]`: the time of one tick, and how it grows.

The cluster runs steadily with ten workers a job and a node for every ten workers. Then:

- `quiet`: nothing has changed;
- `1 % died`: one worker in a hundred has gone;
- `checkpoint`: every job has an attempt under way, so that every worker has an order outstanding;
- `one report`: nothing has changed but the report of one node, and what was decided before is
  remembered (`Reconciler`).

Also one job with all workers: the widest view that there can be. Times are of the processor (median
of fifteen): the function does nothing else, and other work on the machine does not disturb them.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import replace

from holdfast.control.decide.facts import (
    Attempt,
    DesiredState,
    Exit,
    ExitKind,
    JobRecord,
    NodeFacts,
    ObservedState,
    Phase,
    Placement,
    RecordedStatus,
    View,
    WorkerFacts,
    WorkerPhase,
)
from holdfast.control.decide.incremental import Reconciler
from holdfast.control.decide.plans import SchedulePlan
from holdfast.control.decide.reconcile import reconcile
from holdfast.control.decide.spec import JobSpec, Resources
from holdfast.control.decide.views import assign

SIZES = (100, 1_000, 10_000)
NOW_S = 1_000.0
WORKERS_A_NODE = 10


def cluster(workers: int, workers_a_job: int) -> tuple[DesiredState, ObservedState]:
    """A cluster in which all is as wanted."""
    jobs: dict[str, JobRecord] = {}
    on_node: dict[str, list[WorkerFacts]] = {}
    for first in range(0, workers, workers_a_job):
        name = f"job-{first // workers_a_job}"
        numbers = range(1, workers_a_job + 1)
        view = View(3, assign(workers_a_job, numbers, {}))
        placements = []
        for number in numbers:
            node = f"node-{(first + number - 1) // WORKERS_A_NODE}"
            placements.append(Placement(number, node))
            facts = WorkerFacts(name, number, WorkerPhase.RUNNING, 3, 500)
            on_node.setdefault(node, []).append(facts)
        spec = JobSpec(name, ("train",), lanes=workers_a_job, workers_max=workers_a_job)
        running = "on 1 worker" if workers_a_job == 1 else f"on {workers_a_job} workers"
        jobs[name] = JobRecord(
            spec,
            submitted_s=NOW_S - 10.0,
            status=RecordedStatus(Phase.RUNNING, running, NOW_S - 5.0),
            next_worker=workers_a_job + 1,
            placements=tuple(placements),
            view=view,
            attempts=1,
        )
    capacity = Resources(cpu=float(WORKERS_A_NODE))
    nodes = {node: NodeFacts(node, capacity, tuple(found)) for node, found in on_node.items()}
    return DesiredState(jobs=jobs), ObservedState(nodes)


def with_deaths(observed: ObservedState) -> ObservedState:
    """One worker in a hundred has been killed."""
    nodes = dict(observed.nodes)
    gone = Exit(ExitKind.SIGNAL)
    for node, facts in list(nodes.items())[::10]:
        first, *rest = facts.workers
        dead = replace(first, phase=WorkerPhase.GONE, exit=gone)
        nodes[node] = replace(facts, workers=(dead, *rest))
    return ObservedState(nodes)


def with_attempts(desired: DesiredState) -> DesiredState:
    """A checkpoint of every job is under way."""
    attempt = Attempt(1, 505, 3, NOW_S - 1.0)
    jobs = {name: replace(job, attempt=attempt) for name, job in desired.jobs.items()}
    return replace(desired, jobs=jobs)


def measure_ms(act: Callable[[], object], times: int = 15) -> float:
    """The median; collected before, so that one case does not pay for another's rubbish."""
    gc.collect()
    taken = []
    for _ in range(times):
        begin = time.process_time()
        act()
        taken.append((time.process_time() - begin) * 1_000)
    return statistics.median(taken)


def row(workers: int, workers_a_job: int) -> dict[str, float | int]:
    desired, observed = cluster(workers, workers_a_job)
    plan = SchedulePlan()
    quiet = reconcile(desired, observed, NOW_S, plan)
    assert not quiet, f"not as wanted: {quiet[0]}"
    dead, busy = with_deaths(observed), with_attempts(desired)
    reconciler = Reconciler()

    def one_report() -> None:
        node = "node-0"
        nodes = {**observed.nodes, node: replace(observed.nodes[node])}
        reconciler.reconcile(desired, ObservedState(nodes), NOW_S, plan)

    return {
        "workers": workers,
        "jobs": workers // workers_a_job,
        "quiet_ms": measure_ms(lambda: reconcile(desired, observed, NOW_S, plan)),
        "one_report_ms": measure_ms(one_report),
        "one_died_ms": measure_ms(lambda: reconcile(desired, dead, NOW_S, plan)),
        "one_died_decisions": len(reconcile(desired, dead, NOW_S, plan)),
        "checkpoint_ms": measure_ms(lambda: reconcile(busy, observed, NOW_S, plan)),
        "checkpoint_decisions": len(reconcile(busy, observed, NOW_S, plan)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Time one tick of reconcile.")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    arguments = parser.parse_args()
    rows = [row(workers, 10) for workers in SIZES] + [row(SIZES[-1], SIZES[-1])]
    if arguments.json:
        print(json.dumps({"bench": "reconcile", "rows": rows}))
        return
    print("workers   jobs  quiet ms  one report ms  1 % died ms (decisions)  checkpoint ms (dec.)")
    for one in rows:
        print(
            f"{one['workers']:7} {one['jobs']:6} {one['quiet_ms']:9.2f} "
            f"{one['one_report_ms']:14.2f} "
            f"{one['one_died_ms']:12.2f} ({one['one_died_decisions']:5}) "
            f"{one['checkpoint_ms']:18.2f} ({one['checkpoint_decisions']:5})"
        )


if __name__ == "__main__":
    main()
