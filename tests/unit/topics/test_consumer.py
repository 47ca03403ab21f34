"""What a consumer gives out, beside the errors that come between its records."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from confluent_kafka import KafkaError

from holdfast.topics.address import TopicsAddress
from holdfast.topics.consumer import Consumer
from holdfast.topics.records import TopicPosition
from holdfast.wire.errors import HoldfastError


@dataclass
class Message:
    """A record of librdkafka's, or the error that came in its place."""

    number: int = 0
    failure: KafkaError | None = None

    def error(self) -> KafkaError | None:
        return self.failure

    def topic(self) -> str:
        return "t"

    def partition(self) -> int:
        return 0

    def offset(self) -> int:
        return self.number

    def timestamp(self) -> tuple[int, int]:
        return 1, 1_000

    def key(self) -> None:
        return None

    def headers(self) -> list[Any]:
        return []

    def value(self) -> bytes:
        return b"%d" % self.number

    def leader_epoch(self) -> None:
        return None


def test_records_that_came_before_an_error_are_passed_over() -> None:
    """They counted as read: the next commit would have been behind them."""
    refused = Message(failure=KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED))
    nowhere = TopicsAddress.parse("kafka://127.0.0.1:1")
    with Consumer(nowhere, ["t"], start=[TopicPosition("t", 0, 0)]) as consumer:
        found = consumer._taken([Message(0), Message(1), refused, Message(2)])
        assert [record.offset for record in found] == [0, 1, 2]
        with pytest.raises(HoldfastError, match="cannot be read"):
            consumer.poll(0.1)
        with pytest.raises(HoldfastError, match="cannot be read"):
            consumer._taken([refused])
        assert [record.offset for record in consumer._taken([Message(3)])] == [3]
