"""A run: clients work, servers are killed, and at the end the history is judged."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from holdfast.system.tasks import WAITED, OwnedThread, start_thread
from simulation.topics.checker import check
from simulation.topics.history import Fate, Place
from tests.proofs.topics.clients import (
    INPUT,
    MEMBERS,
    OUTPUT,
    PARTITIONS,
    PLAIN,
    Chain,
    Client,
    Member,
    Transactor,
    Writer,
    Zombie,
)
from tests.proofs.topics.engines import Engine
from tests.proofs.topics.notes import Notes
from tests.waiting import PATIENCE_S, eventually

# Between two kills: so that every client gets further in most of them.
CALM_S: Final = (0.0, 0.8)
ACKNOWLEDGED_BETWEEN: Final = 100
ENDED_BETWEEN: Final = 15
END_S: Final = 180.0
SHOWN_MAX: Final = 10


class Violation(AssertionError):
    """A promise was broken."""


@dataclass(frozen=True)
class Plan:
    """What is to happen."""

    seed: int
    kills: int = 200
    kafka: bool = False
    torn: bool = True

    def command(self) -> str:
        more = " --kafka" * self.kafka + " --clean" * (not self.torn)
        return f"python -m tests.proofs.topics --kills {self.kills} --seed {self.seed}{more}"


class Campaign:
    """Clients around an engine."""

    def __init__(self, plan: Plan, engine: Engine, say: Callable[[str], None]) -> None:
        self.plan = plan
        self.engine = engine
        self.say = say
        self.notes = Notes()
        self.draw = random.Random(plan.seed)
        self.kills = 0
        self._running: list[tuple[Client, OwnedThread]] = []

    def run(self) -> None:
        """Play it; `Violation` if anything is not as promised."""
        self.engine.start()
        try:
            self._make_topics()
            copying = [self._client(Chain, number) for number in range(2)]
            reading = [self._client(Member, number) for number in range(3)]
            writing = [
                *(self._client(Writer, number) for number in range(2)),
                self._client(Transactor, 0),
                self._client(Zombie, 0),
            ]
            with self._at_work([*writing, *copying, *reading]):
                for _ in range(self.plan.kills):
                    self._round()
                self._end(writing)
                self._end(reading)
                self._await_copies()
            self._look()
        finally:
            self.engine.stop()
        self._judge()

    def _client(self, kind: type[Client], number: int) -> Client:
        name = f"{kind.__name__.lower()}-{number}"
        return kind(name, self.engine.hosts, self.notes, self.plan.seed)

    def _make_topics(self) -> None:
        admin = AdminClient({"bootstrap.servers": self.engine.hosts})
        wanted = [NewTopic(name, count, self.engine.copies) for name, count in PARTITIONS.items()]
        for made in admin.create_topics(wanted).values():
            made.result(PATIENCE_S)

    # --- clients ------------------------------------------------------------------------------

    @contextmanager
    def _at_work(self, clients: list[Client]) -> Iterator[None]:
        self._running = [(one, start_thread(one.run, one.name, WAITED)) for one in clients]
        try:
            yield
        finally:
            self._end([one for one, _ in self._running])

    def _end(self, clients: list[Client]) -> None:
        for one in clients:
            one.stop.set()
        for one, thread in self._running:
            if one in clients:
                if not thread.join(END_S):
                    raise Violation(f"{one.name} was not answered within {END_S:g} s")
                thread.result()

    def _round(self) -> None:
        goal = self.notes.acknowledged + ACKNOWLEDGED_BETWEEN
        ended = self.notes.ended + ENDED_BETWEEN
        eventually(lambda: self._got_further(goal, ended), "clients get further", END_S)
        time.sleep(self.draw.uniform(*CALM_S))  # pause: the kill comes at any moment
        try:
            how = self.engine.strike(self.draw)
        except RuntimeError as error:
            raise Violation(f"the broker does not start after a kill: {error}") from error
        self.kills += 1
        self.notes.count(how)
        if self.kills % 10 == 0 or self.plan.kills < 10:
            self.say(f"{self.kills:>4} kills, {self.notes.acknowledged:,} acknowledged: {how}")

    def _got_further(self, acknowledged: int, ended: int) -> bool:
        for one, thread in self._running:
            if not thread.is_alive():
                thread.result()
                raise Violation(f"{one.name} has ended")
        return self.notes.acknowledged >= acknowledged and self.notes.ended >= ended

    # --- the end ------------------------------------------------------------------------------

    def _await_copies(self) -> None:
        """The chains copy what is left."""
        wanted = {
            value for number in range(PARTITIONS[INPUT]) for _, value in self._read(INPUT, number)
        }

        def all_made() -> bool:
            sources = {one.value: one.source for one in list(self.notes.history.sent)}
            made = {
                sources.get(value, "")
                for number in range(PARTITIONS[OUTPUT])
                for _, value in self._read(OUTPUT, number)
            }
            return wanted <= made

        with suppress(AssertionError):  # the checker says which have no copy
            eventually(all_made, "everything is copied", END_S, pause_s=0.5)

    def _look(self) -> None:
        """Read what is there at the end."""
        history = self.notes.history
        for topic, count in PARTITIONS.items():
            for number in range(count):
                history.final[Place(topic, number)] = self._read(topic, number)
        history.copied = {INPUT: OUTPUT}
        reading = self._consumer(MEMBERS)
        places = [TopicPartition(PLAIN, number) for number in range(PARTITIONS[PLAIN])]
        for one in reading.committed(places, PATIENCE_S):
            history.kept_at_last[MEMBERS, Place(one.topic, one.partition)] = one.offset
        reading.close()

    def _consumer(self, group: str) -> Consumer:
        return Consumer(
            {
                "bootstrap.servers": self.engine.hosts,
                "group.id": group,
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "isolation.level": "read_committed",
                "check.crcs": True,
            }
        )

    def _read(self, topic: str, number: int) -> list[tuple[int, str]]:
        """Every committed record of a partition."""
        reading = self._consumer("looks")
        reading.assign([TopicPartition(topic, number, 0)])
        found: list[tuple[int, str]] = []
        deadline_s = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline_s:
            for message in reading.consume(1_000, 0.2):
                error = message.error()
                if error is None:
                    found.append((message.offset() or 0, (message.value() or b"").decode()))
                elif error.code() == KafkaError._PARTITION_EOF:
                    reading.close()
                    return found
                elif not error.retriable():
                    raise Violation(f"{topic}/{number} cannot be read: {error.str()}")
        raise Violation(f"{topic}/{number} was not read to its end within {PATIENCE_S:g} s")

    def _judge(self) -> None:
        refused = [what for what in self.notes.tally if what.startswith("refused")]
        if refused:
            raise Violation(f"writers were {refused[0]}")
        if broken := check(self.notes.history):
            shown = "\n  ".join(map(str, broken[:SHOWN_MAX]))
            raise Violation(f"{len(broken)} promises are broken:\n  {shown}")
        if Fate.COMMITTED not in self.notes.history.fates.values():
            raise Violation("no transaction was ever committed")

    # --- figures ------------------------------------------------------------------------------

    def told(self) -> str:
        lines = [f"{self.kills} kills; {self.notes.history.figures()}"]
        lines += [f"  {what}: {count:,}" for what, count in sorted(self.notes.tally.items())]
        return "\n".join(lines)

    def as_json(self) -> dict[str, Any]:
        history = self.notes.history
        return {
            **asdict(self.plan),
            "killed": self.kills,
            "sent": len(history.sent),
            "acknowledged": len(history.acknowledged),
            "transactions": len(history.fates),
            "seen": len(history.seen),
            "generations": len({(one.group, one.generation) for one in history.owned}),
            "happened": dict(sorted(self.notes.tally.items())),
            "broken": [one._asdict() for one in check(history)],
        }
