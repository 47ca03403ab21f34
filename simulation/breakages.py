"""Deliberate breakages of the code under test. Each must be found, or the simulator is blind.

`simulation.mutants` hunts them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

from holdfast.agent import agent
from holdfast.agent.machine import AgentMachine
from holdfast.agent.slots import SlotAllocator
from holdfast.control.decide import checkpoints, lifecycle, membership, reconcile, records, serving
from holdfast.control.decide.commands import AbandonCheckpoint, Decision, DropCheckpoint
from holdfast.control.decide.facts import Checkpoint, ObservedState, Phase, WorkerPhase
from holdfast.coordination.embedded.transactions import CheckVersion, SetData
from holdfast.system.tasks import start_task
from simulation import decide
from simulation.agent_session import Session
from simulation.breaking import Mutant, Patch, always, never
from simulation.broken_execution import OF_EXECUTION
from simulation.broken_shell import OF_SHELL
from simulation.coordinator import Coordinator
from simulation.worker import Worker

__all__ = ["MUTANTS", "Mutant", "Patch"]

# So long a mutant goes on with an attempt whose members have died.
_DEATHS_IGNORED_S: Final = 10.0


def _no_fence(old: Any) -> Any:
    """Keeps the record's own writes; the two checks of the leader check nothing."""
    hollow = (CheckVersion("/holdfast", -1), CheckVersion("/holdfast", -1))
    return lambda self, *arguments: (*hollow, *old(self, *arguments)[2:])


def _half_a_fence(old: Any) -> Any:
    """Keeps the check of the term; the leader's own node is not checked."""

    def guarded(self: Any, *arguments: Any) -> Any:
        term, _, *writes = old(self, *arguments)
        return (term, CheckVersion("/holdfast", -1), *writes)

    return guarded


def _claims_missing_parts(old: Any) -> Any:
    def durable(view: Any, attempt: Any, reports: Any) -> Any:
        found = old(view, attempt, reports)
        if len(found) == len(view.lanes) - 1:
            return {worker: found.get(worker, ()) for worker in view.lanes}
        return found

    return durable


def _gives_a_lane_twice(old: Any) -> Any:
    def assign(lanes: int, *arguments: Any, **named: Any) -> Any:
        given = old(lanes, *arguments, **named)
        if len(given) > 1:
            last = max(given)
            given = {**given, last: tuple(sorted({*given[last], *given[min(given)][:1]}))}
        return given

    return assign


def _leavers_count_as_gone(old: Any) -> Any:
    """What the plan hands out, and what is unplaced: a worker that was told to leave is gone."""

    def look(job: Any, reports: Any, observed: Any) -> Any:
        ended = {
            worker: (node, replace(facts, phase=WorkerPhase.GONE))
            for worker, (node, facts) in reports.items()
            if any(one.worker == worker and one.draining for one in job.placements)
        }
        return old(job, {**reports, **ended}, observed)

    return look


def _unreported_are_gone(old: Any) -> Any:
    return lambda job, reports, observed: old(job, reports, ObservedState(observed.nodes))


def _obeys_any_term(old: Any) -> Any:
    return lambda self, term, order, now_s: old(self, max(term, self.term), order, now_s)


def _acts_then_writes(old: Any) -> Any:
    async def write_down(self: Any, actions: Any) -> None:
        start_task(old(self, actions), "journal", self.died)

    return write_down


def _forgets_the_term(old: Any) -> Any:
    """The term is known until the agent dies, and is not in the journal."""

    def ordered(self: Any, term: int, order: Any, now_s: float) -> Any:
        actions = old(self, term, order, now_s)
        return actions[1:] if term == self.term and _is_term(actions) else actions

    return ordered


def _is_term(actions: Sequence[Any]) -> bool:
    return bool(actions) and type(getattr(actions[0], "entry", None)).__name__ == "TermSeen"


def _concludes_for_any_view(old: Any) -> Any:
    def conclude(seen: Any, reports: Any, now_s: float) -> Any:
        job = seen.job
        # Neither another view nor anybody's death ends the attempt soon: who is left goes on.
        if (
            job.attempt is None
            or job.view is None
            or now_s > job.attempt.since_s + _DEATHS_IGNORED_S
        ):
            return old(seen, reports, now_s)
        attempt = replace(job.attempt, view=job.view.number)
        end = old(replace(seen, job=replace(job, attempt=attempt)), reports, now_s)
        return None if isinstance(getattr(end, "command", None), AbandonCheckpoint) else end

    return conclude


