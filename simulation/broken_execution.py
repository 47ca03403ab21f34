"""Deliberate breakages of what runs beside the control plane: agents, workers, watches."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from holdfast.agent import journal
from holdfast.agent.events import Ending, NeverStarted, ProcessAdopted, ProcessExited, TermSeen
from holdfast.agent.machine import AgentMachine
from holdfast.agent.supervisor import WorkerSupervisor
from holdfast.train.members.effective import EffectiveSetting
from holdfast.train.sums import tree
from simulation import arithmetic
from simulation import worker as training
from simulation.breaking import Mutant, always, never
from simulation.plane import Plane
from simulation.worker import Worker


def _forgets_watches(_: Any) -> Any:
    def remember(self: Any, client: Any, life: int) -> None:
        client.woken = False

    return remember


def _in_order_of_arrival(_: Any) -> Any:
    """Whoever comes first is summed first; the tree is not asked."""

    def following(value: int, brought: Any, lanes: int) -> int:
        for sums in brought:
            for number in sums.values():
                value = arithmetic.following(value ^ number, [{tree.root(1): number}], 1)
        return value

    return following


def _least_advanced(old: Any) -> Any:
    def conclude(brought: Any) -> Any:
        found = old(brought)
        holders = [hello for hello in brought.values() if hello.step is not None]
        if not holders:
            return found
        source = min(holders, key=lambda hello: hello.step)
        takers = tuple(worker for worker in sorted(brought) if worker != source.worker)
        return replace(found, source=source.worker, takers=takers)

    return conclude


def _since_the_named_step(_: Any) -> Any:
    def extended(record: Any, given: Any, count: int, agreed: int) -> Any:
        new = given[len(record) : count]
        return record + tuple(
            EffectiveSetting(name, value, at_step or 0) for name, value, at_step in new
        )

    return extended


def _nobody_lives(old: Any) -> Any:
    async def find(self: Any, key: Any) -> Any:
        event = await old(self, key)
        return ProcessExited(key, Ending()) if isinstance(event, ProcessAdopted) else event

    return find


def _unclaimed_is_lost(old: Any) -> Any:
    async def find(self: Any, key: Any) -> Any:
        event = await old(self, key)
        return replace(event, prepared=False) if isinstance(event, NeverStarted) else event

    return find


def _ended_is_unclaimed(old: Any) -> Any:
    async def find(self: Any, key: Any) -> Any:
        event = await old(self, key)
        return replace(event, prepared=True) if isinstance(event, NeverStarted) else event

    return find


def _claims_nothing(_: Any) -> Any:
    async def void(self: Any, key: Any) -> bool:
        return self._folders.claim(key) is None

    return void


def _without_the_term(old: Any) -> Any:
    return lambda self: (entry for entry in old(self) if not isinstance(entry, TermSeen))


OF_EXECUTION: Final = (
    Mutant(
        "watch lost on reconnect",
        "what changed while a client was away does not wake it when it is back",
        ((Plane, "_remember_watch", _forgets_watches),),
    ),
    Mutant(
        "damaged journal read",
        "a journal with a damaged batch is read up to it, though more was durable",
        ((journal, "_refuse_damage", never),),
    ),
    Mutant(
        "summed as they come",
        "lanes are summed in the order of arrival, not in that of the tree",
        ((training, "following", _in_order_of_arrival),),
    ),
    Mutant(
        "stale sums",
        "what was computed for a step is used after the state or a setting has changed",
        ((Worker, "_still_counts", always),),
    ),
    Mutant(
        "least advanced chosen",
        "in a meeting all take the state of whoever is furthest behind",
        ((training, "conclude", _least_advanced),),
    ),
    Mutant(
        "setting in the past",
        "a setting counts from the step that its user named, though that step is made",
        ((training, "extended", _since_the_named_step),),
    ),
    Mutant(
        "living taken for dead",
        "a restarted agent takes its living workers for dead",
        ((WorkerSupervisor, "find", _nobody_lives),),
    ),
    Mutant(
        "unclaimed is lost",
        "a restarted agent takes a worker for lost whose shim has not made its claim yet",
        ((WorkerSupervisor, "find", _unclaimed_is_lost),),
    ),
    Mutant(
        "ended is started again",
        "a restarted agent starts a worker again whose folder is gone, and whose end was lost",
        ((WorkerSupervisor, "find", _ended_is_unclaimed),),
    ),
    Mutant(
        "late shim not called off",
        "a worker is stopped before it was started, and its shim may still make its claim",
        ((WorkerSupervisor, "_void", _claims_nothing),),
    ),
    Mutant(
        "compaction without the term",
        "a compacted journal does not say which term was seen",
        ((AgentMachine, "entries", _without_the_term),),
    ),
)
