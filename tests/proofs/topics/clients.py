"""Those who write, copy and read through confluent-kafka, and note what they know.

A client that meets an error does what its library says: tries again, aborts, or begins anew.
"""

from __future__ import annotations

import itertools
import logging
import random
import struct
import threading
from collections.abc import Callable, Iterator
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from simulation.topics.history import Fate, Owned, Place, SeenRecord, Sent
from tests.proofs.topics.notes import Notes

PLAIN, INPUT, OUTPUT, HAUNTED = "plain", "input", "output", "haunted"
PARTITIONS: Final = {PLAIN: 3, INPUT: 2, OUTPUT: 2, HAUNTED: 1}
MEMBERS, CHAIN = "members", "chain"
CALL_S: Final = 60.0
# A member that dies is out after this; the broker takes nothing shorter.
SESSION_MS: Final = 6_000
_RECONNECT: Final = {
    "reconnect.backoff.ms": 20,
    "reconnect.backoff.max.ms": 200,
    "retry.backoff.ms": 20,
    "retry.backoff.max.ms": 200,
    "topic.metadata.refresh.interval.ms": 1_000,
    # When its only broker is away, librdkafka 2.16 forgets it and begins anew (KIP-899); a request
    # for a group's coordinator then holds on to the forgotten one, and is never sent: both wait for
    # ever. An address that does not change needs no beginning anew.
    "metadata.recovery.strategy": "none",
}
# What the library says of servers that are killed is not for people.
_QUIET: Final = logging.Logger("quiet", logging.CRITICAL + 1)
_SILENT: Final = {"logger": _QUIET, "error_cb": lambda _error: None}


class Client:
    """One who works until it is told to stop."""

    def __init__(self, name: str, hosts: str, notes: Notes, seed: int) -> None:
        self.name = name
        self.hosts = hosts
        self.notes = notes
        self.draw = random.Random(f"{seed} {name}")
        self.stop = threading.Event()
        self._numbers = itertools.count()

    def run(self) -> None:
        raise AssertionError("a client says what it does")

    def settings(self, **more: Any) -> dict[str, Any]:
        return {"bootstrap.servers": self.hosts, **_RECONNECT, **_SILENT, **more}

    def producer(self, transactional_id: str = "") -> Producer:
        settings = self.settings(
            **{"enable.idempotence": True, "linger.ms": 1, "message.timeout.ms": 600_000}
        )
        if not transactional_id:
            return Producer(settings)
        settings |= {"transactional.id": transactional_id, "transaction.timeout.ms": 60_000}
        settings["message.timeout.ms"] = 60_000
        made = Producer(settings)
        again(lambda: made.init_transactions(CALL_S))
        return made

    def send(self, producer: Producer, one: Sent) -> None:
        self.notes.send(one)

        def delivered(error: KafkaError | None, message: Message) -> None:
            if error is None:
                self.notes.acknowledge(one.value, message.offset() or 0)
            elif not one.transaction:
                self.notes.count(f"refused: {error.name()}")

        while True:
            try:
                producer.produce(
                    one.place.topic,
                    value=one.value,
                    partition=one.place.partition,
                    on_delivery=delivered,
                )
            except BufferError:
                producer.poll(0.1)
            else:
                return

    def values(self) -> Iterator[str]:
        return (f"{self.name}-{number}" for number in self._numbers)


def again(ask: Callable[[], object]) -> None:
    """Ask until it is not to be tried again."""
    while True:
        try:
            ask()
        except KafkaException as error:
            if not error.args[0].retriable():
                raise
        else:
            return


class Writer(Client):
    """Idempotent records, many in flight; now and then with a producer of its own."""

    def run(self) -> None:
        values = self.values()
        while not self.stop.is_set():
            producer = self.producer()
            for _ in range(self.draw.randint(500, 5_000)):
                if self.stop.is_set():
                    break
                place = Place(PLAIN, self.draw.randrange(PARTITIONS[PLAIN]))
                self.send(producer, Sent(next(values), self.name, place))
                producer.poll(0.002)
            while producer.flush(1.0):
                pass