def _commits_for_any_view(old: Any) -> Any:
    def commit(job: Any, record: Any, *arguments: Any) -> Any:
        if job.attempt is not None and job.attempt.number == record.attempt.number:
            job = replace(job, attempt=record.attempt)
        return old(job, record, *arguments)

    return commit


def _nothing(_: Any) -> Any:
    return lambda *arguments, **named: iter(())


def _frees_the_number(old: Any) -> Any:
    def unplace(job: Any, record: Any) -> Any:
        after = old(job, record)
        return replace(after, next_worker=record.worker) if after is not job else after

    return unplace


def _restores_at_once(old: Any) -> Any:
    """Whoever hears of a view that names a checkpoint goes back to it, whatever anybody holds."""

    def chosen(self: Any, view: Any, brought: Any) -> Any:
        return self.world.restored(self, view) or old(self, view, brought)

    return chosen


def _holders_unknown(old: Any) -> Any:
    return lambda *arguments: replace(old(*arguments), holders=frozenset())


def _drops_all(_: Any) -> Any:
    def drops(seen: Any) -> Iterator[Any]:
        for checkpoint in seen.job.checkpoints:
            yield Decision(DropCheckpoint(seen.job.name, checkpoint.step), "it is old")

    return drops


def _drops_the_newest(_: Any) -> Any:
    return lambda job, record: replace(
        job, checkpoints=tuple(one for one in job.checkpoints if one.step != record.step)
    )


def _forgets_what_was_lost(_: Any) -> Any:
    """As it was once: when the last one is gone, the job is as one that has just come."""
    return lambda job, record: replace(job, checkpoints=job.checkpoints[:-1])


def _whole_capacity(old: Any) -> Any:
    """The room of orphans counts as free."""

    def capacities(desired: Any, observed: Any) -> Any:
        capacity = {node.node: node.capacity for node in observed.nodes.values()}
        return tuple(replace(one, capacity=capacity[one.node]) for one in old(desired, observed))

    return capacities


def _last_step_is_enough(_: Any) -> Any:
    """Whoever holds the last step has finished the job, committed or not."""
    return lambda seen: seen.job.finished_step or seen.last_step


def _finishes(_: Any) -> Any:
    return lambda job, record: replace(job, finished_step=record.step)


def _takes_all_settings(old: Any) -> Any:
    return lambda self, view, held: old(self, replace(view, settings=len(self.settings)), held)


def _any_turn(_: Any) -> Any:
    return lambda self, path, turn: SetData(path, b"", -1)


def _commits_nothing_new(old: Any) -> Any:
    """The commit record is written, the manifest is not."""

    def write(self: Any, job: Any, record: Any) -> Any:
        key = yield from old(self, job, record)
        self.world.blobs.remove(key)
        return key

    return write


def _checkpoint_in_the_past(old: Any) -> Any:
    """An attempt is committed a second time, under its step minus one."""

    def commit(job: Any, record: Any, *arguments: Any) -> Any:
        after = old(job, record, *arguments)
        if after is job or len(after.checkpoints) < 2:
            return after
        last: Checkpoint = after.checkpoints[-1]
        older = replace(last, step=after.checkpoints[-2].step - 1)
        return replace(after, checkpoints=(*after.checkpoints[:-1], older))

    return commit


def _holds_back_for_ever(old: Any) -> Any:
    return lambda job, wanted, now_s: max(0, wanted - len(job.failures))


def _fails_services(old: Any) -> Any:
    def departure(seen: Any, *rest: Any) -> Any:
        if seen.job.spec.serves and seen.job.failures:
            return lifecycle.Departure("failed", Phase.FAILED, "failed", saves=False)
        return old(seen, *rest)

    return departure


def _tells_for_certain(old: Any) -> Any:
    """As it was told once: whoever has not reported holds nothing."""

    def why(*arguments: Any) -> str:
        told: str = old(*arguments)
        head, unknown, rest = told.partition("; whether ")
        if not unknown:
            return told
        return f"{head}; nobody holds the state, so from{rest.rpartition(', from')[2]}"

    return why


