"""The line in which writes wait for the disk.

Append, one fsync for the batch, apply, reply: a batch is in the writer's hands, the next one
gathers meanwhile. Nothing is applied, and so nothing can be read, before it is durable. Reads and
other answers of a connection that still has writes in the line stand in it too, so that every
connection is answered in the order in which it asked.
"""

from __future__ import annotations

import asyncio
import queue
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from holdfast.coordination.embedded.records import encode_record
from holdfast.coordination.embedded.transactions import WriteTransaction
from holdfast.system.clock import Clock
from holdfast.system.tasks import in_loop, start_thread
from holdfast.wire.errors import Full

# What shares one fsync and is applied in one turn of the loop: about ten milliseconds.
BATCH_TRANSACTIONS_MAX: Final = 500
# A batch that takes longer than this is a disk in trouble; pings are then answered out of turn.
DISK_STALL_S: Final = 0.25


class PipelineEntry:
    """One thing in the line: a write (with a transaction), or whatever must come after one."""

    __slots__ = ("body", "identities", "opcode", "owner", "since_s", "transaction", "xid", "zxid")

    def __init__(
        self,
        owner: object | None,
        xid: int,
        opcode: int,
        body: bytes,
        *,
        transaction: WriteTransaction | None = None,
        identities: bytes = b"",
        since_s: float = 0.0,
    ) -> None:
        self.owner = owner
        self.xid = xid
        self.opcode = opcode
        self.body = body
        self.transaction = transaction
        self.identities = identities
        self.since_s = since_s
        self.zxid = 0


class StoreWriter(Protocol):
    """What the line needs of the store."""

    last_zxid: int
    last_time_ms: int

    def commit(self, records: Sequence[bytes], last_zxid: int) -> None: ...

    def maintain(self) -> None: ...


class Pipeline:
    """Orders writes, makes them durable in batches, and hands each back exactly once.

    `on_committed(entries, time_ms)` gets a durable batch in order; `on_full(entries, error)` a
    batch of which nothing was kept; `on_broken(error)` is told once that the disk cannot be
    trusted any more.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        store: StoreWriter,
        clock: Clock,
        *,
        on_committed: Callable[[list[PipelineEntry], int], None],
        on_full: Callable[[list[PipelineEntry], Full], None],
        on_broken: Callable[[BaseException], None],
    ) -> None:
        self._loop = loop
        self._store = store
        self._clock = clock
        self._on_committed = on_committed
        self._on_full = on_full
        self._on_broken = on_broken
        self._line: deque[PipelineEntry] = deque()
        self._in_flight = 0
        self._batch_since_s = 0.0
        self._scheduled = False
        self._broken = False
        self._next_zxid = store.last_zxid + 1
        self._time_ms = store.last_time_ms
        self._work: queue.SimpleQueue[tuple[list[PipelineEntry], list[bytes], int, int] | None] = (
            queue.SimpleQueue()
        )
        self._idle = asyncio.Event()
        self._idle.set()
        self._thread = start_thread(self._write, "coord-writer", self._died)

    @property
    def waiting(self) -> int:
        """Entries that have not been handed back yet."""
        return len(self._line) + self._in_flight

    @property
    def stalled(self) -> bool:
        """Whether the disk has been busy with one batch for unusually long."""
        return self._in_flight > 0 and self._clock.now_s() - self._batch_since_s > DISK_STALL_S

    def submit(self, entry: PipelineEntry) -> None:
        """Put an entry at the end of the line."""
        self._line.append(entry)
        self._idle.clear()
        if not self._scheduled and not self._in_flight:
            # Not at once: what else arrives in this turn of the loop shares the fsync.
            self._scheduled = True
            self._loop.call_soon(self._start_batch)

    async def drain(self) -> None:
        """Wait until the line is empty."""
        if not self._broken:
            await self._idle.wait()

    def close(self) -> None:
        """End the writer after what it holds; the store may be closed afterwards."""
        self._work.put(None)
        self._thread.join()

    def _start_batch(self) -> None:
        self._scheduled = False
        if self._in_flight or not self._line or self._broken:
            return
        line = self._line
        count = min(len(line), BATCH_TRANSACTIONS_MAX)
        batch = [line.popleft() for _ in range(count)]
        self._in_flight = count
        self._batch_since_s = self._clock.now_s()
        time_ms = self._time_ms = max(self._time_ms, self._clock.wall_ms())
        zxid = self._next_zxid
        records = []
        for entry in batch:
            transaction = entry.transaction
            if transaction is not None:
                entry.zxid = zxid
                records.append(
                    encode_record(
                        zxid,
                        time_ms,
                        transaction.session,
                        entry.opcode,
                        entry.identities,
                        entry.body,
                    )
                )
                zxid += 1
        if records:
            self._next_zxid = zxid
            self._work.put((batch, records, zxid - 1, time_ms))
        else:
            self._loop.call_soon(self._finish, batch, time_ms, None)

    def _write(self) -> None:
        """The writer's thread: the only place that touches the disk while the server runs."""
        while (work := self._work.get()) is not None:
            batch, records, last_zxid, time_ms = work
            error: BaseException | None = None
            try:
                self._store.commit(records, last_zxid)
            except BaseException as failure:
                error = failure
            self._loop.call_soon_threadsafe(self._finish, batch, time_ms, error)
            if error is None:
                self._store.maintain()

    def _finish(
        self, batch: list[PipelineEntry], time_ms: int, error: BaseException | None
    ) -> None:
        self._in_flight = 0
        if error is None:
            self._on_committed(batch, time_ms)
        elif isinstance(error, Full):
            # Nothing of the batch was kept, so its numbers are given to the next one.
            self._next_zxid = next(entry.zxid for entry in batch if entry.zxid)
            self._on_full(batch, error)
        else:
            self._break(error)
            return
        if self._line:
            self._start_batch()
        if not self._line and not self._in_flight:
            self._idle.set()

    def _died(self, error: BaseException) -> None:
        in_loop(self._loop, self._break, error)

    def _break(self, error: BaseException) -> None:
        if not self._broken:
            self._broken = True
            self._idle.set()
            self._on_broken(error)