class Transactor(Client):
    """Transactions over two partitions, every third of which is aborted."""

    topic = INPUT

    def run(self) -> None:
        producer = self.producer(self.name)
        while not self.stop.is_set():
            try:
                self._transact(producer)
            except KafkaException as error:
                self.notes.count(f"transactions: {error.args[0].name()}")
                producer = self.producer(self.name)

    def _transact(self, producer: Producer) -> None:
        name = f"{self.name}-{next(self._numbers)}"
        self.notes.begin(name)
        producer.begin_transaction()
        try:
            for number in range(self.draw.randint(1, 6)):
                place = Place(INPUT, self.draw.randrange(PARTITIONS[INPUT]))
                self.send(producer, Sent(f"{name}.{number}", self.name, place, name))
            if self.draw.random() < 1 / 3:
                producer.flush(CALL_S)
                finish(producer, name, self.notes, commit=False)
            else:
                finish(producer, name, self.notes, commit=True)
        except KafkaException as error:
            if not error.args[0].txn_requires_abort():
                raise
            finish(producer, name, self.notes, commit=False)


def finish(producer: Producer, name: str, notes: Notes, *, commit: bool) -> None:
    """End the transaction and note how it ended."""
    if commit:
        again(lambda: producer.commit_transaction(CALL_S))
    else:
        again(lambda: producer.abort_transaction(CALL_S))
    notes.end(name, Fate.COMMITTED if commit else Fate.ABORTED)
    notes.count("transactions committed" if commit else "transactions aborted")


class Zombie(Client):
    """A producer that goes on after another one has taken its id: it ends what is not its own."""

    def run(self) -> None:
        while not self.stop.is_set():
            try:
                self._haunt()
            except KafkaException as error:
                self.notes.count(f"zombies: {error.args[0].name()}")
            self.stop.wait(self.draw.uniform(0.2, 1.0))

    def _haunt(self) -> None:
        number, place = next(self._numbers), Place(HAUNTED, 0)
        old, new = f"{self.name}-{number}-old", f"{self.name}-{number}-new"
        zombie = self.producer(self.name)
        self._open(zombie, old, place)
        successor = self.producer(self.name)
        # Its id has another owner, who ended what was open.
        self.notes.end(old, Fate.ABORTED)
        self._open(successor, new, place)
        try:
            finish(zombie, old, self.notes, commit=True)
        except KafkaException:
            self.notes.count("zombies fenced")
        self.send(successor, Sent(f"{new}.1", new, place, new))
        commit = self.draw.random() < 0.5
        successor.flush(CALL_S)
        finish(successor, new, self.notes, commit=commit)

    def _open(self, producer: Producer, name: str, place: Place) -> None:
        self.notes.begin(name)
        producer.begin_transaction()
        self.send(producer, Sent(f"{name}.0", name, place, name))
        if producer.flush(CALL_S):
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))


class Reader(Client):
    """One who is given records by a group, and notes what it owns and sees."""

    group = MEMBERS
    topic = PLAIN

    def consumer(self) -> Consumer:
        made = Consumer(
            self.settings(
                **{
                    "group.id": self.group,
                    "auto.offset.reset": "earliest",
                    "enable.auto.commit": False,
                    "session.timeout.ms": SESSION_MS,
                    "heartbeat.interval.ms": 500,
                    "isolation.level": "read_committed",
                    "partition.assignment.strategy": "range",
                }
            )
        )
        made.subscribe([self.topic], on_assign=self._assigned)
        return made

    def _assigned(self, consumer: Consumer, given: list[TopicPartition]) -> None:
        generation, member = read_metadata(consumer.consumer_group_metadata())
        places = tuple(Place(one.topic, one.partition) for one in given)
        self.notes.own(Owned(self.group, generation, member, places))

    def take(self, consumer: Consumer, most: int) -> list[Message]:
        found = []
        for message in consumer.consume(most, 0.3):
            if message.error() is None:
                place = Place(message.topic() or "", message.partition() or 0)
                value = (message.value() or b"").decode()
                self.notes.see(SeenRecord(self.name, place, message.offset() or 0, value))
                found.append(message)
        return found


