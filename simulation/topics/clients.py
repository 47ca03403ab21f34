"""Clients of the simulated broker. What each does is a script: a generator that yields what it
asks and is given the answer. A request without an answer is asked again, over a new connection:
what the old one still had on its way is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from functools import partial
from typing import Any, Final, NamedTuple

import msgspec

from holdfast.topics.broker.core import batch, commands, records
from holdfast.topics.broker.core.commands import AnyCommand, CommittedOffset
from holdfast.topics.broker.core.records import read_records
from holdfast.topics.broker.core.state import Appended, ProducerId
from holdfast.topics.broker.protocol.codes import ErrorCode
from holdfast.topics.broker.protocol.groups import (
    Assignment,
    HeartbeatRequest,
    JoinGroupRequest,
    JoinProtocol,
    SyncGroupRequest,
)
from simulation.kernel import Kernel, SimulatedProcess
from simulation.sources import source
from simulation.topics.broker import TOPICS, Fetched, Reply, SimulatedBroker
from simulation.topics.faults import TopicFaults
from simulation.topics.history import Fate, History, Owned, Place, SeenRecord, Sent

TRAVEL_S: Final = (0.0005, 0.005)
ANSWER_S: Final = 2.0
JOIN_S: Final = 30.0
SESSION_MS: Final = 6_000
TRANSACTION_MS: Final = 20_000
GROUP: Final = "chain"
FENCED: Final = (
    ErrorCode.PRODUCER_FENCED,
    ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.INVALID_PRODUCER_ID_MAPPING,
)


class Ask(NamedTuple):
    """A request. `answer_s`: how long its answer may take."""

    what: str
    send: Callable[[SimulatedBroker, Reply], None]
    answer_s: float = ANSWER_S


class Pause(NamedTuple):
    seconds: float


Script = Generator[Ask | Pause, Any, Any]


class Fenced(Exception):
    """Somebody else has its id."""


class SimulatedClient(SimulatedProcess):
    """Somebody with a script, which begins anew when it dies or is fenced."""

    def __init__(
        self,
        kernel: Kernel,
        name: str,
        broker: SimulatedBroker,
        faults: TopicFaults,
        history: History,
        seed: int,
    ) -> None:
        super().__init__(kernel, name)
        self.broker = broker
        self.faults = faults
        self.history = history
        self.draw = source(f"{seed}/{name}")
        self.done = False
        self.stopping = False
        self.numbers = 0
        self._asked = 0
        self._script: Script | None = None

    def script(self) -> Script:
        raise NotImplementedError

    def start(self) -> None:
        self.begin()
        self._script = self.script()
        self._go_on(None)

    def crash(self) -> None:
        if self.up:
            self.die()
            self.tell("crashes")
            self.kernel.after(self.kernel.between(0.1, 2.0), self.start)

    def next_number(self) -> int:
        self.numbers += 1
        return self.numbers

    def _go_on(self, answer: Any) -> None:
        assert self._script is not None
        try:
            step = self._script.send(answer)
        except StopIteration:
            self.done = True
            return
        except Fenced:
            self.tell("is fenced")
            self.die()
            self.kernel.after(self.kernel.between(0.1, 1.0), self.start)
            return
        if isinstance(step, Pause):
            self.after(step.seconds, lambda: self._go_on(None))
        else:
            self._ask(step)

    def _ask(self, step: Ask) -> None:
        self._asked += 1
        number, life = self._asked, self.life

        def waits() -> bool:
            return self.life == life and self._asked == number

        def answered(answer: Any) -> None:
            if waits():
                self._asked += 1
                self.tell("hears", step.what, getattr(answer, "error", ""))
                self._go_on(answer)

        def reply(answer: object) -> None:
            if not self.faults.strikes("reply lost"):
                travel_s = self.kernel.between(*TRAVEL_S)
                self.kernel.after(travel_s, lambda: self.arrive(lambda: answered(answer)))

        def reach() -> None:
            # What is on its way over a connection that was given up does not arrive.
            if waits() and self.broker.up:
                self.broker.arrive(lambda: step.send(self.broker, reply))

        self.tell("asks", step.what)
        travel_s = self.kernel.between(*TRAVEL_S)
        if self.faults.strikes("delay"):
            travel_s += self.kernel.between(0.5, 4.0)
        if not self.faults.strikes("request lost"):
            self.kernel.after(travel_s, reach)
            if self.faults.strikes("doubled"):
                self.kernel.after(travel_s, reach)

        def again() -> None:
            if self._asked == number:
                self._ask(step)

        self.after(step.answer_s, again)

    # --- steps --------------------------------------------------------------------------------

    def call(self, command: AnyCommand) -> Script:
        """The outcome of a command; `Fenced` if it says so."""
        name = type(command).__name__
        while True:
            outcome = yield Ask(name, lambda broker, reply: broker.ask(command, reply))
            if outcome.error in FENCED:
                raise Fenced
            if outcome.error is not ErrorCode.CONCURRENT_TRANSACTIONS:
                return outcome
            yield Pause(0.1)

    def produce(self, one: Sent, producer: SimulatedProducer, name: str | None) -> Script:
        data = producer.make(one.place, one.value, transactional=name is not None)
        self.history.sent.append(one)
        while True:
            outcome = yield Ask(
                "Produce", lambda broker, reply: broker.produce(one.place, name, data, reply)
            )
            if outcome.error in FENCED:
                raise Fenced
            if not outcome.error:
                assert isinstance(outcome.value, Appended)
                self.history.acknowledged[one.value] = outcome.value.base_offset
                return outcome
            if name is not None:
                return outcome
            yield Pause(0.1)

    def init(self, transactional_id: str | None) -> Script:
        command = commands.InitProducer(transactional_id, TRANSACTION_MS, -1, -1)
        outcome = yield from self.call(command)
        assert isinstance(outcome.value, ProducerId)
        return SimulatedProducer(*outcome.value)


class SimulatedProducer:
    """An id, an epoch, and the next sequence of each partition."""

    def __init__(self, producer_id: int, epoch: int) -> None:
        self.producer_id = producer_id
        self.epoch = epoch
        self._sequences: dict[Place, int] = {}

    def make(self, place: Place, value: str, *, transactional: bool) -> bytes:
        sequence = self._sequences.get(place, 0)
        self._sequences[place] = sequence + 1
        return batch.make(
            [records.encode(0, 0, None, value.encode())],
            timestamp=1_000,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            base_sequence=sequence,
            attributes=batch.TRANSACTIONAL if transactional else 0,
        )


def read_committed(fetched: Fetched, offset: int) -> tuple[list[tuple[int, str]], int]:
    """What a client makes of an answer: records of committed transactions, and where to go on."""
    found: list[tuple[int, str]] = []
    waiting = sorted(fetched.aborted, key=lambda one: one[1])
    aborted: set[int] = set()
    for base, data in fetched.batches:
        header = batch.read_header(data)
        end = base + header.last_offset_delta + 1
        while waiting and waiting[0][1] < end:
            aborted.add(waiting.pop(0)[0])
        if header.is_control:
            aborted.discard(header.producer_id)
        elif not (header.is_transactional and header.producer_id in aborted):
            for one in read_records(data, header):
                if one.offset >= offset:
                    found.append((one.offset, (one.value or b"").decode()))
        offset = max(offset, end)
    return found, offset


def _heartbeat(beat: HeartbeatRequest, broker: SimulatedBroker, reply: Reply) -> None:
    broker.heartbeat(beat, reply)


def _committed(place: Place, broker: SimulatedBroker, reply: Reply) -> None:
    broker.committed(GROUP, place, reply)


def _fetch(place: Place, offset: int, broker: SimulatedBroker, reply: Reply) -> None:
    broker.fetch(place, offset, reply)


class Writer(SimulatedClient):
    """Single records, with an id for idempotence."""

    def script(self) -> Script:
        producer = yield from self.init(None)
        author = f"{self.name}.{self.life}"
        while not self.stopping:
            place = Place("input", self.draw.randrange(TOPICS["input"]))
            value = f"{self.name}-{self.next_number()}"
            yield from self.produce(Sent(value, author, place), producer, None)
            yield Pause(self.draw.uniform(0.0, 0.5))


class Transactional(SimulatedClient):
    """Whoever has a transactional id."""

    def begin_transaction(
        self, producer: SimulatedProducer, places: list[Place], group: str | None = None
    ) -> Script:
        ids = self.name, producer.producer_id, producer.epoch
        wanted: list[tuple[str, int]] = list(places)
        outcome = yield from self.call(commands.AddToTransaction(*ids, wanted, None))
        if not outcome.error and group is not None:
            outcome = yield from self.call(commands.AddToTransaction(*ids, [], group))
        return outcome

    def end(self, producer: SimulatedProducer, transaction: str, *, commit: bool) -> Script:
        ids = self.name, producer.producer_id, producer.epoch
        outcome = yield from self.call(commands.EndTransaction(*ids, commit))
        if not outcome.error:
            self.history.fates[transaction] = Fate.COMMITTED if commit else Fate.ABORTED
        return outcome


class Transactor(Transactional):
    """Transactions over both partitions, some of which are aborted."""

    def script(self) -> Script:
        producer = yield from self.init(self.name)
        while not self.stopping:
            name = f"{self.name}-{self.next_number()}"
            self.history.begin(name)
            places = [Place("input", number) for number in range(TOPICS["input"])]
            yield from self.begin_transaction(producer, places)
            good = True
            for number in range(self.draw.randint(1, 4)):
                one = Sent(f"{name}.{number}", name, self.draw.choice(places), name)
                outcome = yield from self.produce(one, producer, self.name)
                good = good and not outcome.error
            commit = good and self.draw.random() < 0.7
            yield from self.end(producer, name, commit=commit)
            yield Pause(self.draw.uniform(0.0, 1.0))


class Chain(Transactional):
    """A member of a group that copies what it is given, each batch in a transaction."""

    def script(self) -> Script:
        producer = yield from self.init(self.name)
        member = ""
        while True:
            member, generation, mine = yield from self._join(member)
            if mine is None:
                continue
            positions = yield from self._positions(mine)
            while True:
                beat = HeartbeatRequest(group_id=GROUP, generation_id=generation, member_id=member)
                outcome = yield Ask("Heartbeat", partial(_heartbeat, beat))
                if outcome.error:
                    member = "" if outcome.error is ErrorCode.UNKNOWN_MEMBER_ID else member
                    break
                sound = yield from self._copy(producer, positions, member, generation)
                if not sound:
                    break
                yield Pause(self.draw.uniform(0.05, 0.5))

    def _join(self, member: str) -> Script:
        """The member's id, its generation and its partitions; None: to be tried again."""
        asked = JoinGroupRequest(
            group_id=GROUP,
            session_timeout_ms=SESSION_MS,
            rebalance_timeout_ms=SESSION_MS,
            member_id=member,
            protocol_type="consumer",
            protocols=[JoinProtocol(name="any", metadata=b"")],
        )
        fresh = f"{self.name}-{self.life}-{self.next_number()}"
        joined = yield Ask("Join", lambda broker, reply: broker.join(asked, fresh, reply), JOIN_S)
        if joined.error_code:
            known = joined.error_code == ErrorCode.MEMBER_ID_REQUIRED
            yield Pause(0.05)
            return (joined.member_id if known else ""), -1, None
        names = sorted(one.member_id for one in joined.members)
        given = [
            Assignment(
                member_id=name,
                assignment=msgspec.msgpack.encode(
                    [at for at in range(TOPICS["input"]) if names[at % len(names)] == name]
                ),
            )
            for name in names
        ]
        sync = SyncGroupRequest(
            group_id=GROUP,
            generation_id=joined.generation_id,
            member_id=joined.member_id,
            assignments=given,
        )
        synced = yield Ask("Sync", lambda broker, reply: broker.sync(sync, reply), JOIN_S)
        if synced.error_code:
            lost = synced.error_code == ErrorCode.UNKNOWN_MEMBER_ID
            return ("" if lost else joined.member_id), -1, None
        numbers = msgspec.msgpack.decode(synced.assignment or b"\x90", type=list[int])
        mine = [Place("input", number) for number in numbers]
        owned = Owned(GROUP, joined.generation_id, joined.member_id, tuple(mine))
        self.history.owned.append(owned)
        return joined.member_id, joined.generation_id, mine

    def _positions(self, mine: list[Place]) -> Script:
        positions: dict[Place, int] = {}
        for place in mine:
            while True:
                outcome = yield Ask("Committed", partial(_committed, place))
                if not outcome.error:
                    break
                yield Pause(0.1)
            positions[place] = max(outcome.value, 0)
        return positions

    def _copy(
        self,
        producer: SimulatedProducer,
        positions: dict[Place, int],
        member: str,
        generation: int,
    ) -> Script:
        """Copy what is new; whether it may go on as it is."""
        taken: dict[Place, tuple[list[tuple[int, str]], int]] = {}
        for place, offset in positions.items():
            fetched = yield Ask("Fetch", partial(_fetch, place, offset))
            found, end = read_committed(fetched, offset)
            self.history.seen += [SeenRecord(self.name, place, at, value) for at, value in found]
            if end > offset:
                taken[place] = found, end
        if not any(found for found, _ in taken.values()):
            positions.update({place: end for place, (_, end) in taken.items()})
            return True
        name = f"{self.name}-{self.next_number()}"
        self.history.begin(name)
        outputs = [Place("output", place.partition) for place in taken]
        outcome = yield from self.begin_transaction(producer, outputs, GROUP)
        good = not outcome.error
        for place, (found, _) in taken.items():
            for _, value in found:
                out = Place("output", place.partition)
                one = Sent(f"{value}|{name}", name, out, name, value)
                outcome = yield from self.produce(one, producer, self.name)
                good = good and not outcome.error
        ids = self.name, producer.producer_id, producer.epoch
        kept = {
            place.partition: CommittedOffset(end, -1, "", 0) for place, (_, end) in taken.items()
        }
        command = commands.CommitInTransaction(*ids, GROUP, {"input": kept})
        outcome = yield Ask(
            "TxnOffsetCommit",
            lambda broker, reply: broker.commit_in_transaction(command, member, generation, reply),
        )
        if outcome.error in FENCED:
            raise Fenced
        good = good and not outcome.error and self.draw.random() < 0.85
        outcome = yield from self.end(producer, name, commit=good)
        if good and not outcome.error:
            positions.update({place: end for place, (_, end) in taken.items()})
            return True
        return False
