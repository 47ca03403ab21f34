"""The lines of a job's workers, from every machine, as one stream.

Each line is whole: half of one waits for its other half. A machine that is away is named to `note`,
and the rest comes; who follows gets its lines when it is back.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from holdfast.agent.credential_store import NodeCredentials
from holdfast.agent.log_client import LogReading
from holdfast.agent.log_files import ERR, OUT, LogFiles, Piece, Query, Source
from holdfast.client import texts
from holdfast.client.opening import Note, Opened
from holdfast.control.decide.facts import JobRecord
from holdfast.system import calls
from holdfast.system.tasks import WAITED, end, start_task
from holdfast.wire.errors import HoldfastError

# Lines of logs that wait to be taken; then the machines that send them wait.
CLIENT_LOG_PIECES_MAX: Final = 64

# How often a follower looks whether machines have come or gone, and whether the job has ended.
_LOOK_S: Final = 1.0
# A machine that was away is tried again so often.
_RETRY_S: Final = 1.0
# Clocks of machines differ: logs so much older than the job may still be its own.
_CLOCKS_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class LogLine:
    """A line of a worker. `output`: out or err."""

    worker: int
    output: str
    text: str


Batches: TypeAlias = AsyncGenerator[list[LogLine], None]


@dataclass
class Assembler:
    """Makes whole lines of pieces, each source for itself."""

    _halves: dict[Source, bytes] = field(default_factory=dict)

    def add(self, piece: Piece) -> list[LogLine]:
        """The lines that this piece ends."""
        whole, _, half = (self._halves.pop(piece.source, b"") + piece.data).rpartition(b"\n")
        if half:
            self._halves[piece.source] = half
        if not whole and half:
            return []
        return [_line(piece.source, line) for line in whole.split(b"\n")]

    def end(self) -> list[LogLine]:
        """The last lines, of those that never ended theirs."""
        left = [_line(source, half) for source, half in sorted(self._halves.items())]
        self._halves.clear()
        return left


def _line(source: Source, line: bytes) -> LogLine:
    return LogLine(source.worker, source.output, line.decode("utf-8", "replace").rstrip("\r"))


def query_of(
    job: JobRecord, *, worker: int | None, lines: int | None, stdout: bool, stderr: bool
) -> Query:
    """Those logs of this very job. `lines`: the last so many of each worker; None: all."""
    outputs = tuple(name for name, wanted in ((OUT, stdout), (ERR, stderr)) if wanted)
    return Query(job.name, worker, outputs or (OUT, ERR), lines, job.submitted_s - _CLOCKS_S)


def here(batches: Batches) -> Iterator[LogLine]:
    """The lines, on this thread. Ctrl-C, and whoever stops to iterate, ends the reading."""
    driven = _Driven(batches)
    try:
        while (batch := calls.run(driven.next())) is not None:
            yield from batch
    finally:
        calls.run(driven.close())


async def awaited(batches: Batches) -> AsyncGenerator[LogLine, None]:
    """The lines, for a loop of the caller's own."""
    driven = _Driven(batches)
    try:
        while (batch := await calls.awaited(driven.next())) is not None:
            for line in batch:
                yield line
    finally:
        await calls.awaited(driven.close())


class _Driven:
    """Batches, in the loop of calls, one step after the other: a step that was cancelled ends by
    itself a moment later, and nothing is closed before."""

    def __init__(self, batches: Batches) -> None:
        self._batches = batches
        self._turn = asyncio.Lock()

    async def next(self) -> list[LogLine] | None:
        async with self._turn:
            return await anext(self._batches, None)

    async def close(self) -> None:
        async with self._turn:
            await self._batches.aclose()


