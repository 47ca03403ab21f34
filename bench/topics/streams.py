"""One way to write and read for all servers: through confluent-kafka, or redis-py.

A record is a text of its time and zeros up to its size. What comes back is checked for its size
and counted.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, Final, Protocol

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from redis import Redis

from tests.servers import ServerProcess
from tests.servers.redis import RedisServer

PARTITIONS: Final = 4
# A pipeline of Redis: as many commands as a batch of the other client has records, about.
REDIS_AT_ONCE: Final = 500
TIMEOUT_S: Final = 60.0


class Streams(Protocol):
    """What the measures need of a server."""

    def create(self, name: str) -> None: ...

    def write(self, name: str, value: bytes, seconds: float, most: int = ...) -> tuple[int, float]:
        """Write as fast as it goes; how many were acknowledged, and in how many seconds."""

    def read(self, name: str, size: int, count: int) -> float:
        """Read so many from the beginning; in how many seconds."""

    def ticker(self, name: str) -> Ticker:
        """One who writes single records at once."""

    def follow(self, name: str) -> Iterator[list[bytes]]:
        """What is written from now on; ends never. The first list is empty: now it listens."""


class Ticker(Protocol):
    def send(self, value: bytes) -> None: ...

    def close(self) -> None: ...


class Wrong(Exception):
    """A server answered with an error, or with something else than was written."""


def streams_of(server: ServerProcess) -> Streams:
    if isinstance(server, RedisServer):
        return RedisStreams(server)
    return KafkaStreams(server.hosts)


# --- Kafka's protocol -----------------------------------------------------------------------------


class KafkaStreams:
    """confluent-kafka, as its users have it, with `acks=all` and idempotence."""

    def __init__(self, hosts: str) -> None:
        self.hosts = hosts

    def create(self, name: str) -> None:
        admin = AdminClient({"bootstrap.servers": self.hosts})
        admin.create_topics([NewTopic(name, PARTITIONS)])[name].result(TIMEOUT_S)
        # A real one answers before every part of it knows.
        producer, value = self._producer(1), b"0"
        for number in range(PARTITIONS):
            producer.produce(name, value, partition=number)
        if producer.flush(TIMEOUT_S):
            raise Wrong(f"{name} takes no records")

    def _producer(self, linger_ms: float) -> Producer:
        def delivered(error: KafkaError | None, _message: Message) -> None:
            if error is not None:
                raise Wrong(str(error))

        return Producer(
            {
                "bootstrap.servers": self.hosts,
                "enable.idempotence": True,
                "acks": "all",
                "linger.ms": linger_ms,
                "delivery.report.only.error": True,
                "on_delivery": delivered,
            }
        )

    def write(
        self, name: str, value: bytes, seconds: float, most: int = 1_000_000_000
    ) -> tuple[int, float]:
        producer, count = self._producer(5), 0
        began_s = time.perf_counter()
        while time.perf_counter() - began_s < seconds and count < most:
            for _ in range(min(500, most - count)):
                try:
                    producer.produce(name, value, partition=count % PARTITIONS)
                except BufferError:
                    producer.poll(0.01)
                    continue
                count += 1
            producer.poll(0)
        if producer.flush(TIMEOUT_S):
            raise Wrong(f"records of {name} were not acknowledged within {TIMEOUT_S:g} s")
        return count, time.perf_counter() - began_s

    def _consumer(self, **more: Any) -> Consumer:
        settings = {
            "bootstrap.servers": self.hosts,
            "group.id": "bench",
            "enable.auto.commit": False,
            **more,
        }
        return Consumer(settings)

    def read(self, name: str, size: int, count: int) -> float:
        consumer = self._consumer()
        consumer.assign([TopicPartition(name, number, 0) for number in range(PARTITIONS)])
        began_s, left = time.perf_counter(), count
        while left > 0:
            # It waits for as many as it is asked for.
            found = consumer.consume(min(1_000, left), 1.0)
            if not found and time.perf_counter() - began_s > TIMEOUT_S:
                raise Wrong(f"{left} records of {name} did not come")
            for message in found:
                if message.error() is not None:
                    raise Wrong(str(message.error()))
                left -= len(message.value() or b"") == size
        took_s = time.perf_counter() - began_s
        consumer.close()
        return took_s

    def ticker(self, name: str) -> Ticker:
        return _KafkaTicker(self._producer(0), name)

    def follow(self, name: str) -> Iterator[list[bytes]]:
        consumer = self._consumer()
        places = [TopicPartition(name, number) for number in range(PARTITIONS)]
        for place in places:
            _, place.offset = consumer.get_watermark_offsets(place, TIMEOUT_S)
        consumer.assign(places)
        try:
            yield []
            while True:
                message = consumer.poll(1.0)
                if message is None:
                    yield []
                elif message.error() is not None:
                    raise Wrong(str(message.error()))
                else:
                    yield [message.value() or b""]
        finally:
            consumer.close()


class _KafkaTicker:
    def __init__(self, producer: Producer, name: str) -> None:
        self._producer = producer
        self._name = name
        self._count = 0

    def send(self, value: bytes) -> None:
        self._count += 1
        self._producer.produce(self._name, value, partition=self._count % PARTITIONS)
        self._producer.poll(0)

    def close(self) -> None:
        if self._producer.flush(TIMEOUT_S):
            raise Wrong(f"records of {self._name} were not acknowledged")


# --- Redis ----------------------------------------------------------------------------------------


class RedisStreams:
    """redis-py: XADD in pipelines, XREAD. A stream has one partition."""

    def __init__(self, server: RedisServer) -> None:
        self.url = server.url

    def _link(self) -> Any:
        return Redis.from_url(self.url, socket_timeout=TIMEOUT_S)

    def create(self, name: str) -> None:
        self._link().xadd(name, {"v": b"0"})

    def write(
        self, name: str, value: bytes, seconds: float, most: int = 1_000_000_000
    ) -> tuple[int, float]:
        link, count = self._link(), 0
        began_s = time.perf_counter()
        while time.perf_counter() - began_s < seconds and count < most:
            pipe = link.pipeline(transaction=False)
            for _ in range(min(REDIS_AT_ONCE, most - count)):
                pipe.xadd(name, {"v": value})
            count += len(pipe.execute())
        return count, time.perf_counter() - began_s

    def read(self, name: str, size: int, count: int) -> float:
        link, last, left = self._link(), b"0", count
        began_s = time.perf_counter()
        while left > 0:
            found = link.xread({name: last}, count=1_000)
            if not found:
                raise Wrong(f"{left} records of {name} did not come")
            entries = _entries(found)
            last = entries[-1][0]
            left -= sum(len(fields[b"v"]) == size for _, fields in entries)
        return time.perf_counter() - began_s

    def ticker(self, name: str) -> Ticker:
        return _RedisTicker(self._link(), name)

    def follow(self, name: str) -> Iterator[list[bytes]]:
        link = self._link()
        last = link.xinfo_stream(name)["last-generated-id"]
        yield []
        while True:
            found = link.xread({name: last}, block=1_000)
            entries = _entries(found) if found else []
            last = entries[-1][0] if entries else last
            yield [fields[b"v"] for _, fields in entries]


def _entries(found: Any) -> list[tuple[bytes, dict[bytes, bytes]]]:
    """The entries of one stream, whichever way the protocol's version writes them."""
    if isinstance(found, dict):
        (lists,) = found.values()
        return [one for some in lists for one in some]
    return list(found[0][1])


class _RedisTicker:
    def __init__(self, link: Any, name: str) -> None:
        self._link = link
        self._name = name

    def send(self, value: bytes) -> None:
        self._link.xadd(self._name, {"v": value})

    def close(self) -> None:
        self._link.close()
