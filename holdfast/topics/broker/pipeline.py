"""The line in which writes wait for the disk.

What gathers while the disk is busy goes to it together: one append to the journal, one sync, then
each command is applied and whoever asked is called. Nothing is applied, and so nothing can be
read, before it is durable.
"""

from __future__ import annotations

import asyncio
import queue
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Protocol

from holdfast.system.clock import Clock
from holdfast.system.tasks import in_loop, start_thread
from holdfast.topics.broker.core import commands
from holdfast.topics.broker.core.commands import AnyCommand
from holdfast.topics.broker.core.state import CommandOutcome
from holdfast.topics.broker.disk.journal import encode_entry
from holdfast.topics.broker.protocol.codes import ErrorCode
from holdfast.wire.errors import Full

# What shares a sync and is applied in one turn of the loop: about ten milliseconds.
GROUP_COMMANDS_MAX: Final = 500
GROUP_BYTES_MAX: Final = 16 * 1024 * 1024

Then = Callable[[list[CommandOutcome]], None]


class Writes(NamedTuple):
    """Commands of one request, and who is called with what became of them."""

    commands: list[AnyCommand]
    then: Then
    size: int


class JournalWriter(Protocol):
    """What the line needs of the store."""

    last_time_ms: int

    def commit(self, entries: Sequence[bytes]) -> None: ...


class WritePipeline:
    """Orders writes, makes them durable in groups, and hands each back exactly once.

    `on_durable(writes, time_ms, size)` applies a group and calls those who asked;
    `on_broken(error)` is told once that the disk cannot be trusted any more.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        store: JournalWriter,
        clock: Clock,
        *,
        on_durable: Callable[[list[Writes], int, int], None],
        on_full: Callable[[Full], None],
        on_broken: Callable[[BaseException], None],
    ) -> None:
        self._loop = loop
        self._store = store
        self._clock = clock
        self._on_durable = on_durable
        self._on_full = on_full
        self._on_broken = on_broken
        self._line: deque[Writes] = deque()
        self._in_flight = False
        self._scheduled = False
        self._broken = False
        self.waiting_bytes = 0
        self._work: queue.SimpleQueue[tuple[list[Writes], list[bytes], int] | None] = (
            queue.SimpleQueue()
        )
        self._idle = asyncio.Event()
        self._idle.set()
        self._thread = start_thread(self._write, "topics-writer", self._died)

    def submit(self, asked: list[AnyCommand], then: Then, size: int = 256) -> None:
        """Put commands at the end of the line. `size`: about how many bytes they are."""
        self._line.append(Writes(asked, then, size))
        self.waiting_bytes += size
        self._idle.clear()
        if not self._scheduled and not self._in_flight:
            # Not at once: what else arrives in this turn of the loop shares the sync.
            self._scheduled = True
            self._loop.call_soon(self._start_group)

    async def drain(self) -> None:
        """Wait until the line is empty."""
        if not self._broken:
            await self._idle.wait()

    def close(self) -> None:
        """End the writer after what it holds; the store may be closed afterwards."""
        self._work.put(None)
        self._thread.join()

    def _start_group(self) -> None:
        self._scheduled = False
        if self._in_flight or not self._line or self._broken:
            return
        group: list[Writes] = []
        entries: list[bytes] = []
        size = 0
        now_ms = max(self._clock.wall_ms(), self._store.last_time_ms)
        self._store.last_time_ms = now_ms
        while self._line and len(entries) < GROUP_COMMANDS_MAX and size < GROUP_BYTES_MAX:
            writes = self._line.popleft()
            group.append(writes)
            size += writes.size
            for command in writes.commands:
                entries.append(encode_entry(now_ms, commands.encode(command)))
        self._in_flight = True
        self.waiting_bytes -= size
        self._work.put((group, entries, now_ms))

    def _write(self) -> None:
        while (work := self._work.get()) is not None:
            group, entries, now_ms = work
            error: BaseException | None = None
            try:
                if entries:
                    self._store.commit(entries)
            except BaseException as failure:
                error = failure
            size = sum(map(len, entries))
            in_loop(self._loop, self._finish, group, now_ms, size, error)

    def _finish(
        self, group: list[Writes], now_ms: int, size: int, error: BaseException | None
    ) -> None:
        self._in_flight = False
        if error is None:
            try:
                self._on_durable(group, now_ms, size)
            except Exception as failure:  # the state in memory is not that of the journal any more
                self._break(failure)
                return
        elif isinstance(error, Full):
            self._on_full(error)
            refused = CommandOutcome(ErrorCode.KAFKA_STORAGE_ERROR, error.sentence)
            for writes in group:
                writes.then([refused] * len(writes.commands))
        else:
            self._break(error)
            return
        if self._line:
            self._start_group()
        if not self._line and not self._in_flight:
            self._idle.set()

    def _died(self, error: BaseException) -> None:
        in_loop(self._loop, self._break, error)

    def _break(self, error: BaseException) -> None:
        if not self._broken:
            self._broken = True
            self._idle.set()
            self._on_broken(error)
