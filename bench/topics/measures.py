"""What is measured in rounds: in each of them all servers, one after the other."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from bench.coordination.report import percentile
from bench.topics.contestants import make, memory_mb, time_start
from bench.topics.report import AT_LEAST_AS_MUCH, HALF, TENTH, THIRD, Row
from bench.topics.streams import Streams, Wrong, streams_of
from holdfast.system.tasks import WAITED, start_thread
from tests.servers import ServerProcess

SIZES: Final = (100, 1_000)
RATE: Final = 1_000
# Records of a tick's beginning, before the figures count.
WARM_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class Plan:
    """Sizes of a run."""

    name: str
    rounds: int
    window_s: float
    read_records: int
    tick_s: float
    starts: int
    warm_up_s: float


FULL: Final = Plan("full", 7, 4.0, 400_000, 10.0, 5, 10.0)
QUICK: Final = Plan("quick", 3, 1.0, 50_000, 3.0, 1, 2.0)
TINY: Final = Plan("tiny", 1, 0.1, 500, 0.3, 1, 0.1)


class Bench:
    """The servers of a run, all below one folder: all data on the same disk."""

    def __init__(
        self, plan: Plan, folder: Path, names: list[str], say: Callable[[str], None]
    ) -> None:
        self.plan = plan
        self.folder = folder
        self.names = names
        self.say = say
        self.servers: dict[str, ServerProcess] = {}
        self.streams: dict[str, Streams] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        for server in self.servers.values():
            server.stop()

    def start(self) -> list[Row]:
        """Start each several times; the last ones stay."""
        row = Row("start", "from the process to its first answer", "s", TENTH)
        for name in self.names:
            self.servers[name] = make(name, self.folder / name)
        for number in range(self.plan.starts):
            for name, server in self.servers.items():
                self.say(f"start {number + 1}: {name}")
                if server.process is not None:
                    server.stop()
                row.add(name, time_start(server))
        for name, server in self.servers.items():
            self.streams[name] = streams_of(server)
            self.say(f"warming up {name}")
            self.streams[name].create("warm")
            self.streams[name].write("warm", bytes(100), self.plan.warm_up_s)
        return [row]

    # --- rates --------------------------------------------------------------------------------

    def rates(self) -> list[Row]:
        """Write as fast as it goes, and read what was written."""
        rows = []
        for size in SIZES:
            writing = Row("produce", f"records of {size} B", "records/s", AT_LEAST_AS_MUCH)
            reading = Row("consume", f"records of {size} B", "records/s", AT_LEAST_AS_MUCH)
            for name, streams in self.streams.items():
                self.say(f"filling {name} with records of {size} B")
                streams.create(f"full-{size}")
                count, _ = streams.write(f"full-{size}", bytes(size), 600.0, self.plan.read_records)
                if count != self.plan.read_records:
                    raise Wrong(f"{name} took {count} records in ten minutes")
                streams.create(f"written-{size}")
            for number in range(self.plan.rounds):
                for name, streams in self.streams.items():
                    self.say(f"round {number + 1} of {self.plan.rounds}, {size} B: {name}")
                    count, took_s = streams.write(
                        f"written-{size}", bytes(size), self.plan.window_s
                    )
                    writing.add(name, count / took_s)
                    took_s = streams.read(f"full-{size}", size, self.plan.read_records)
                    reading.add(name, self.plan.read_records / took_s)
            rows += [writing, reading]
        return rows

    # --- latencies ----------------------------------------------------------------------------

    def latencies(self) -> list[Row]:
        """From a call that writes to the record in a reader's hands, at a constant rate."""
        rows = []
        for size in SIZES:
            what = f"records of {size} B, {RATE:,}/s"
            p50 = Row("end to end", f"{what}: p50", "ms", HALF)
            p99 = Row("end to end", f"{what}: p99", "ms", HALF)
            for name, streams in self.streams.items():
                self.say(f"end to end, {size} B: {name}")
                streams.create(f"ticks-{size}")
            for number in range(self.plan.rounds):
                for name, streams in self.streams.items():
                    self.say(f"round {number + 1} of {self.plan.rounds}, ticks: {name}")
                    took = Ticks(streams, f"ticks-{size}", size, self.plan.tick_s).run()
                    p50.add(name, percentile(took, 0.5))
                    p99.add(name, percentile(took, 0.99))
            rows += [p50, p99]
        return rows

    def memory(self) -> list[Row]:
        row = Row("memory", "resident, after all of this", "MB", THIRD)
        for name, server in self.servers.items():
            row.add(name, memory_mb(server))
        return [row]


class Ticks:
    """One writes a record every millisecond, one reads them."""

    def __init__(self, streams: Streams, name: str, size: int, seconds: float) -> None:
        self._streams = streams
        self._name = name
        self._size = size
        self._count = int((WARM_S + seconds) * RATE)
        self._took: list[float] = []
        self._ready = threading.Event()
        self._stop = threading.Event()

    def run(self) -> list[float]:
        """Milliseconds of each, sorted."""
        reader = start_thread(self._read, "reader", WAITED)
        if not self._ready.wait(60.0):
            raise Wrong(f"nobody can read {self._name}")
        ticker = self._streams.ticker(self._name)
        began_s = time.perf_counter()
        for number in range(self._count):
            due_s = began_s + number / RATE
            while (wait_s := due_s - time.perf_counter()) > 0:
                time.sleep(wait_s)
            # The time at which it was due: who is late waits, and that counts.
            ticker.send(f"{due_s:.7f} ".encode().ljust(self._size, b"0"))
        ticker.close()
        if not reader.join(30.0):
            self._stop.set()
        reader.result()
        if len(self._took) != self._count:
            raise Wrong(f"{len(self._took)} of {self._count} records of {self._name} came")
        return sorted(self._took[int(WARM_S * RATE) :])

    def _read(self) -> None:
        reading = self._streams.follow(self._name)
        next(reading)
        self._ready.set()
        for values in reading:
            now_s = time.perf_counter()
            for value in values:
                if len(value) != self._size:
                    raise Wrong(f"a record of {self._name} has {len(value)} bytes")
                self._took.append((now_s - float(value.partition(b" ")[0])) * 1_000)
            if len(self._took) >= self._count or self._stop.is_set():
                return
