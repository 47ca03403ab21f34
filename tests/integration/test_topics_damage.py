"""What damage, a stranger and wrong batches do to a broker that runs: all over the socket."""

from __future__ import annotations

import resource
import socket
import struct
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from holdfast import topics
from holdfast.topics.broker.core import batch, records
from holdfast.topics.broker.protocol import apis
from holdfast.topics.broker.protocol.cluster import MetadataRequest, MetadataTopic
from holdfast.topics.broker.protocol.codes import ErrorCode
from holdfast.topics.consumer import Consumer
from holdfast.wire.errors import Unavailable
from tests.integration.test_topics_broker import creation, fetch, produce
from tests.integration.test_topics_disk import limit_files, read_all
from tests.servers.broker import BrokerServer, Wire
from tests.unit.topics.made import make_batch
from tests.unit.topics.test_damage import flip, sizes
from tests.waiting import eventually

pytestmark = pytest.mark.engines

MIB = 1024 * 1024
AWAY_S = 2.0


def resident_mib(server: BrokerServer) -> float:
    text = Path(f"/proc/{server.pid}/status").read_text()
    (line,) = [line for line in text.splitlines() if line.startswith("VmRSS")]
    return int(line.split()[1]) / 1024


def half_frame(server: BrokerServer, length: int, sent: int) -> socket.socket:
    """A connection on which a part of a frame was sent, as far as it is taken."""
    host, _, port = server.hosts.rpartition(":")
    made = socket.create_connection((host, int(port)), timeout=2.0)
    try:
        made.sendall(struct.pack("!i", length))
        for _ in range(sent // MIB):
            made.sendall(bytes(MIB))
    except OSError:
        pass  # it was ended, or is not read from
    return made


def test_strangers_fill_no_memory(tmp_path: Path) -> None:
    users = tmp_path / "users"
    users.write_text("admin top-secret super\n")
    options = ("--sasl-users", str(users))
    with BrokerServer(tmp_path / "server", options=options) as server:
        before = resident_mib(server)
        held = [half_frame(server, 99 * MIB, 20 * MIB) for _ in range(5)]
        held += [half_frame(server, 512 * 1024, 0) for _ in range(60)]
        for one in held[5:]:
            one.sendall(bytes(511 * 1024))
        assert resident_mib(server) - before < 60
        for one in held:
            one.close()


def test_half_frames_of_everybody_are_bounded_and_others_are_served(tmp_path: Path) -> None:
    with BrokerServer(tmp_path) as server, server.wire() as wire:
        assert creation(wire, "t") is ErrorCode.NONE
        before = resident_mib(server)
        held = [half_frame(server, 99 * MIB, 90 * MIB) for _ in range(6)]
        assert resident_mib(server) - before < 450
        assert produce(wire, "t", make_batch(value=bytes(900_000))).error_code == 0
        for one in held:
            one.close()


def damage_of(server: BrokerServer, number: int) -> None:
    """One batch of the topic `t` is not what was written; the broker is down."""
    for path in (server.data / "logs").rglob("*.log"):
        raw = path.read_bytes()
        if b"of-t" in raw:
            path.write_bytes(flip(raw, sizes(raw)[number] + 16))


def test_a_damaged_partition_answers_so_and_the_others_go_on(tmp_path: Path) -> None:
    with BrokerServer(tmp_path) as server:
        with server.wire() as wire:
            for name in ("t", "good"):
                assert creation(wire, name) is ErrorCode.NONE
                for _ in range(5):
                    produce(wire, name, make_batch(value=b"of-" + name.encode()))
        server.stop()
        damage_of(server, 3)
        server.start()
        with server.wire() as wire:
            part = fetch(wire, "t", 0)
            assert part.error_code == 0
            assert [one.base_offset for one in headers(bytes(part.records))] == [0, 1, 2]
            for offset in (3, 4, 5):
                assert fetch(wire, "t", offset).error_code == ErrorCode.KAFKA_STORAGE_ERROR
            refused = produce(wire, "t", make_batch())
            assert refused.error_code == ErrorCode.KAFKA_STORAGE_ERROR
            assert "salvage" in (server.folder / "output.log").read_text()
            assert len(read_all(wire, "good")) == 5
            assert produce(wire, "good", make_batch()).error_code == 0
            assert in_sync(wire, "t") == []
            assert in_sync(wire, "good") == [1]
        assert "Traceback" not in (server.folder / "output.log").read_text()


def headers(data: bytes) -> list[batch.Header]:
    return [batch.read_header(data, at) for at in sizes(data)]


def in_sync(wire: Wire, name: str) -> list[int]:
    asked = MetadataRequest(topics=[MetadataTopic(name=name)])
    (topic,) = wire.call(apis.METADATA, 9, asked).topics
    return list(topic.partitions[0].isr_nodes)


def test_a_consumer_is_told_of_a_damaged_partition(tmp_path: Path) -> None:
    with BrokerServer(tmp_path) as server:
        with topics.connect(f"kafka://{server.hosts}") as cluster:
            for name in ("t", "good"):
                cluster.admin.ensure(name)
                for _ in range(5):
                    cluster.producer().send(name, b"of-" + name.encode()).result()
        server.stop()
        damage_of(server, 3)
        server.start()
        with topics.connect(f"kafka://{server.hosts}") as cluster:
            consumer = Consumer(cluster.address, ["t", "good"], away_s=AWAY_S)
            found = []
            until_s = time.monotonic() + 20 * AWAY_S
            with pytest.raises(Unavailable, match=r"t\[0\] cannot be read after offset 2"):
                while time.monotonic() < until_s:
                    found += [(one.topic, one.offset) for one in consumer.poll(0.5)]
            assert sorted(found) == [("good", at) for at in range(5)] + [
                ("t", at) for at in range(3)
            ]
            consumer.close()


class FullDisk(BrokerServer):
    """A broker for which the disk is full when it starts."""

    is_full = False

    def command(self) -> Sequence[str]:
        limit = ["bash", "-c", 'ulimit -S -f 1000; exec "$@"', "limit"]
        return [*(limit if self.is_full else ()), *super().command()]


def test_a_start_on_a_full_disk_serves_all_that_was_acknowledged(tmp_path: Path) -> None:
    with FullDisk(tmp_path) as server:
        with server.wire() as wire:
            assert creation(wire, "t") is ErrorCode.NONE
            for _ in range(20):
                assert produce(wire, "t", make_batch(value=bytes(100_000))).error_code == 0
        server.kill()
        server.is_full = True
        server.start()
        with server.wire() as wire:
            assert len(read_all(wire, "t")) == 20
            assert len(bytes(fetch(wire, "t", 19).records)) > 100_000
            refused = produce(wire, "t", make_batch())
            assert refused.error_code == ErrorCode.KAFKA_STORAGE_ERROR
            limit_files(server, resource.RLIM_INFINITY)

            def written() -> bool:
                return produce(wire, "t", make_batch(value=b"after")).error_code == 0

            eventually(written, "writing goes on by itself")
            assert len(read_all(wire, "t")) == 21


# --- batches that are not what they say -----------------------------------------------------------


def counted(body: bytes, count: int, codec: int, timestamp: int) -> bytes:
    plain = batch.make([body], timestamp=timestamp, attributes=codec)
    header = batch.read_header(plain)._replace(last_offset_delta=count - 1)
    return batch.remake(header, body, count)


ONE = records.encode(0, 0, b"k", b"v")
TWO = ONE + records.encode(1, 0, b"k", b"v")


@pytest.mark.parametrize("codec", range(4))
@pytest.mark.parametrize(
    ("body", "count"),
    [
        (TWO, 1),
        (TWO, 3),
        (ONE + ONE, 2),
        (TWO + b"junkjunk", 2),
        (TWO + bytes(8), 2),
        (b"", 1),
        (bytes((200, 1)) + ONE[1:], 1),
        (records.encode(0, 0, b"k", b"v" * 40)[:-9], 1),
    ],
    ids=["more", "fewer", "offsets", "junk", "zeros", "empty", "long", "cut"],
)
def test_a_batch_whose_records_are_not_those_it_counts_is_refused(
    body: bytes, count: int, codec: int
) -> None:
    data = counted(records.pack(body, codec), count, codec, 1_000)
    assert records.why_refused(data, batch.check(data, MIB))


@pytest.mark.parametrize("codec", range(5))
@pytest.mark.parametrize("count", [1, 2, 3, 4, 15, 16, 17, 3_000])
def test_a_batch_that_is_right_is_taken(count: int, codec: int) -> None:
    body = b"".join(
        records.encode(at, at, None, b"v" * (at % 90), (("h", b"x"), ("n", None)))
        for at in range(count)
    )
    data = counted(records.pack(body, codec), count, codec, 1_000)
    assert not records.why_refused(data, batch.check(data, MIB))


@pytest.mark.parametrize("codec", [1, 3, 4])
def test_a_batch_that_is_not_packed_as_it_says_is_refused_however_large(codec: int) -> None:
    body = b"".join(records.encode(at, at, None, bytes(100)) for at in range(1_000))
    data = counted(body, 1_000, codec, 1_000)
    assert records.why_refused(data, batch.check(data, MIB))


def test_wrong_batches_are_answered_with_invalid_record(tmp_path: Path) -> None:
    with BrokerServer(tmp_path) as server, server.wire() as wire:
        assert creation(wire, "t") is ErrorCode.NONE
        for data, code in (
            (counted(TWO, 1, 0, 1_000), ErrorCode.INVALID_RECORD),
            (counted(TWO, 2, 1, 1_000), ErrorCode.INVALID_RECORD),
            (counted(ONE, 1, 0, -(2**63)), ErrorCode.INVALID_TIMESTAMP),
            (batch.stamp(make_batch(), 7), ErrorCode.INVALID_RECORD),
            (counted(ONE, 1, 0, -1), ErrorCode.NONE),
        ):
            assert produce(wire, "t", data).error_code == code
        assert len(read_all(wire, "t")) == 1


def test_a_broker_whose_topics_would_have_no_partition_does_not_start(tmp_path: Path) -> None:
    server = BrokerServer(tmp_path, options=("--partitions", "0"))
    with pytest.raises(RuntimeError, match="cannot have 0 partitions"):
        server.start()
