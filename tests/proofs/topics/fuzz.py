"""`python -m tests.proofs.topics.fuzz`: millions of wrong bytes at the broker's socket.

After each round of attacks a client that behaves finds its records, nothing is left open, and
the broker has no more memory than it had, but for what was really stored.
"""

from __future__ import annotations

import argparse
import random
import re
import secrets
import shutil
import socket
import struct
import sys
import tempfile
import time
from collections import Counter, deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from holdfast.topics.broker.core import batch
from holdfast.topics.broker.core.records import read_records
from holdfast.topics.broker.protocol import apis
from holdfast.topics.broker.protocol.apis import APIS
from holdfast.topics.broker.protocol.cluster import MetadataRequest, MetadataTopic
from holdfast.topics.broker.protocol.data import (
    FetchPartition,
    FetchRequest,
    FetchTopic,
    ProducePartition,
    ProduceRequest,
    ProduceTopic,
)
from tests.proofs.running import hear_signals, say
from tests.servers.broker import BrokerServer, Wire
from tests.unit.topics.made import make_batch
from tests.unit.topics.test_codec import messages
from tests.waiting import eventually

GUARDED: Final = "guarded"
# Connections that send half a frame and stay.
LINGERING_MAX: Final = 200
ROUND_BYTES: Final = 500_000
# Python's own arenas, and the buffers of frames that never become whole.
RSS_SLACK_BYTES: Final = 96 * 1024 * 1024
FILES_SLACK: Final = 8
# How long somebody else may wait while this goes on.
ANSWER_S: Final = 60.0
EXAMPLES: Final = 6


class Harmed(Exception):
    """The broker did not take it well."""


