"""The broker in the world: its core is real, and around it a journal, a loop and a clock.

What is written is durable after a while, applied after another while, then answered: a crash may
come in between. A restart has the journal, perhaps a snapshot, and nothing else.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from typing import Final, NamedTuple

import msgspec

from holdfast.topics.broker.core import batch, commands
from holdfast.topics.broker.core.commands import AnyCommand, CommittedOffset
from holdfast.topics.broker.core.group import Effects, GroupAnswer, JoiningClient, Save
from holdfast.topics.broker.core.groups import GroupTable
from holdfast.topics.broker.core.partition import Partition
from holdfast.topics.broker.core.state import BrokerState, CommandOutcome, Image, Written
from holdfast.topics.broker.protocol.codes import ErrorCode, KafkaError
from holdfast.topics.broker.protocol.groups import (
    HeartbeatRequest,
    JoinGroupRequest,
    SyncGroupRequest,
)
from simulation.kernel import Kernel, SimulatedProcess
from simulation.topics.faults import TopicFaults
from simulation.topics.history import Place

TOPICS: Final = {"input": 2, "output": 2}
SWEEP_S: Final = 0.5
DISK_S: Final = (0.001, 0.02)
APPLY_S: Final = (0.0, 0.01)
# Wall clocks begin somewhere.
EPOCH_MS: Final = 1_700_000_000_000

Reply = Callable[[object], None]


class Fetched(NamedTuple):
    """What a reader of committed records gets: batches, and which transactions are aborted."""

    error: ErrorCode
    batches: list[tuple[int, bytes]]
    aborted: list[tuple[int, int]]


class SimulatedBroker(SimulatedProcess):
    """One broker. What a client asks is a method that is given `reply`."""

    def __init__(self, kernel: Kernel, faults: TopicFaults) -> None:
        super().__init__(kernel, "broker")
        self.faults = faults
        self.journal: list[tuple[int, bytes]] = []  # durable: time and command
        self.snapshot: tuple[int, bytes] | None = None  # durable: after so many entries
        self.skew_ms = 0
        self.last_ms = 0
        self.restarts = 0
        self._line: list[tuple[list[AnyCommand], Callable[[list[CommandOutcome]], None]]] = []
        self._busy = False
        for name, count in TOPICS.items():
            made = commands.CreateTopic(name, name.ljust(16).encode(), count, {})
            self.journal.append((EPOCH_MS, commands.encode(made)))
        self.recover()

    # --- life ---------------------------------------------------------------------------------

    def recover(self) -> None:
        """Start: everything comes from the journal."""
        self.begin()
        self.state, first, self._applied = BrokerState(), 0, 0
        self.logs: dict[Place, list[tuple[int, bytes]]] = {}
        image = None
        if self.snapshot is not None:
            first, raw = self.snapshot
            image = msgspec.msgpack.decode(raw, type=Image)
        for number, (time_ms, raw) in enumerate(self.journal):
            if number == first and image is not None:
                self.state = BrokerState.of(image)
            self._do(commands.decode(raw), time_ms)
        if image is not None and first == len(self.journal):
            self.state = BrokerState.of(image)
        self.groups = GroupTable(self.state.groups, self.now_ms())
        self._line, self._busy = [], False
        self.after(SWEEP_S, self._sweep)
        self.tell("has started", len(self.journal))

    def crash(self) -> None:
        self.die()
        self.restarts += 1
        self.tell("crashes")
        self.kernel.after(self.kernel.between(0.2, 3.0), self.recover)

    def now_ms(self) -> int:
        return int(self.kernel.now_s * 1000)

    def wall_ms(self) -> int:
        return EPOCH_MS + self.now_ms() + self.skew_ms

    def _sweep(self) -> None:
        self.follow(self.groups.advance(self.now_ms()))
        wall_ms = self.wall_ms()
        due = [one for one in self.state.transactions.by_id.values() if one.is_due(wall_ms)]
        if due:
            asked = [commands.ExpireTransaction(one.transactional_id) for one in due]
            self.write(list(asked), lambda _outcomes: None)
        if self.faults.random.random() < 0.1:
            raw = msgspec.msgpack.encode(self.state.image())
            self.snapshot = self._applied, raw
        self.after(SWEEP_S, self._sweep)

    # --- writing ------------------------------------------------------------------------------

    def write(self, asked: list[AnyCommand], then: Callable[[list[CommandOutcome]], None]) -> None:
        self._line.append((asked, then))
        if not self._busy:
            self._begin_group()

    def _begin_group(self) -> None:
        self._busy = True
        group, self._line = self._line, []
        self.last_ms = max(self.last_ms, self.wall_ms())
        time_ms = self.last_ms
        self.after(self.kernel.between(*DISK_S), lambda: self._durable(group, time_ms))

    def _durable(
        self,
        group: list[tuple[list[AnyCommand], Callable[[list[CommandOutcome]], None]]],
        time_ms: int,
    ) -> None:
        if self.faults.strikes("lost group"):
            self.crash()  # before the sync: nobody has heard of it
            return
        for asked, _ in group:
            self.journal += [(time_ms, commands.encode(one)) for one in asked]
        if self.faults.strikes("unanswered group"):
            self.crash()  # between the journal and the answer
            return

        def apply() -> None:
            answers = [
                (then, [self._do(commands.decode(commands.encode(one)), time_ms) for one in asked])
                for asked, then in group
            ]
            for then, outcomes in answers:
                then(outcomes)
            self._busy = False
            if self._line:
                self._begin_group()

        self.after(self.kernel.between(*APPLY_S), apply)

    def _do(self, command: AnyCommand, time_ms: int) -> CommandOutcome:
        self._applied += 1
        outcome = self.state.apply(command, time_ms)
        for effect in outcome.effects:
            if isinstance(effect, Written):
                place = Place(effect.topic_id.decode().strip(), effect.partition)
                self.logs.setdefault(place, []).append((effect.base_offset, effect.data))
        return outcome

    def _one(self, command: AnyCommand, reply: Reply) -> None:
        self.write([command], lambda outcomes: reply(outcomes[0]))

    # --- what clients ask ---------------------------------------------------------------------

    def produce(
        self, place: Place, transactional_id: str | None, data: bytes, reply: Reply
    ) -> None:
        topic_id = place.topic.ljust(16).encode()
        self._one(commands.Append(topic_id, place.partition, transactional_id, data), reply)

    def ask(self, command: AnyCommand, reply: Reply) -> None:
        """A request that is one command: InitProducerId, AddPartitionsToTxn, EndTxn, …"""
        self._one(command, reply)

    def commit_in_transaction(
        self, command: commands.CommitInTransaction, member: str, generation: int, reply: Reply
    ) -> None:
        try:
            self.groups.check_commit(
                command.group, member, None, generation, self.now_ms(), in_transaction=True
            )
        except KafkaError as error:
            reply(CommandOutcome(error.code, error.text))
            return
        self._one(command, reply)

    def commit(
        self, group: str, member: str, generation: int, place: Place, offset: int, reply: Reply
    ) -> None:
        try:
            self.groups.check_commit(group, member, None, generation, self.now_ms())
        except KafkaError as error:
            reply(CommandOutcome(error.code, error.text))
            return
        kept = CommittedOffset(offset, -1, "", self.wall_ms())
        self._one(commands.CommitOffsets(group, {place.topic: {place.partition: kept}}), reply)

    def committed(self, group: str, place: Place, reply: Reply) -> None:
        if self.state.is_pending(group, *place):
            reply(CommandOutcome(ErrorCode.UNSTABLE_OFFSET_COMMIT))
            return
        held = self.state.offsets.get(group, {}).get(place.topic, {}).get(place.partition)
        reply(CommandOutcome(value=-1 if held is None else held.offset))

    def fetch(self, place: Place, offset: int, reply: Reply) -> None:
        reply(self.read(place, offset))

    def read(self, place: Place, offset: int, most: int = 8) -> Fetched:
        """Batches of committed records, as a fetch answers them."""
        partition = self.partition(place)
        end = partition.last_stable_offset
        log = self.logs.get(place, [])
        # Batches have one record each, so that none begins before the offset that it holds.
        first = bisect_left(log, offset, key=lambda one: one[0])
        found = [one for one in log[first : first + most] if one[0] < end]
        bound = end
        if found:
            last, data = found[-1]
            bound = last + batch.read_header(data).last_offset_delta + 1
        aborted = partition.aborted_between(offset, bound)
        return Fetched(
            ErrorCode.NONE, found, [(one.producer_id, one.first_offset) for one in aborted]
        )

    def partition(self, place: Place) -> Partition:
        found = self.state.partition(*place)
        assert found is not None
        return found

    # --- groups -------------------------------------------------------------------------------

    def join(self, asked: JoinGroupRequest, fresh_id: str, reply: Reply) -> None:
        caller = JoiningClient("client", "host", fresh_id)
        self.follow(self.groups.join(asked, caller, reply, self.now_ms()))

    def sync(self, asked: SyncGroupRequest, reply: Reply) -> None:
        self.follow(self.groups.sync(asked, reply, self.now_ms()))

    def heartbeat(self, asked: HeartbeatRequest, reply: Reply) -> None:
        reply(CommandOutcome(self.groups.heartbeat(asked, self.now_ms())))

    def follow(self, effects: Effects) -> None:
        for effect in effects:
            if isinstance(effect, GroupAnswer):
                token = effect.token
                assert callable(token)
                token(effect.response)
            else:
                self._save(effect)

    def _save(self, save: Save) -> None:
        def saved(_outcomes: list[CommandOutcome]) -> None:
            self.follow(self.groups.saved(save, self.now_ms()))

        self.write([commands.SaveGroup(save.group, save.saved)], saved)
