"""Ours alone: 10,000 partitions with 1,000 idle consumers, and a log of many gigabytes.

An idle consumer is what a client is to the broker: a group of its own, a connection that sends
signs of life, and one on which a fetch waits. A thousand real clients would be ten thousand
threads of this machine.
"""

from __future__ import annotations

import asyncio
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from bench.coordination.report import percentile
from bench.topics.contestants import OURS, memory_mb, time_start
from bench.topics.report import Goal, Row
from bench.topics.streams import TIMEOUT_S, KafkaStreams, Wrong
from holdfast.topics.broker.protocol import apis
from holdfast.topics.broker.protocol.apis import Api
from holdfast.topics.broker.protocol.data import (
    FetchPartition,
    FetchRequest,
    FetchTopic,
)
from holdfast.topics.broker.protocol.groups import (
    Assignment,
    HeartbeatRequest,
    JoinGroupRequest,
    JoinProtocol,
    SyncGroupRequest,
)
from tests.servers.broker import BrokerServer

TOPICS_OF: Final = 100  # partitions of a topic
FILL_S: Final = 280.0
SESSION_MS: Final = 30_000
BEAT_S: Final = 3.0
FETCH_MS: Final = 5_000
RESTART: Final = Goal(3.0, at_least=False)
MEMORY: Final = Goal(150.0, at_least=False)


# --- idle consumers -------------------------------------------------------------------------------


class Caller:
    """A connection on which one request waits at a time."""

    def __init__(self, host: str, port: int) -> None:
        self._where = host, port
        self._correlation = 0
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def call(self, api: Api, version: int, request: object) -> Any:
        if self._streams is None:
            self._streams = await asyncio.open_connection(*self._where)
        reader, writer = self._streams
        self._correlation += 1
        writer.write(apis.encode_request(api, version, self._correlation, "idle", request))
        (size,) = struct.unpack("!i", await reader.readexactly(4))
        return apis.decode_response(api, version, await reader.readexactly(size))[1]

    def drop(self) -> None:
        if self._streams is not None:
            self._streams[1].transport.abort()
            self._streams = None


class IdleConsumer:
    """A member of a group of its own, which waits for records that do not come."""

    def __init__(self, number: int, host: str, port: int, places: list[tuple[str, int]]) -> None:
        self.group = f"idle-{number}"
        self.places = places
        self.beats = 0
        self.lost = 0
        self._lives, self._fetches = Caller(host, port), Caller(host, port)
        self._member, self._generation = "", -1

    async def join(self) -> None:
        for _ in range(2):
            asked = JoinGroupRequest(
                group_id=self.group,
                session_timeout_ms=SESSION_MS,
                rebalance_timeout_ms=SESSION_MS,
                member_id=self._member,
                protocol_type="consumer",
                protocols=[JoinProtocol(name="range", metadata=b"")],
            )
            joined = await self._lives.call(apis.JOIN_GROUP, 5, asked)
            self._member, self._generation = joined.member_id, joined.generation_id
        if joined.error_code:
            raise Wrong(f"{self.group} was refused: {joined.error_code}")
        given = [Assignment(member_id=self._member, assignment=b"mine")]
        synced = await self._lives.call(
            apis.SYNC_GROUP,
            3,
            SyncGroupRequest(
                group_id=self.group,
                generation_id=self._generation,
                member_id=self._member,
                assignments=given,
            ),
        )
        if synced.error_code:
            raise Wrong(f"{self.group} has no assignment: {synced.error_code}")

    async def stay(self, stop: asyncio.Event) -> None:
        """Beat and wait until told to stop; a broken connection is made anew."""
        await asyncio.gather(self._beat(stop), self._wait(stop))

    async def _beat(self, stop: asyncio.Event) -> None:
        while not stop.is_set():
            asked = HeartbeatRequest(
                group_id=self.group, generation_id=self._generation, member_id=self._member
            )
            try:
                answer = await self._lives.call(apis.HEARTBEAT, 3, asked)
                self.beats += 1
                self.lost += bool(answer.error_code)
            except (OSError, EOFError):
                self._lives.drop()
            await asyncio.sleep(BEAT_S)

    async def _wait(self, stop: asyncio.Event) -> None:
        topics: dict[str, list[FetchPartition]] = {}
        for name, number in self.places:
            wanted = FetchPartition(partition=number, fetch_offset=1, partition_max_bytes=1_048_576)
            topics.setdefault(name, []).append(wanted)
        asked = FetchRequest(
            max_wait_ms=FETCH_MS,
            min_bytes=1,
            topics=[FetchTopic(topic=name, partitions=some) for name, some in topics.items()],
        )
        while not stop.is_set():
            try:
                await self._fetches.call(apis.FETCH, 11, asked)
            except (OSError, EOFError):
                self._fetches.drop()
                await asyncio.sleep(0.5)

    def leave(self) -> None:
        self._lives.drop()
        self._fetches.drop()


