"""Deliberate breakages of the broker's core. Each must be found, or this world is blind."""

from __future__ import annotations

from typing import Any, Final

from holdfast.topics.broker.core import commands, transactions
from holdfast.topics.broker.core.group import Group
from holdfast.topics.broker.core.groups import GroupTable
from holdfast.topics.broker.core.partition import Partition
from holdfast.topics.broker.core.state import BrokerState
from simulation.breaking import Mutant, Patch, never
from simulation.topics.broker import SimulatedBroker


def _mutant(name: str, what: str, *patches: Patch) -> Mutant:
    return Mutant(name, what, patches)


def _no_epoch(_: Any) -> Any:
    def find(self: Any, transactional_id: str, producer_id: int, epoch: int) -> Any:
        return self.by_id[transactional_id]

    return find


def _none_aborted(_: Any) -> Any:
    return lambda self, first, end: []


def _same_generation(old: Any) -> Any:
    def complete(self: Group, now_ms: int) -> Any:
        self.generation = min(self.generation, 0)
        return old(self, now_ms)

    return complete


def _offsets_at_once(old: Any) -> Any:
    def apply(self: BrokerState, command: Any, now_ms: int) -> Any:
        outcome = old(self, command, now_ms)
        if isinstance(command, commands.CommitInTransaction) and not outcome.error:
            self._take_offsets(command.group, command.offsets)
        return outcome

    return apply


def _offsets_of_aborted_too(old: Any) -> Any:
    def end(self: BrokerState, held: Any, *, commit: bool, now_ms: int) -> Any:
        for group, offsets in held.offsets.items():
            self._take_offsets(group, offsets)
        return old(self, held, commit=commit, now_ms=now_ms)

    return end


def _commit_all(old: Any) -> Any:
    def end(self: BrokerState, held: Any, *, commit: bool, now_ms: int) -> Any:
        return old(self, held, commit=True, now_ms=now_ms)

    return end


def _end_of_log(_: Any) -> Any:
    return property(lambda self: self.next_offset)


def _same_epoch(_: Any) -> Any:
    return lambda self, held, *, remember: None


def _applied_first(_: Any) -> Any:
    """Answered as soon as it is asked: the journal comes later."""

    def write(self: SimulatedBroker, asked: Any, then: Any) -> None:
        self.last_ms = max(self.last_ms, self.wall_ms())
        outcomes = [self._do(one, self.last_ms) for one in asked]
        entries = [(self.last_ms, commands.encode(one)) for one in asked]
        then(outcomes)
        self.after(0.5, lambda: self.journal.extend(entries))

    return write


def _any_generation(_: Any) -> Any:
    return lambda *arguments, **named: None


MUTANTS: Final = (
    _mutant(
        "duplicates-are-taken",
        "a batch that is in the log already is appended again",
        (Partition, "duplicate_of", never),
        (Partition, "check_sequence", never),
    ),
    _mutant(
        "epochs-are-not-checked",
        "whoever has had a transactional id may go on with it",
        (transactions.Transactions, "find", _no_epoch),
        (Partition, "check_sequence", never),
        (BrokerState, "_check_transaction", never),
    ),
    _mutant(
        "aborted-list-is-empty",
        "readers are not told which transactions were aborted",
        (Partition, "aborted_between", _none_aborted),
    ),
    _mutant(
        "a-generation-comes-twice",
        "a rebalance gives the generation that was",
        (Group, "_complete_join", _same_generation),
    ),
    _mutant(
        "offsets-count-before-the-end",
        "offsets of a transaction count before it is committed",
        (BrokerState, "apply", _offsets_at_once),
    ),
    _mutant(
        "offsets-of-aborted-transactions-count",
        "offsets of a transaction count though it is aborted",
        (BrokerState, "_end", _offsets_of_aborted_too),
    ),
    _mutant(
        "everything-is-committed",
        "a transaction that is to be aborted is committed",
        (BrokerState, "_end", _commit_all),
    ),
    _mutant(
        "readers-see-open-transactions",
        "the last stable offset is the end of the log",
        (Partition, "last_stable_offset", _end_of_log),
    ),
    _mutant(
        "a-new-producer-does-not-fence",
        "a producer that takes over an id has the epoch of the one before it",
        (transactions.Transactions, "bump", _same_epoch),
    ),
    _mutant(
        "answered-before-the-journal",
        "a write is applied and answered before it is durable",
        (SimulatedBroker, "write", _applied_first),
    ),
    _mutant(
        "commits-of-anybody-are-taken",
        "a group takes offsets of who is not its member in this generation",
        (GroupTable, "check_commit", _any_generation),
    ),
)