def read_metadata(raw: Any) -> tuple[int, str]:
    """The generation and the member's id of what librdkafka writes (`CGMDv2:`)."""
    data = bytes(raw)
    assert data.startswith(b"CGMDv2:"), data
    (generation,) = struct.unpack_from("=i", data, 7)
    _, member, _ = data[11:].split(b"\0", 2)
    return int(generation), member.decode()


def positions(messages: list[Message]) -> list[TopicPartition]:
    """Where to go on after these."""
    ends: dict[tuple[str, int], int] = {}
    for one in messages:
        ends[one.topic() or "", one.partition() or 0] = (one.offset() or 0) + 1
    return [TopicPartition(*place, end) for place, end in ends.items()]


class Member(Reader):
    """Reads, commits, and leaves: with a word, or without one."""

    def run(self) -> None:
        while not self.stop.is_set():
            consumer = self.consumer()
            for _ in range(self.draw.randint(10, 60)):
                if self.stop.is_set():
                    break
                self._step(consumer)
            if self.stop.is_set() or self.draw.random() < 0.5:
                consumer.close()
                self.notes.count("members left")
            else:
                del consumer  # librdkafka says nothing to the group then
                self.notes.count("members died")

    def _step(self, consumer: Consumer) -> None:
        found = self.take(consumer, 200)
        if not found:
            return
        ends = positions(found)
        try:
            consumer.commit(offsets=ends, asynchronous=False)
        except KafkaException as error:
            self.notes.count(f"commits: {error.args[0].name()}")
            return
        for one in ends:
            self.notes.keep(self.group, Place(one.topic, one.partition), one.offset)


class Chain(Reader):
    """Consume, transform, produce: what it makes and where it stands are one transaction."""

    group = CHAIN
    topic = INPUT

    def run(self) -> None:
        while not self.stop.is_set():
            producer, consumer = self.producer(self.name), self.consumer()
            try:
                while not self.stop.is_set() and self.draw.random() > 0.01:
                    if found := self.take(consumer, self.draw.randint(1, 60)):
                        self._copy(producer, consumer, found)
            except KafkaException as error:
                self.notes.count(f"chains: {error.args[0].name()}")
            consumer.close()

    def _copy(self, producer: Producer, consumer: Consumer, found: list[Message]) -> None:
        name = f"{self.name}-{next(self._numbers)}"
        self.notes.begin(name)
        producer.begin_transaction()
        commit = self.draw.random() > 0.15
        try:
            for message in found:
                source = (message.value() or b"").decode()
                place = Place(OUTPUT, message.partition() or 0)
                self.send(producer, Sent(f"{source}|{name}", name, place, name, source))
            metadata = consumer.consumer_group_metadata()
            ends = positions(found)
            again(lambda: producer.send_offsets_to_transaction(ends, metadata, CALL_S))
            finish(producer, name, self.notes, commit=commit)
        except KafkaException as error:
            if not error.args[0].txn_requires_abort():
                raise
            finish(producer, name, self.notes, commit=False)
            raise  # with another consumer, which begins where the group stands by now
        if not commit:
            self._go_back(consumer, found)

    def _go_back(self, consumer: Consumer, found: list[Message]) -> None:
        firsts: dict[tuple[str, int], int] = {}
        for one in found:
            firsts.setdefault((one.topic() or "", one.partition() or 0), one.offset() or 0)
        mine = {(one.topic, one.partition) for one in consumer.assignment()}
        for place, offset in firsts.items():
            if place in mine:
                consumer.seek(TopicPartition(*place, offset))