MUTANTS: Final = (
    Mutant(
        "no fence",
        "a leader's transaction lacks the checks of its own nodes",
        ((Coordinator, "_guarded", _no_fence),),
    ),
    Mutant(
        "early commit",
        "a checkpoint is committed before the last part is durable",
        ((checkpoints, "_durable", _claims_missing_parts),),
    ),
    Mutant(
        "lost manifest",
        "a checkpoint is committed without its manifest",
        ((Coordinator, "_write_manifest", _commits_nothing_new),),
    ),
    Mutant(
        "lane twice",
        "a lane is given to two workers",
        ((membership, "assign", _gives_a_lane_twice),),
    ),
    Mutant(
        "room too early",
        "room counts as free when a worker is told to leave",
        ((reconcile, "observe_job", _leavers_count_as_gone),),
    ),
    Mutant(
        "unreported is gone",
        "a new leader takes agents that have not reported yet for dead",
        ((reconcile, "observe_job", _unreported_are_gone),),
    ),
    Mutant(
        "orphans take no room",
        "the room of workers that nobody wants is handed out, and agents do not count",
        (
            (decide, "node_capacities", _whole_capacity),
            (SlotAllocator, "refusal", never),
            (AgentMachine, "validate", never),
        ),
    ),
    Mutant(
        "journal after acting",
        "an agent acts first and writes its journal afterwards",
        ((agent.Agent, "_write_down", _acts_then_writes),),
    ),
    Mutant(
        "older term obeyed",
        "an agent obeys a leader whose term is over",
        ((AgentMachine, "_ordered", _obeys_any_term),),
    ),
    Mutant(
        "term not journalled",
        "a restarted agent does not know the term that it had seen",
        ((AgentMachine, "_ordered", _forgets_the_term),),
    ),
    Mutant(
        "commit over a view",
        "an attempt is committed after the view has changed",
        (
            (checkpoints, "conclude", _concludes_for_any_view),
            (checkpoints, "give_up_for_view", never),
            (records, "_commit", _commits_for_any_view),
        ),
    ),
    Mutant(
        "number reused",
        "a worker's number is given again when it has gone",
        ((records, "_unplace", _frees_the_number),),
    ),
    Mutant(
        "orphans not stopped",
        "workers that nobody wants are left alone",
        ((reconcile, "orphans", _nothing),),
    ),
    Mutant(
        "restore over a survivor",
        "a job goes back to a checkpoint while a worker holds a later state",
        (
            (reconcile, "observe_job", _holders_unknown),
            (Worker, "_chosen", _restores_at_once),
        ),
    ),
    Mutant(
        "newest dropped",
        "the newest checkpoint is removed with the old ones",
        ((checkpoints, "drops", _drops_all), (records, "_drop", _drops_the_newest)),
    ),
    Mutant(
        "begins anew unasked",
        "a job none of whose checkpoints can be read begins at step 0 by itself",
        ((records, "_mark_unreadable", _forgets_what_was_lost),),
    ),
    Mutant(
        "success without the commit",
        "a job has succeeded when its last step is made, and not yet committed",
        ((lifecycle, "finished_step", _last_step_is_enough), (records, "_finish", _finishes)),
    ),
    Mutant(
        "settings when heard",
        "a worker takes a setting when it hears of it, not when all of its view know it",
        (
            (Worker, "_knows_settings", always),
            (Worker, "_with_settings", _takes_all_settings),
        ),
    ),
    Mutant(
        "turn not checked",
        "a late request of a dead agent may replace the node of its successor",
        ((Session, "_take_turn", _any_turn),),
    ),
    Mutant(
        "failed replica stays away",
        "a replica that failed by its own fault is never started again",
        ((serving, "may_start", _holds_back_for_ever),),
    ),
    Mutant(
        "replica may end the job",
        "failures of replicas end their job, as those of a training do",
        ((lifecycle, "departure", _fails_services),),
    ),
    Mutant(
        "replica never leaves",
        "a replica that is to leave waits for others whether any come or not",
        ((serving, "stays_yet", always),),
    ),
    Mutant(
        "committed step goes back",
        "a commit record names an older step than the one before it",
        ((records, "_commit", _checkpoint_in_the_past),),
    ),
    Mutant(
        "half a fence",
        "a leader checks the term and not that its own session still lives",
        ((Coordinator, "_guarded", _half_a_fence),),
    ),
    Mutant(
        "told for certain",
        "people are told that nobody holds the state when nobody has said so",
        ((membership, "_why", _tells_for_certain),),
    ),
    *OF_EXECUTION,
    *OF_SHELL,
)
