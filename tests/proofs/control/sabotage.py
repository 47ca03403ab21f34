"""The system broken on purpose, in its own processes: each must end in a `Violation`.

    python -m tests.proofs.control --kills 40 --sabotage "room too early"

A sabotaged process runs `python -m tests.proofs.control.sabotage NAME MODULE …`: it is the real
program with one thing changed. Workers are sabotaged by an option of `witness`.
"""

from __future__ import annotations

import runpy
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from holdfast.agent.events import Event, Key, NeverStarted, StartProcess, key_of
from holdfast.agent.machine import AgentMachine
from holdfast.agent.supervisor import WorkerSupervisor
from holdfast.control.decide.commands import Decision, UnplaceWorker, WriteView
from holdfast.control.decide.facts import DesiredState, JobRecord, ObservedState, View
from holdfast.control.shell import leading
from holdfast.coordination import Leadership
from holdfast.coordination.nodes import Op

COORDINATOR: Final = "holdfast.control"
AGENT: Final = "holdfast.agent"
WORKER: Final = "worker"

_decide = leading.decide


def _deciding(change: Callable[[DesiredState, list[Decision]], list[Decision]]) -> None:
    def decide(desired: DesiredState, observed: ObservedState, now_s: float) -> list[Decision]:
        return change(desired, _decide(desired, observed, now_s))

    leading.decide = decide


def _viewing(change: Callable[[JobRecord, View], View]) -> None:
    """Change the views that are written."""

    def decision(desired: DesiredState, one: Decision) -> Decision:
        if not isinstance(one.command, WriteView):
            return one
        view = change(desired.jobs[one.command.job], one.command.view)
        return replace(one, command=replace(one.command, view=view))

    _deciding(lambda desired, decisions: [decision(desired, one) for one in decisions])


def old_checkpoint() -> None:
    """Views begin from the oldest checkpoint that is kept, not from the newest."""

    def change(job: JobRecord, view: View) -> View:
        if not view.restore_step:
            return view
        oldest = job.checkpoints[0]
        return replace(view, restore_step=oldest.step, manifest=oldest.manifest)

    _viewing(change)


def lane_twice() -> None:
    """In views of several workers one lane is held by two."""

    def change(_job: JobRecord, view: View) -> View:
        if len(view.lanes) < 2:
            return view
        first, second, *_ = sorted(view.lanes)
        more = (*view.lanes[first], view.lanes[second][0])
        return replace(view, lanes={**view.lanes, first: more})

    _viewing(change)


def room_too_early() -> None:
    """Room is free as soon as its worker is to leave, not when its process is gone."""

    def change(desired: DesiredState, decisions: list[Decision]) -> list[Decision]:
        early = [
            Decision(UnplaceWorker(job.name, placement.worker, None), "it will be gone soon")
            for job in desired.jobs.values()
            for placement in job.placements
            if placement.draining
        ]
        return [*decisions, *early]

    _deciding(change)


def unfenced() -> None:
    """A leader writes without the check that its term is still on."""

    def commit(self: Leadership, ops: list[Op]) -> None:
        self._session.nodes.transact(ops, self._session.nodes.deadline(None))

    Leadership._commit = commit  # type: ignore[method-assign, assignment]


def starts_twice() -> None:
    """A new agent does not look for the workers of the one before it: it starts them."""

    async def find(self: WorkerSupervisor, key: Key) -> Event:
        return NeverStarted(key)

    start = WorkerSupervisor.start

    def begin(self: WorkerSupervisor, action: StartProcess) -> None:
        folder = self._folders.worker(key_of(action.order))
        (folder / "claim").unlink(missing_ok=True)
        start(self, action)

    WorkerSupervisor.find = find  # type: ignore[method-assign]
    WorkerSupervisor.start = begin  # type: ignore[method-assign]


def older_terms_obeyed() -> None:
    """An agent obeys whoever speaks to it."""
    ordered = AgentMachine._ordered

    def obey(self: AgentMachine, term: int, order: object, now_s: float) -> object:
        self.term = min(self.term, term)
        return ordered(self, term, order, now_s)  # type: ignore[arg-type]

    AgentMachine._ordered = obey  # type: ignore[method-assign, assignment]


# What it is called, whose it is, and how it is done; workers' are in `witness`.
EVERY: Final[dict[str, tuple[str, Callable[[], None] | None]]] = {
    "an old checkpoint": (COORDINATOR, old_checkpoint),
    "a lane twice": (COORDINATOR, lane_twice),
    "room too early": (COORDINATOR, room_too_early),
    "unfenced": (COORDINATOR, unfenced),
    "starts twice": (AGENT, starts_twice),
    "older terms obeyed": (AGENT, older_terms_obeyed),
    "a step twice": (WORKER, None),
}


def command_of(name: str, module: str) -> list[str]:
    """How that program is started: as it is, or sabotaged."""
    whose, _ = EVERY.get(name, ("", None))
    if whose != module:
        return [sys.executable, "-m", module]
    return [sys.executable, "-m", "tests.proofs.control.sabotage", name, module]


def main() -> None:
    _, name, module, *arguments = sys.argv
    _, change = EVERY[name]
    assert change is not None
    change()
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
