"""`python -m bench.control.plan`: what a plan costs as the cluster grows.

Each size has ten workers a job and a machine for every ten workers, in four queues and five
priorities. Four situations:

- `idle`    everyone has what it wants, and nothing is to be decided
- `busy`    the cluster is full, a tenth of the jobs wait, and nothing is to be decided
- `arrival` the same, and one job of the highest priority has just come
- `cold`    no worker is placed yet

The goal is the issue's: 10,000 workers below 100 ms when little changed.
"""

from __future__ import annotations

import argparse
import gc
import os
import platform
import statistics
import time
from dataclasses import replace

from holdfast.control.decide.facts import JobRecord, Phase, QueueQuota, RecordedStatus
from holdfast.control.decide.schedule import NodeCapacity, SchedulePlan, applied, plan
from holdfast.control.decide.spec import JobSpec, Resources

SIZES = (100, 1_000, 10_000)
GOAL_MS = 100.0
NEED = Resources(1.0, 1024**3)
WORKERS_A_JOB = 10
CPU_A_NODE = 10.0


class Workload:
    """A cluster of one size, and what is planned in it."""

    def __init__(self, workers: int) -> None:
        self.count = workers // WORKERS_A_JOB
        self.nodes = [
            NodeCapacity(f"node-{number:05}", Resources(CPU_A_NODE, 64 * 1024**3))
            for number in range(self.count)
        ]
        share = Resources(CPU_A_NODE * self.count / 8)
        self.queues = {f"q{number}": QueueQuota(f"q{number}", share) for number in range(4)}

    def job(self, number: int, least: int, most: int, priority: int) -> JobRecord:
        spec = JobSpec(
            f"job-{number:05}",
            ("python", "train.py"),
            queue=f"q{number % 4}",
            priority=priority,
            lanes=most,
            workers_min=least,
            workers_max=most,
            resources=NEED,
        )
        return JobRecord(spec, float(number), RecordedStatus(Phase.QUEUED, "new", float(number)))

    def cold(self) -> list[JobRecord]:
        return [self.job(n, 2, WORKERS_A_JOB, n % 5) for n in range(self.count)]

    def idle(self) -> list[JobRecord]:
        return self._settled(self.cold())

    def busy(self) -> list[JobRecord]:
        """Jobs that want twice what there is, and some that do not fit at all."""
        running = [self.job(n, 2, 2 * WORKERS_A_JOB, n % 5) for n in range(self.count)]
        waiting = [
            self.job(self.count + n, int(CPU_A_NODE) * self.count, 20 * self.count, 0)
            for n in range(self.count // 10)
        ]
        return self._settled(running + waiting)

    def arrival(self) -> list[JobRecord]:
        return [*self.busy(), self.job(2 * self.count, WORKERS_A_JOB, WORKERS_A_JOB, 9)]

    def plan(self, jobs: list[JobRecord]) -> SchedulePlan:
        return plan(jobs, self.nodes, self.queues, 1e5)

    def _settled(self, jobs: list[JobRecord]) -> list[JobRecord]:
        for _ in range(10):
            made = self.plan(jobs)
            if not made.changes:
                return jobs
            jobs = [_without_leavers(job) for job in applied(jobs, made)]
        raise SystemExit("the planner does not come to rest: the figures would mean nothing")


def _without_leavers(job: JobRecord) -> JobRecord:
    stays = tuple(placement for placement in job.placements if not placement.draining)
    phase = Phase.RUNNING if stays else Phase.QUEUED
    return replace(job, placements=stays, status=RecordedStatus(phase, "", job.status.since_s))


def measure_ms(workload: Workload, jobs: list[JobRecord], rounds: int) -> tuple[float, float]:
    """Median processor time and longest time by the clock of a plan, in milliseconds.

    A plan waits for nothing, so its processor time is what it takes on a core of its own; the
    clock also shows who else was busy.
    """
    used, took = [], []
    for _ in range(rounds):
        gc.collect()
        started, started_cpu = time.perf_counter(), time.process_time()
        workload.plan(jobs)
        used.append((time.process_time() - started_cpu) * 1_000)
        took.append((time.perf_counter() - started) * 1_000)
    return statistics.median(used), max(took)


HEADER = ("workers", "jobs", "nodes", "what", "median ms", "longest", "changes", "growth", "goal")
ROW = "{:>8} {:>6} {:>6}  {:8} {:>10} {:>8} {:>8} {:>7}  {}"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7, help="plans of each kind (default 7)")
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="numbers of workers")
    options = parser.parse_args()
    load = os.getloadavg()[0]
    print(f"Python {platform.python_version()}, {os.cpu_count()} cores, load {load:.1f} before")
    print("median: processor time; longest: by the clock, so it grows with the load")
    print(ROW.format(*HEADER))
    before: dict[str, float] = {}
    for workers in options.sizes:
        workload = Workload(workers)
        for what in ("idle", "busy", "arrival", "cold"):
            jobs = getattr(workload, what)()
            changes = sum(len(of.add) + len(of.drain) for of in workload.plan(jobs).jobs.values())
            median, longest = measure_ms(workload, jobs, options.rounds)
            growth = f"x{median / before[what]:.1f}" if what in before else ""
            verdict = "" if what == "cold" else ("reached" if median < GOAL_MS else "MISSED")
            figures = (f"{median:.2f}", f"{longest:.2f}", f"{changes:,}", growth, verdict)
            sizes = (f"{workers:,}", f"{len(jobs):,}", f"{len(workload.nodes):,}")
            print(ROW.format(*sizes, what, *figures))
            before[what] = median


if __name__ == "__main__":
    main()