class LogStream:
    """The readings of all machines. `batches` is to be driven in the loop of calls."""

    def __init__(
        self, found: Opened, job: JobRecord, query: Query, note: Note, first_worker: int = 1
    ) -> None:
        self._found = found
        self._job = job
        self._first_worker = first_worker  # those below it were of another job of this name
        self._query = query
        self._note = note
        self._assembler = Assembler()
        self._away: set[str] = set()
        self._held: dict[str, Piece] = {}  # read, and waiting for a place in the queue

    async def batches(self, *, follow: bool) -> Batches:
        """Lines as they come; with `follow` until the job has ended."""
        pieces = self._from_folders() if self._found.down else self._from_agents(follow=follow)
        async with aclosing(pieces) as source:
            async for piece in source:
                if piece.source.worker < self._first_worker:
                    continue
                if piece.lost:
                    self._note(f"some output of worker {piece.source.worker} is not kept any more")
                if lines := self._assembler.add(piece):
                    yield lines
        if lines := self._assembler.end():
            yield lines

    async def _from_folders(self) -> AsyncGenerator[Piece, None]:
        """What agents of this machine have left in their folders; nobody is there to be asked."""
        for node in sorted(self._found.cluster.nodes_folder.glob("*")):
            for piece in LogFiles(node / "logs", self._query).more():
                yield piece

    async def _from_agents(self, *, follow: bool) -> AsyncGenerator[Piece, None]:
        credentials: NodeCredentials = await asyncio.to_thread(self._found.credentials)
        readings = await asyncio.to_thread(self._readings, credentials)
        if follow:
            async with aclosing(self._followed(readings, credentials)) as source:
                async for piece in source:
                    yield piece
        for reading in list(readings.values()):  # of a follower: what was written last
            async with aclosing(self._read(reading)) as source:
                async for piece in source:
                    yield piece

    def _readings(self, credentials: NodeCredentials) -> dict[str, LogReading]:
        """One for each machine that is here; those that hold workers and are not, are named."""
        found = {}
        members = self._found.members()
        for node, member in members.items():
            address = member.data.get("address") if isinstance(member.data, dict) else None
            if address:
                found[node] = LogReading(address, node, credentials, self._query)
        for node in sorted({each.node for each in self._job.placements} - set(members)):
            self._say_away(node, "its agent is not here")
        return found

    async def _read(self, reading: LogReading) -> AsyncGenerator[Piece, None]:
        """What is there now; nothing more, once the machine does not answer."""
        try:
            async with aclosing(reading.pieces(follow=False)) as pieces:
                async for piece in pieces:
                    yield piece
        except HoldfastError as error:
            self._say_away(reading.node, error.why or error.what)

    async def _followed(
        self, readings: dict[str, LogReading], credentials: NodeCredentials
    ) -> AsyncGenerator[Piece, None]:
        """Of every machine, also of those that come later, until the job has ended."""
        queue: asyncio.Queue[Piece] = asyncio.Queue(CLIENT_LOG_PIECES_MAX)
        machines = start_task(self._machines(readings, credentials, queue.put), "machines", WAITED)
        try:
            while True:
                coming = start_task(queue.get(), "coming", WAITED)
                try:
                    await asyncio.wait((coming, machines), return_when=asyncio.FIRST_COMPLETED)
                finally:
                    taken = coming.done() or not coming.cancel()
                if taken:
                    yield coming.result()
                    continue
                machines.result()
                break
        finally:
            await end(machines)
        while not queue.empty():
            yield queue.get_nowait()
        for piece in self._held.values():
            yield piece
        self._held.clear()

    async def _machines(
        self,
        readings: dict[str, LogReading],
        credentials: NodeCredentials,
        put: Callable[[Piece], Coroutine[Any, Any, None]],
    ) -> None:
        """One task for each machine, until the job has ended."""
        tasks: dict[str, asyncio.Task[None]] = {}
        try:
            while True:
                for node, reading in readings.items():
                    if node not in tasks:
                        tasks[node] = start_task(self._keep(reading, put), node, WAITED)
                self._job = await asyncio.to_thread(self._found.plane.job, self._job.name)
                if self._job.status.phase.final:
                    return
                await asyncio.sleep(_LOOK_S)
                for task in tasks.values():
                    if task.done():
                        task.result()
                for node, fresh in (await asyncio.to_thread(self._readings, credentials)).items():
                    if node in readings:
                        readings[node].address = fresh.address
                    else:
                        readings[node] = fresh
        finally:
            await end(*tasks.values())

    async def _keep(
        self, reading: LogReading, put: Callable[[Piece], Coroutine[Any, Any, None]]
    ) -> None:
        while True:
            try:
                async with aclosing(reading.pieces(follow=True)) as pieces:
                    async for piece in pieces:
                        self._away.discard(reading.node)
                        self._held[reading.node] = piece
                        await put(piece)
                        del self._held[reading.node]
            except HoldfastError as error:
                self._say_away(reading.node, error.why or error.what)
            await asyncio.sleep(_RETRY_S)

    def _say_away(self, node: str, why: str) -> None:
        if node not in self._away:
            self._away.add(node)
            self._note(f"{node} does not give its logs now: {texts.one_line(why)}")
