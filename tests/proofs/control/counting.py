"""The job of the proof: `examples/counter.py`, what it leaves behind, and what it should have."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from holdfast.control.decide.facts import Checkpoint
from holdfast.control.decide.spec import CheckpointPolicy, JobSpec, Resources
from holdfast.control.store.plane import ControlPlane
from holdfast.storage import open_store
from holdfast.train.states.checkpoints import restore
from holdfast.train.states.state import TrainingState
from holdfast.wire.errors import HoldfastError
from tests.proofs.control import witness
from tests.proofs.control.checks import FINAL
from tests.proofs.control.events import Adopted, Answer, Event, Kept, Step
from tests.proofs.control.watched_cluster import WatchedCluster
from tests.proofs.control.watcher import worker_logs
from tests.waiting import eventually


@dataclass(frozen=True, slots=True)
class Counting:
    """A job that counts."""

    name: str
    lanes: int
    workers: tuple[int, int]
    steps: int
    step_ms: int
    seed: int
    every_steps: int = 20
    priority: int = 0
    step_twice: bool = False  # sabotaged

    def spec(self) -> JobSpec:
        least, most = self.workers
        options = ["--steps", self.steps, "--step-ms", self.step_ms, "--seed", self.seed]
        more = ["--a-step-twice"] if self.step_twice else []
        return JobSpec(
            name=self.name,
            command=(sys.executable, witness.__file__, *map(str, options), *more),
            priority=self.priority,
            lanes=self.lanes,
            workers_min=least,
            workers_max=most,
            resources=Resources(cpu=1.0),
            checkpoint=CheckpointPolicy(every_steps=self.every_steps, every_s=None, keep=3),
        )

    def expected(self) -> dict[str, Any]:
        """The answer of an undisturbed run."""
        chain, total = _states(self.seed, self.steps, self.lanes)[self.steps]
        samples = self.steps * self.lanes
        return {"chain": chain, "total": total, "samples": samples, "not_counted_once": 0}


@cache
def _counter() -> ModuleType:
    spec = importlib.util.spec_from_file_location("counter", witness.COUNTER)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@cache
def _states(seed: int, steps: int, lanes: int) -> list[tuple[str, int]]:
    """The chain and the total after each step of an undisturbed run."""
    module = _counter()
    counter = module.Counter(seed, steps, lanes)
    found = [(counter.chain.hex(), counter.total)]
    for step in range(1, steps + 1):
        leaves = {
            module.PartialSum(lane, 1): module.contribution(counter.chain, seed, step, lane, {})
            for lane in range(lanes)
        }
        counter.apply(step, module.tree.fold(leaves, lanes, module.combine))
        found.append((counter.chain.hex(), counter.total))
    assert module.expected(module.Counter(seed, steps, lanes), ()) == counter.answer()
    return found


def _answer(job: Counting, state: TrainingState) -> dict[str, Any]:
    counter = _counter().Counter(job.seed, job.steps, job.lanes)
    counter.adopt(state)
    found: dict[str, Any] = counter.answer()
    return found


def _trouble(job: Counting, step: int, state: TrainingState) -> str:
    """How this state differs from that of an undisturbed run after as many steps; "" if not."""
    found = _answer(job, state)
    if (found["chain"], found["total"]) != _states(job.seed, job.steps, job.lanes)[step]:
        return f"it is not the state of an undisturbed run: {found}"
    counted = bytes(state["counted"].data)
    done = step * job.lanes
    if counted != bytes([1]) * done + bytes(len(counted) - done):
        return "a sample was not counted once"
    return ""


def read_back(
    store: str, job: Counting, checkpoints: Iterable[Checkpoint]
) -> tuple[list[Kept], dict[str, Any]]:
    """Every commit record, read back whole and compared; and the answer of the last one."""
    blobs = open_store(store)
    kept, answer = [], dict[str, Any]()
    for one in checkpoints:
        try:
            state = restore(blobs, one.manifest, job.name, one.step)
        except HoldfastError as error:
            kept.append(Kept(job.name, one.step, one.manifest, str(error)))
            continue
        kept.append(Kept(job.name, one.step, one.manifest, _trouble(job, one.step, state)))
        answer = _answer(job, state)
    return kept, answer


def results(watched: WatchedCluster, job: Counting) -> Iterator[Event]:
    """What a job that has ended left behind."""
    filed = ControlPlane(watched.session).job(job.name)
    kept, found = read_back(watched.cluster.store.address, job, filed.checkpoints)
    yield from kept
    right = job.expected()
    told = [json.loads(text) for text in _told(watched.cluster.folder, job.name)]
    wrong = [answer for answer in told if answer != right]
    phase = filed.status.phase.value
    yield Answer(
        job.name,
        phase,
        job.steps,
        filed.committed_step,
        {**found, "told otherwise": wrong},
        {**right, "told otherwise": []},
    )


def finish(watched: WatchedCluster, job: Counting, timeout_s: float) -> list[Event]:
    """Wait until it has ended; what it left behind."""

    def ended() -> bool:
        status = watched.watcher.jobs.get(job.name)
        return status is not None and status.phase in FINAL

    eventually(ended, f"{job.name} ends", timeout_s)
    return list(results(watched, job))


def _told(folder: Path, name: str) -> list[str]:
    return [
        line.removeprefix("answer ")
        for job, _, log in worker_logs(folder)
        if job == name
        for line in log.read_text(errors="replace").splitlines()
        if line.startswith("answer ")
    ]


def words_of(folder: Path) -> list[Event]:
    """What workers said of the views and the states that they held, in order for each of them."""
    found: list[Event] = []
    for job, worker, log in worker_logs(folder):
        for line in log.read_text(errors="replace").splitlines():
            for kind, told in _parsed(line).items():
                if kind == "holds":
                    fields = ("pid", "view", "step", "digest")
                    found.append(Step(job, worker, *(told[name] for name in fields)))
                elif kind == "view":
                    found.append(Adopted(job, worker, **told))
    return found


def _parsed(line: str) -> dict[str, Any]:
    if not line.startswith(('{"holds"', '{"view"')):
        return {}
    try:
        told: dict[str, Any] = json.loads(line)
    except ValueError:
        return {}  # it was killed in the middle of a line
    return told
