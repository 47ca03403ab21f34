"""How long nobody leads: `python -m bench.control.failover`.

A leader is killed (SIGKILL) in the moment in which a worker dies. Measured, from the kill: until a
standby has won its term, until its first order reaches an agent, and until the worker's place is
taken by a new one. Most of it is the session's time-out, which is printed beside it. And, apart
from that: how long a new leader needs to read the facts of many jobs.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import threading
import time
from pathlib import Path

from bench.coordination.machine import load_average
from holdfast.control.decide.spec import JobSpec
from holdfast.control.store import layout
from holdfast.control.store.ledger import Ledger
from holdfast.control.store.plane import ControlPlane
from holdfast.coordination import Election, Session, connect
from holdfast.wire.reports import ExitKind
from tests.contract.field import Field, Process
from tests.waiting import eventually

SPEC = JobSpec("train", ("true",), lanes=4, workers_min=1, workers_max=3)


def failovers(folder: Path, timeout_s: float, rounds: int) -> None:
    address = f"embedded:{folder}/plane?timeout_s={timeout_s}&tick_ms=250&linger_s=5"
    took: list[tuple[float, float, float]] = []
    with connect(address) as session:
        control = ControlPlane(session)
        election = Election(session, layout.LEADER)
        with Field(folder, control, ("a", "b"), steps=10**9) as field:
            control.submit(SPEC)
            processes = [Process(address, field, f"c{n}") for n in range(2)]
            try:
                for number in range(rounds):
                    took.append(failover(field, election, processes))
                    processes.append(Process(address, field, f"d{number}"))
            finally:
                for process in processes:
                    process.end()
    print(f"session time-out {timeout_s:g} s, {rounds} kills, embedded server")
    said = ("a standby has won", "its first order is there", "the dead worker is replaced")
    for what, each_s in zip(said, zip(*took, strict=True), strict=True):
        median_s, worst_s = statistics.median(each_s), max(each_s)
        print(f"  {what:<28} median {median_s:6.3f} s   worst {worst_s:6.3f} s")


def failover(
    field: Field, election: Election, processes: list[Process]
) -> tuple[float, float, float]:
    """Kill the leader and a worker; from then until a term, an order, and a new worker."""
    eventually(lambda: len(field.world.alive("train")) == 3, "it runs", 120)
    eventually(lambda: len(election.candidates()) == 2, "there is a standby")
    leader = election.current_leader()
    assert leader is not None
    workers = len(field.starts)
    (doomed,) = [process for process in processes if process.name == leader.name]
    began_s = time.monotonic()
    doomed.kill()
    with field.lock:
        next(iter(field.world.alive("train").values())).end(ExitKind.SIGNAL)
    eventually(lambda: _term(election) > leader.term, "a term")
    won_s = time.monotonic() - began_s
    eventually(lambda: field.term > leader.term, "an order")
    ordered_s = field.terms[field.term] - began_s
    eventually(lambda: len(field.starts) > workers, "a new worker")
    replaced_s = time.monotonic() - began_s
    processes.remove(doomed)
    doomed.end()
    return won_s, ordered_s, replaced_s


def _term(election: Election) -> int:
    leader = election.current_leader()
    return leader.term if leader else 0


def reading(session: Session, jobs: int) -> None:
    """How long a new leader reads."""
    control = ControlPlane(session)
    for number in range(jobs):
        control.submit(JobSpec(f"job-{number:05}", ("true",)))
    leadership = Election(session, layout.LEADER).campaign()
    ledger = Ledger(session, leadership, threading.Event().set)
    began_s = time.monotonic()
    found = ledger.read()
    took_s = time.monotonic() - began_s
    assert len(found.jobs) == jobs
    began_s = time.monotonic()
    ledger.refresh()
    again_s = time.monotonic() - began_s
    ledger.close()
    leadership.resign()
    print(f"  {jobs:>6} jobs  read {took_s:7.3f} s   nothing new {1e3 * again_s:6.2f} ms")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--timeout-s", type=float, default=2.0)
    given = parser.parse_args()
    print(f"load average before: {load_average():.2f}")
    with tempfile.TemporaryDirectory() as folder:
        failovers(Path(folder), given.timeout_s, given.rounds)
    print("the first read of a term")
    for jobs in (10, 100, 1_000):
        with (
            tempfile.TemporaryDirectory() as folder,
            connect(f"embedded:{folder}/plane?linger_s=1") as session,
        ):
            reading(session, jobs)


if __name__ == "__main__":
    main()
