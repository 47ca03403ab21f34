"""What the parts of the rim share: the state in memory, the disk's line, those connected."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from holdfast.coordination.embedded.connection import ClientConnection
from holdfast.coordination.embedded.pipeline import Pipeline, PipelineEntry
from holdfast.coordination.embedded.store import Store
from holdfast.coordination.embedded.watches import WatchTable
from holdfast.system.clock import Clock


@dataclass(slots=True)
class Counters:
    """What the server counts since it started."""

    since_s: float
    received: int = 0
    sent_closed: int = 0  # packets sent on connections that have ended
    answered: int = 0
    latency_sum_s: float = 0.0
    latency_min_s: float = 0.0
    latency_max_s: float = 0.0

    def took(self, latency_s: float) -> None:
        """A write took this long from its arrival to its answer."""
        if not self.answered or latency_s < self.latency_min_s:
            self.latency_min_s = latency_s
        self.answered += 1
        self.latency_sum_s += latency_s
        self.latency_max_s = max(self.latency_max_s, latency_s)

    @property
    def latency_average_s(self) -> float:
        return self.latency_sum_s / self.answered if self.answered else 0.0


class ServerContext:
    """The server as its parts see it. `disk_full` says why writes are refused now, if they are."""

    pipeline: Pipeline
    tells_all: bool  # every four-letter word is answered, whoever asks

    def __init__(
        self, loop: asyncio.AbstractEventLoop, store: Store, clock: Clock, tick_ms: int
    ) -> None:
        self.loop = loop
        self.store = store
        self.tree = store.tree
        self.clock = clock
        self.tick_ms = tick_ms
        self.watches: WatchTable[ClientConnection] = WatchTable()
        self.connections: set[ClientConnection] = set()
        self.counters = Counters(since_s=clock.now_s())
        self.disk_full = ""

    def now_ms(self) -> int:
        """The time by which sessions live."""
        return int(self.clock.now_s() * 1000)

    def submit(self, link: ClientConnection, entry: PipelineEntry) -> None:
        """Put something of a connection's in the line."""
        link.queued(len(entry.body))
        self.pipeline.submit(entry)