def good_requests(number: int) -> list[bytes]:
    """Requests of every kind and of many versions, with all kinds of values: whole frames."""
    made: list[bytes] = []

    @seed(number)
    @settings(
        max_examples=EXAMPLES,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(data=st.data())
    def draw(data: st.DataObject) -> None:
        for api in APIS.values():
            version = data.draw(st.integers(max(api.first, api.decoded_from), api.last))
            body = data.draw(messages(api.request, version))
            made.append(apis.encode_request(api, version, 7, "fuzz", body))

    draw()
    topic = ProduceTopic(
        name="fuzzed", partitions=[ProducePartition(index=0, records=make_batch(3))]
    )
    made += [
        apis.encode_request(
            apis.PRODUCE,
            7,
            8,
            "fuzz",
            ProduceRequest(transactional_id=None, acks=-1, timeout_ms=1_000, topics=[topic]),
        )
    ] * EXAMPLES
    return made


class Attacker:
    """Sends wrong bytes in every way there is."""

    def __init__(self, server: BrokerServer, draw: random.Random) -> None:
        self.server = server
        self.draw = draw
        self.bytes = 0
        self.tally: Counter[str] = Counter()
        self._good = good_requests(draw.getrandbits(32))
        self._lingering: deque[socket.socket] = deque(maxlen=LINGERING_MAX)

    def attack(self, size: int) -> None:
        until = self.bytes + size
        ways = (
            self._noise,
            self._framed_noise,
            self._mutated,
            self._mutated,
            self._wrong_length,
            self._half_a_frame,
            self._unread,
        )
        while self.bytes < until:
            way = self.draw.choice(ways)
            self.tally[way.__name__.lstrip("_")] += 1
            with suppress(OSError):  # the broker ends such a connection when it likes
                way()

    def end(self) -> None:
        while self._lingering:
            self._lingering.pop().close()

    def _open(self) -> socket.socket:
        return socket.create_connection((self.server.host, self.server.port), timeout=ANSWER_S)

    def _send(self, link: socket.socket, data: bytes) -> None:
        self.bytes += len(data)
        link.sendall(data)

    def _listen(self, link: socket.socket) -> None:
        link.settimeout(0.002)
        with suppress(TimeoutError):
            if not link.recv(65_536):
                self.tally["closed by the broker"] += 1

    def _noise(self) -> None:
        with self._open() as link:
            self._send(link, self.draw.randbytes(self.draw.choice((1, 3, 4, 60, 4_000, 60_000))))
            self._listen(link)

    def _framed_noise(self) -> None:
        with self._open() as link:
            for _ in range(10):
                api = self.draw.choice(list(APIS.values()))
                version = self.draw.randint(api.first - 1, api.last + 1)
                head = struct.pack("!hhih", api.key, version, 1, -1)
                frame = head + self.draw.randbytes(self.draw.randrange(2_000))
                self._send(link, struct.pack("!i", len(frame)) + frame)
            self._listen(link)

    def _mutated(self) -> None:
        with self._open() as link:
            for _ in range(5):
                frame = bytearray(self.draw.choice(self._good)[4:])
                for _ in range(self.draw.randint(0, 4)):
                    self._mutate(frame)
                self._send(link, struct.pack("!i", len(frame)) + frame)
            self._listen(link)

    def _mutate(self, frame: bytearray) -> None:
        at = self.draw.randrange(len(frame) + 1)
        kind = self.draw.randrange(5)
        if kind == 0 and at < len(frame):
            frame[at] ^= 1 << self.draw.randrange(8)
        elif kind == 1:
            del frame[at : at + self.draw.randint(1, 8)]
        elif kind == 2:
            frame[at:at] = self.draw.randbytes(self.draw.randint(1, 8))
        elif kind == 3:
            # Lengths and counts as large, as small, as wrong as they can be.
            wrong = self.draw.choice((2**31 - 1, -1, -2, -(2**31), 2**24, 0x7FFF7FFF))
            frame[at : at + 4] = struct.pack("!i", wrong)
        else:
            del frame[at:]

    def _wrong_length(self) -> None:
        with self._open() as link:
            wrong = self.draw.choice((-1, -(2**31), 2**31 - 1, 100 * 1024 * 1024 + 1, 0, 3))
            frame = self.draw.choice(self._good)[4:]
            self._send(link, struct.pack("!i", wrong) + frame)
            self._listen(link)

    def _half_a_frame(self) -> None:
        link = self._open()
        if len(self._lingering) == LINGERING_MAX:
            self._lingering[0].close()
        self._lingering.append(link)
        frame = self.draw.choice(self._good)
        promised = self.draw.choice((len(frame) + 100, 99 * 1024 * 1024))
        self._send(link, struct.pack("!i", promised) + frame)

    def _unread(self) -> None:
        """Ask much, and read nothing of it."""
        with self._open() as link:
            ask = MetadataRequest(topics=None)
            data = apis.encode_request(apis.METADATA, 9, 1, "fuzz", ask) * 20
            self._send(link, data)


class Guard:
    """A client that behaves: writes a record in each round, and finds all of them."""

    def __init__(self, server: BrokerServer) -> None:
        self.server = server
        self.records = 0
        with server.wire() as wire:
            wire.call(apis.METADATA, 9, MetadataRequest(topics=[MetadataTopic(name=GUARDED)]))
        self.check()
        self.base_rss, self.base_files = self.rss_bytes(), self.files()

    def check(self) -> None:
        """Raise `Harmed` unless all is well."""
        process = self.server.process
        if process is None or process.poll() is not None:
            raise Harmed(f"the broker ended:\n{self.server.output()}")
        began_s = time.monotonic()
        with Wire(self.server.hosts) as wire:
            self._write(wire)
            self._read(wire)
        if time.monotonic() - began_s > ANSWER_S:
            raise Harmed(f"others waited for {time.monotonic() - began_s:.1f} s")
        output = (self.server.folder / "output.log").read_text(errors="replace")
        found = re.search(r"Traceback|was not handled|never awaited|\[(error|critical)\b", output)
        if found:
            raise Harmed(f"unexpected output: {output[max(0, found.start() - 500) :][:3000]}")

    def check_rest(self) -> None:
        """What was opened is closed, and memory is bounded."""
        eventually(
            lambda: self.files() <= self.base_files + FILES_SLACK + len(self._segments()),
            f"connections are closed: {self.files()} files, {self.base_files} before",
        )
        rss = self.rss_bytes()
        if rss > self.base_rss + RSS_SLACK_BYTES:
            raise Harmed(f"the broker takes {rss:,} bytes, and {self.base_rss:,} before")

    def _segments(self) -> list[Path]:
        return list((self.server.data / "logs").glob("*/*/*.log"))

    def _write(self, wire: Wire) -> None:
        value = b"%d" % self.records
        part = ProducePartition(index=0, records=make_batch(1, value=value))
        asked = ProduceRequest(
            transactional_id=None,
            acks=-1,
            timeout_ms=1_000,
            topics=[ProduceTopic(name=GUARDED, partitions=[part])],
        )
        answer = wire.call(apis.PRODUCE, 7, asked).topics[0].partitions[0]
        if answer.error_code or answer.base_offset != self.records:
            raise Harmed(f"record {self.records} was answered with {answer}")
        self.records += 1

    def _read(self, wire: Wire) -> None:
        part = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=10_000_000)
        asked = FetchRequest(
            max_wait_ms=0, min_bytes=0, topics=[FetchTopic(topic=GUARDED, partitions=[part])]
        )
        data: Any = wire.call(apis.FETCH, 11, asked).topics[0].partitions[0].records
        at, values = 0, []
        while at < len(data):
            header = batch.read_header(data, at)
            piece = bytes(data[at : at + header.size])
            values += [one.value for one in read_records(piece, header)]
            at += header.size
        if values != [b"%d" % number for number in range(self.records)]:
            raise Harmed(f"{len(values)} of {self.records} records are there")

    def files(self) -> int:
        return len(list(Path(f"/proc/{self.server.pid}/fd").iterdir()))

    def rss_bytes(self) -> int:
        status = Path(f"/proc/{self.server.pid}/status").read_text()
        found = re.search(r"^VmRSS:\s+(\d+) kB$", status, re.MULTILINE)
        assert found is not None, status
        return int(found[1]) * 1024


def fuzz(folder: Path, *, size: int, number: int, say: Callable[[str], None]) -> Attacker:
    """Send `size` wrong bytes or more; `Harmed` if the broker minds."""
    with BrokerServer(folder) as server:
        guard = Guard(server)
        attacker = Attacker(server, random.Random(number))
        while attacker.bytes < size:
            attacker.attack(min(ROUND_BYTES, size - attacker.bytes))
            guard.check()
            say(f"{attacker.bytes:>12,} bytes; {guard.rss_bytes() / 1e6:.0f} MB")
        attacker.end()
        guard.check_rest()
        guard.check()
    return attacker


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.proofs.topics.fuzz", description=__doc__)
    parser.add_argument("--megabytes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=secrets.randbits(32))
    given = parser.parse_args()
    hear_signals()
    folder = Path(tempfile.mkdtemp(prefix="holdfast-fuzz-"))
    say(f"seed {given.seed}, data in {folder}")
    try:
        size = int(given.megabytes * 1_000_000)
        attacker = fuzz(folder, size=size, number=given.seed, say=say)
    except Harmed as harm:
        say(f"HARMED: {harm}\nseed {given.seed}; the data folder is kept in {folder}")
        return 1
    except KeyboardInterrupt:
        say(f"interrupted; nothing is left running; data in {folder}")
        return 130
    say(f"the broker is well after {attacker.bytes:,} bytes: {dict(attacker.tally)}")
    shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