def crowd(
    folder: Path, partitions: int, consumers: int, seconds: float, say: Callable[[str], None]
) -> list[Row]:
    """Many partitions and idle consumers: what they cost, and whether a restart is soon."""
    what = f"{partitions:,} partitions, {consumers:,} idle consumers"
    rows = [
        Row("scale", f"{what}: resident memory", "MB"),
        Row("scale", f"{what}: processor", "% of a core"),
        Row("scale", f"{what}: p99 of single acknowledged records beside them", "ms"),
        Row("scale", f"{what}: members that were lost", "", Goal(0, at_least=False)),
        Row("scale", f"{what}: restart after kill -9", "s", RESTART),
        Row("scale", f"{what}: members that were lost in the restart", "", Goal(0, at_least=False)),
    ]
    with BrokerServer(folder) as server:
        names = _fill_partitions(server.hosts, partitions, say)
        values = asyncio.run(_hold(server, names, consumers, seconds, say))
    for row, value in zip(rows, values, strict=True):
        row.add(OURS, value)
    return rows


def _fill_partitions(hosts: str, partitions: int, say: Callable[[str], None]) -> list[str]:
    say(f"making {partitions:,} partitions, with a record each")
    each = min(TOPICS_OF, partitions)
    names = [f"many-{number}" for number in range(partitions // each)]
    admin = AdminClient({"bootstrap.servers": hosts})
    for made in admin.create_topics([NewTopic(name, each) for name in names]).values():
        made.result(TIMEOUT_S)
    producer = Producer({"bootstrap.servers": hosts, "linger.ms": 50})
    for name in names:
        for number in range(each):
            producer.produce(name, bytes(100), partition=number)
        producer.poll(0)
    if producer.flush(FILL_S):
        raise Wrong("not every partition has taken its record")
    return names


async def _hold(
    server: BrokerServer, names: list[str], count: int, seconds: float, say: Callable[[str], None]
) -> list[float]:
    each = max(1, len(names) * TOPICS_OF // count)
    places = [(name, number) for name in names for number in range(TOPICS_OF)]
    idle = []
    for number in range(count):
        mine = [places[(number * each + at) % len(places)] for at in range(each)]
        idle.append(IdleConsumer(number, server.host, server.port, mine))
    say(f"{count:,} consumers join")
    for first in range(0, count, 100):
        await asyncio.gather(*(one.join() for one in idle[first : first + 100]))
    stop = asyncio.Event()
    staying = asyncio.gather(*(one.stay(stop) for one in idle))
    say(f"they wait for {seconds:g} s")
    before_s, began_s = processor_s(server.pid), time.perf_counter()
    took = await asyncio.to_thread(_single_records, server.hosts, seconds)
    share = (processor_s(server.pid) - before_s) / (time.perf_counter() - began_s) * 100
    memory = memory_mb(server)
    lost = sum(one.lost for one in idle)
    say("kill -9, and again")
    server.kill()
    restart_s = await asyncio.to_thread(time_start, server)
    await asyncio.sleep(2 * BEAT_S)
    lost_later = sum(one.lost for one in idle) - lost
    stop.set()
    for one in idle:
        one.leave()
    await asyncio.wait_for(staying, TIMEOUT_S)
    return [memory, share, percentile(took, 0.99), lost, restart_s, lost_later]


def _single_records(hosts: str, seconds: float) -> list[float]:
    """Milliseconds of one acknowledged record after the other, a hundred a second."""
    KafkaStreams(hosts).create("beside")
    producer = Producer({"bootstrap.servers": hosts, "linger.ms": 0, "acks": "all"})
    took = []
    until_s = time.perf_counter() + seconds
    while time.perf_counter() < until_s:
        began_s = time.perf_counter()
        producer.produce("beside", bytes(100))
        if producer.flush(TIMEOUT_S):
            raise Wrong("a record beside the crowd was not acknowledged")
        took.append((time.perf_counter() - began_s) * 1_000)
        time.sleep(0.01)
    return sorted(took)


def processor_s(pid: int) -> float:
    """Seconds of the processor that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


# --- a large log ----------------------------------------------------------------------------------


def large_log(folder: Path, gigabytes: float, say: Callable[[str], None]) -> list[Row]:
    """A log of many gigabytes: memory while it grows and after a restart; how long that takes."""
    what = f"{gigabytes:g} GB of log"
    growing = Row("scale", f"{what}: resident memory, at most", "MB", MEMORY)
    restart = Row("scale", f"{what}: restart after kill -9", "s", RESTART)
    after = Row("scale", f"{what}: resident memory after the restart", "MB", MEMORY)
    reading = Row("scale", f"{what}: first record of each partition, after it", "ms")
    with BrokerServer(folder) as server:
        streams = KafkaStreams(server.hosts)
        streams.create("large")
        value, count, most = bytes(10_000), 0, 0.0
        while count * len(value) < gigabytes * 1e9:
            count += streams.write("large", value, 3.0)[0]
            most = max(most, memory_mb(server))
            say(f"{count * len(value) / 1e9:.1f} of {gigabytes:g} GB, {memory_mb(server):.0f} MB")
        growing.add(OURS, most)
        server.kill()
        restart.add(OURS, time_start(server))
        began_s = time.perf_counter()
        _first_records(server.hosts)
        reading.add(OURS, (time.perf_counter() - began_s) * 1_000)
        after.add(OURS, memory_mb(server))
    return [growing, restart, after, reading]


def _first_records(hosts: str) -> None:
    consumer = Consumer({"bootstrap.servers": hosts, "group.id": "first"})
    for number in range(4):
        consumer.assign([TopicPartition("large", number, 1)])
        message = consumer.poll(TIMEOUT_S)
        if message is None or message.error() or len(message.value() or b"") != 10_000:
            raise Wrong(f"the first record of partition {number} is not what was written")
    consumer.close()
