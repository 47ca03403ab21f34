"""A coordinator that falls asleep (SIGSTOP) with a commit in its hand, and insists when woken.

    python -m tests.faults.sleepy_coordinator --cluster DIR --name NAME

It is the real coordinator, but for the moment before its first commit of a checkpoint. There it
stops itself. Woken, it does what no coordinator does: it calls all agents to itself, by force, and
orders them to stop the job's workers, in its old term. Then it goes on to its commit.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Sequence
from typing import Any

from holdfast.control.__main__ import serve
from holdfast.control.decide.commands import CommitCheckpoint, Decision, StopWorker
from holdfast.control.rpc import agents as agents_module
from holdfast.control.store.ledger import Ledger
from holdfast.coordination import Config
from holdfast.system import logs, process
from holdfast.wire import rpc
from tests.waiting import eventually

log = logs.get("tests.faults.sleepy_coordinator")


_begun: list[agents_module.GrpcAgents] = []
_slept: list[bool] = []
_begin = agents_module.GrpcAgents.begin
_carry_out = Ledger.carry_out


def begin(self: agents_module.GrpcAgents, term: int) -> None:
    _begun.append(self)
    _begin(self, term)


def carry_out(self: Ledger, job: str, decisions: Sequence[Decision], manifest: str = "") -> int:
    if manifest and not _slept:
        _slept.append(True)
        commit = decisions[0].command
        assert isinstance(commit, CommitCheckpoint)
        term = self._leadership.term
        log.warning("falls asleep with a commit in its hand", step=commit.attempt.step, term=term)
        os.kill(os.getpid(), signal.SIGSTOP)
        insist(self, job, term)
    return _carry_out(self, job, decisions, manifest)


def insist(ledger: Ledger, job: str, term: int) -> None:
    """Order the agents about, in a term that is over."""
    agents = _begun[-1]
    config = Config(agents._session, rpc.CONTACT_PATH)
    placements = ledger.desired.jobs[job].placements
    before: list[Any] = []

    def ours(value: Any) -> Any:
        before.append(value)
        return rpc.Contact(term, agents.address).value()

    config.update(ours)
    _until(lambda: all(agents.connection(placed.node) for placed in placements))
    for placed in placements:
        order = StopWorker(placed.node, job, placed.worker, 0.0)
        agents.order(term, Decision(order, "a deposed leader insists"))
    _until(lambda: len(agents.refusals()) >= len(placements))
    log.warning("has insisted", term=term, refused=sum(one.fenced for one in agents.refusals()))
    config.update(lambda _value: before[0])


def _until(condition: Callable[[], bool]) -> None:
    try:
        eventually(condition, "somebody listens to it")
    except AssertionError as error:
        log.warning(str(error))


if __name__ == "__main__":
    agents_module.GrpcAgents.begin = begin  # type: ignore[method-assign]
    Ledger.carry_out = carry_out  # type: ignore[method-assign]
    sys.exit(process.main(serve))
