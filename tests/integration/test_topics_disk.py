"""The broker and its disk: a full one, retention, compaction, restarts. All over the socket."""

from __future__ import annotations

import resource
import time
from pathlib import Path

import pytest

from holdfast.topics.broker.core import batch
from holdfast.topics.broker.core.records import read_records
from holdfast.topics.broker.protocol import apis
from holdfast.topics.broker.protocol.codes import ErrorCode
from holdfast.topics.broker.protocol.data import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from tests.integration.test_topics_broker import creation, fetch, produce
from tests.servers.broker import BrokerServer, Wire
from tests.unit.topics.made import make_batch
from tests.waiting import eventually

pytestmark = pytest.mark.engines

SMALL_SEGMENT = "1048576"
LARGE = 600_000


def limit_files(server: BrokerServer, size: int) -> None:
    """No file of the broker may grow beyond this: to it, the disk is full."""
    resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


def start_of(wire: Wire, name: str) -> int:
    part = ListOffsetsPartition(partition=0, timestamp=-2)
    topic = ListOffsetsTopic(name=name, partitions=[part])
    asked = ListOffsetsRequest(replica_id=-1, topics=[topic])
    return int(wire.call(apis.LIST_OFFSETS, 7, asked).topics[0].partitions[0].offset)


def read_all(wire: Wire, name: str) -> list[tuple[bytes | None, bytes | None]]:
    """Keys and values of all records."""
    offset = start_of(wire, name)
    found: list[tuple[bytes | None, bytes | None]] = []
    while True:
        part = fetch(wire, name, offset)
        data, at = bytes(part.records), 0
        if not data:
            return found
        while at + 61 <= len(data):
            header = batch.read_header(data, at)
            if at + header.size > len(data):
                break
            for record in read_records(data[at:], header):
                if record.offset >= offset:
                    found.append((record.key, record.value))
            at += header.size
            offset = header.last_offset + 1


def test_a_full_disk_refuses_writes_keeps_reads_and_loses_nothing(tmp_path: Path) -> None:
    with BrokerServer(tmp_path) as server:
        with server.wire() as wire:
            assert creation(wire, "t") is ErrorCode.NONE
            assert produce(wire, "t", make_batch(value=b"before")).error_code == 0
            limit_files(server, 2_000_000)
            taken = 1
            while produce(wire, "t", make_batch(value=bytes(100_000))).error_code == 0:
                taken += 1
                assert taken < 100
            refused = produce(wire, "t", make_batch(value=bytes(100_000)))
            assert refused.error_code == ErrorCode.KAFKA_STORAGE_ERROR
            assert len(read_all(wire, "t")) == taken
            limit_files(server, resource.RLIM_INFINITY)

            def written() -> bool:
                return produce(wire, "t", make_batch(value=b"after")).error_code == 0

            eventually(written, "writing goes on by itself")
            assert len(read_all(wire, "t")) == taken + 1
        server.kill()
        server.start()
        with server.wire() as wire:
            values = [value for _, value in read_all(wire, "t")]
            assert len(values) == taken + 1
            assert (values[0], values[-1]) == (b"before", b"after")


def test_what_is_too_old_goes_also_from_the_last_segment(tmp_path: Path) -> None:
    with BrokerServer(tmp_path, options=("--retention-s", "0.2")) as server, server.wire() as wire:
        creation(wire, "kept")
        creation(wire, "gone", retention_ms="1000")
        old = int(time.time() * 1000) - 60_000
        for name in ("kept", "gone"):
            produce(wire, name, make_batch(3, timestamp=old))
        eventually(lambda: start_of(wire, "gone") == 3, "what is too old is gone")
        assert start_of(wire, "kept") == 0
        assert produce(wire, "gone", make_batch()).base_offset == 3


def test_a_compacted_topic_becomes_small_and_says_the_same_after_a_kill(tmp_path: Path) -> None:
    with BrokerServer(tmp_path, options=("--retention-s", "0.2")) as server:
        with server.wire() as wire:
            creation(wire, "t", cleanup_policy="compact", segment_bytes=SMALL_SEGMENT)
            now = int(time.time() * 1000)
            for number in range(12):
                value = b"%d" % number + bytes(LARGE)
                key = b"k%d" % (number % 3)
                assert (
                    produce(wire, "t", make_batch(key=key, value=value, timestamp=now)).error_code
                    == 0
                )

            def is_small() -> bool:
                paths = (tmp_path / "data" / "logs").rglob("*.log")
                return sum(path.stat().st_size for path in paths) < 6 * LARGE

            eventually(is_small, "old values are gone")
            latest = dict(read_all(wire, "t"))
            assert {key: (value or b"")[:2].strip(b"\0") for key, value in latest.items()} == {
                b"k0": b"9",
                b"k1": b"10",
                b"k2": b"11",
            }
        server.kill()
        server.start()
        with server.wire() as wire:
            assert dict(read_all(wire, "t")) == latest
