"""The servers that are measured, as processes, and how much memory they have."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from bench.coordination.contestants import family, rss_bytes
from tests.servers import ServerProcess
from tests.servers.broker import BrokerServer
from tests.servers.kafka import KafkaServer, kafka_missing
from tests.servers.redis import RedisServer, redis_missing

OURS: Final = "ours"
KAFKA, KAFKA_FLUSH = "kafka", "kafka-flush"
REDIS_ALWAYS, REDIS_SECOND = "redis-always", "redis-everysec"
EVERY: Final = (OURS, KAFKA_FLUSH, KAFKA, REDIS_ALWAYS, REDIS_SECOND)
START_S_MAX: Final = 120.0

# The Java switches of Kafka's own kafka-server-start.sh and kafka-run-class.sh.
_SWITCHES: Final = (
    "-Xmx1G",
    "-Xms1G",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
)
# Tests give it less of everything.
_OF_TESTS: Final = ("-Xm", "-XX:")


class Kafka(KafkaServer):
    """A real Kafka with the switches of its own scripts."""

    def command(self) -> Sequence[str]:
        words = super().command()
        return [words[0], *_SWITCHES, *(one for one in words[1:] if not one.startswith(_OF_TESTS))]


def missing(names: Sequence[str]) -> list[str]:
    """What cannot be measured here, and why."""
    found = []
    if any(name.startswith("kafka") for name in names) and (why := kafka_missing()):
        found.append(why)
    if any(name.startswith("redis") for name in names) and (why := redis_missing()):
        found.append(why)
    return found


def make(name: str, folder: Path) -> ServerProcess:
    """A server over `folder`, not started; all that it does once in its life is done."""
    if name == OURS:
        return BrokerServer(folder)
    if name.startswith("kafka"):
        lines = ["log.flush.interval.messages=1"] if name == KAFKA_FLUSH else []
        made = Kafka(folder, properties=lines)
        made.format()
        return made
    how = "always" if name == REDIS_ALWAYS else "everysec"
    return RedisServer(folder, "--appendonly", "yes", "--appendfsync", how)


def time_start(server: ServerProcess) -> float:
    """Start it; seconds until it has answered."""
    began_s = time.perf_counter()
    server.launch()
    while not server.ready():
        if time.perf_counter() - began_s > START_S_MAX:
            raise RuntimeError(f"no answer {START_S_MAX:g} s after the start:\n{server.output()}")
        if server.process is None or server.process.poll() is not None:
            raise RuntimeError(f"the server ended while it started:\n{server.output()}")
        time.sleep(0.002)
    return time.perf_counter() - began_s


def memory_mb(server: ServerProcess) -> float:
    """Resident memory of the server and its children."""
    return sum(map(rss_bytes, family(server.pid))) / 1e6
