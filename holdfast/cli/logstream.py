"""The lines of a job's workers, from every machine, in one loop. The rim of `holdfast logs`."""

from __future__ import annotations

import asyncio
import sys
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Final

from rich.text import Text

from holdfast.agent.log_client import LogReading
from holdfast.agent.log_files import LogFiles, Piece, Query, Source
from holdfast.agent.wallet import Papers
from holdfast.cli import listing, output
from holdfast.cli.nodes import members_of
from holdfast.cli.opening import Opened
from holdfast.control.facts import Job
from holdfast.wire import calls
from holdfast.wire.errors import HoldfastError

# How often a follower looks whether machines have come or gone, and whether the job has ended.
_LOOK_S: Final = 1.0
# A machine that was away is tried again so often.
_RETRY_S: Final = 1.0
_STYLES: Final = ("cyan", "green", "yellow", "magenta", "blue", "bright_cyan", "bright_green")


def show(found: Opened, job: Job, query: Query, printer: Printer, *, follow: bool) -> None:
    """Print what there is, and with `follow` what comes until the job has ended."""
    if found.down:
        _show_left(found, query, printer)
        return
    calls.run(_Logs(found, job, query, printer).run(follow=follow))


def _show_left(found: Opened, query: Query, printer: Printer) -> None:
    """What agents of this machine have left in their folders; nobody is there to be asked."""
    for node in sorted(found.cluster.nodes_folder.glob("*")):
        for piece in LogFiles(node / "logs", query).more():
            printer.write(piece)
    printer.end()


@dataclass
class Printer:
    """Puts whole lines to stdout, with their worker in front where there are several."""

    prefix: bool
    lines: int = 0
    _halves: dict[Source, bytes] = field(default_factory=dict)

    def write(self, piece: Piece) -> None:
        if piece.lost:
            listing.note(f"some output of worker {piece.source.worker} is not kept any more")
        whole, _, half = (self._halves.pop(piece.source, b"") + piece.data).rpartition(b"\n")
        if half:
            self._halves[piece.source] = half
        if whole or not half:
            for line in whole.split(b"\n"):
                self._line(piece.source, line)
            sys.stdout.flush()

    def end(self) -> None:
        """The last lines, of those that never ended theirs."""
        for source, half in sorted(self._halves.items()):
            self._line(source, half)
        self._halves.clear()
        sys.stdout.flush()

    def _line(self, source: Source, line: bytes) -> None:
        self.lines += 1
        words = line.decode("utf-8", "replace").rstrip("\r")
        if not self.prefix:
            sys.stdout.write(f"{words}\n")
            return
        if sys.stdout.isatty():
            style = _STYLES[source.worker % len(_STYLES)]
            output.out().print(Text(f"{source.worker:>3} ", style=style), end="")
        else:
            sys.stdout.write(f"{source.worker:>3} ")
        # As it is: a worker may write colours of its own.
        output.out().file.write(f"{words}\n")


class _Logs:
    """The readings of all machines, in one loop."""

    def __init__(self, found: Opened, job: Job, query: Query, printer: Printer) -> None:
        self._found = found
        self._job = job
        self._query = query
        self._printer = printer
        self._papers: Papers = found.papers()
        self._away: set[str] = set()

    async def run(self, *, follow: bool) -> None:
        readings = await asyncio.to_thread(self._readings)
        if follow:
            await self._follow(readings)
        else:
            for reading in readings.values():
                await self._read(reading)
        self._printer.end()

    def _readings(self) -> dict[str, LogReading]:
        """One for each machine that is here; those that hold workers and are not, are named."""
        found = {}
        members = members_of(self._found)
        for node, member in members.items():
            address = member.data.get("address") if isinstance(member.data, dict) else None
            if address:
                found[node] = LogReading(address, node, self._papers, self._query)
        for node in sorted({each.node for each in self._job.placements} - set(members)):
            self._say_away(node, "its agent is not here")
        return found

    async def _read(self, reading: LogReading) -> bool:
        """What is there now; False: the machine does not answer."""
        try:
            async for piece in reading.pieces(follow=False):
                self._printer.write(piece)
        except HoldfastError as error:
            self._say_away(reading.node, error.why or error.what)
            return False
        return True

    async def _follow(self, readings: dict[str, LogReading]) -> None:
        """Follow every machine, also those that come later, until the job has ended."""
        tasks = {node: asyncio.create_task(self._keep(each)) for node, each in readings.items()}
        try:
            while True:
                job = await asyncio.to_thread(self._found.plane.job, self._job.name)
                if job.status.phase.final:
                    break
                self._job = job
                await asyncio.sleep(_LOOK_S)
                for task in tasks.values():
                    if task.done():
                        task.result()
                for node, fresh in (await asyncio.to_thread(self._readings)).items():
                    if node not in readings:
                        readings[node] = fresh
                        tasks[node] = asyncio.create_task(self._keep(fresh))
                    else:
                        readings[node].address = fresh.address
        finally:
            for task in tasks.values():
                task.cancel()
            await asyncio.gather(*tasks.values(), return_exceptions=True)
        for reading in readings.values():
            await self._read(reading)  # what was written last

    async def _keep(self, reading: LogReading) -> None:
        while True:
            try:
                async with aclosing(reading.pieces(follow=True)) as pieces:
                    async for piece in pieces:
                        self._away.discard(reading.node)
                        self._printer.write(piece)
            except HoldfastError as error:
                self._say_away(reading.node, error.why or error.what)
            await asyncio.sleep(_RETRY_S)

    def _say_away(self, node: str, why: str) -> None:
        if node not in self._away:
            self._away.add(node)
            listing.note(f"{node} does not give its logs now: {listing.one_line(why)}")
