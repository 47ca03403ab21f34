"""What tests of the broker's core put together: batches, topics, a state that is written to."""

from __future__ import annotations

from typing import Any

from holdfast.topics.broker.core import batch, commands, records
from holdfast.topics.broker.core.commands import AnyCommand
from holdfast.topics.broker.core.state import BrokerState, CommandOutcome, Written
from holdfast.topics.broker.protocol.codes import ErrorCode

TOPIC_ID = b"topic-number-one"


def make_batch(
    count: int = 1,
    *,
    producer: tuple[int, int] = (-1, -1),
    sequence: int = -1,
    transactional: bool = False,
    timestamp: int = 1_000,
    key: bytes | None = b"k",
    value: bytes | None = b"v",
) -> bytes:
    """A batch of equal records, a millisecond apart."""
    body = [records.encode(at, at, key, value) for at in range(count)]
    return batch.make(
        body,
        timestamp=timestamp,
        max_timestamp=timestamp + count - 1,
        producer_id=producer[0],
        producer_epoch=producer[1],
        base_sequence=sequence,
        attributes=batch.TRANSACTIONAL if transactional else 0,
    )


class Driver:
    """A state, and what was written to each partition's log."""

    def __init__(self) -> None:
        self.state = BrokerState()
        self.now_ms = 10_000
        self.written: dict[tuple[bytes, int], list[bytes]] = {}

    def do(self, command: AnyCommand) -> CommandOutcome:
        outcome = self.state.apply(command, self.now_ms)
        for effect in outcome.effects:
            if isinstance(effect, Written):
                key = effect.topic_id, effect.partition
                self.written.setdefault(key, []).append(effect.data)
        return outcome

    def good(self, command: AnyCommand) -> Any:
        """What it brings, if it is not refused."""
        outcome = self.do(command)
        assert outcome.error is ErrorCode.NONE, outcome
        return outcome.value

    def error(self, command: AnyCommand) -> ErrorCode:
        return self.do(command).error

    def create(self, name: str = "t", partitions: int = 2, **configs: str) -> bytes:
        own = {key.replace("_", "."): value for key, value in configs.items()}
        topic_id = name.encode().ljust(16, b"-")
        self.good(commands.CreateTopic(name, topic_id, partitions, own))
        return topic_id

    def producer(
        self, transactional_id: str | None = None, timeout_ms: int = 60_000
    ) -> tuple[int, int]:
        made = self.good(commands.InitProducer(transactional_id, timeout_ms, -1, -1))
        return made.producer_id, made.epoch


def append(
    topic_id: bytes, data: bytes, partition: int = 0, transactional_id: str | None = None
) -> commands.Append:
    return commands.Append(topic_id, partition, transactional_id, data)
