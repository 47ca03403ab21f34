"""Asks programs from outside whether they are ready and alive: over HTTP, over TCP, by a command.

Each probe of each worker has a task of its own. It asks, tells what came of it (`Probed`), and
waits; what follows is decided elsewhere. Whatever the program does, asking once takes its time-out
at most, and reads a few kilobytes: of an answer over HTTP the first line (no redirect is followed,
no body is read), of a command's output the beginning.

A command runs in the worker's folder with the worker's environment, in a session of its own, which
is ended with it. It bears the worker's mark: should this agent die meanwhile, it ends with the
worker at the latest.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from holdfast.agent import processes
from holdfast.agent.events import Asked, BeginProbes, Event, Key, Probed, key_of
from holdfast.system import logs
from holdfast.system.tasks import Died, Tasks
from holdfast.wire.limits import KILL_AGAIN_S
from holdfast.wire.probes import Probe, ProbeKind, with_ports

# Until a probe has passed once it is asked so often at least: people wait for the first answer.
PROBE_FIRST_S: Final = 0.25
# Of an answer over HTTP only the first line is read, and of a command's output so much is kept.
PROBE_LINE_BYTES_MAX: Final = 8 * 1024
PROBE_OUTPUT_BYTES_MAX: Final = 4 * 1024
# The output of a command is taken from its pipe in such pieces: what a pipe holds.
PROBE_READ_BYTES: Final = 64 * 1024
# Commands of probes that run at once on one machine; the others wait their turn.
PROBE_COMMANDS_MAX: Final = 16
# What people are told of a probe that fails.
PROBE_DETAIL_CHARACTERS_MAX: Final = 300

_PASSING: Final = range(200, 400)

log = logs.get(__name__)


class _ProbeFailed(Exception):
    """It does not pass; the words say why."""


class Prober:
    """The probes of one agent's workers. Used from its loop alone; events go to `tell`. `launch`
    gives what a worker was started with; `died` hears of a task that has ended unexpectedly."""

    def __init__(
        self,
        host: str,
        launch: Callable[[Key], Mapping[str, Any]],
        tell: Callable[[Event], None],
        died: Died,
    ) -> None:
        self._host = host
        self._launch = launch
        self._tell = tell
        self._asking: dict[Key, list[asyncio.Task[None]]] = {}
        self._tasks = Tasks(died)
        self._commands = asyncio.Semaphore(PROBE_COMMANDS_MAX)

    def begin(self, action: BeginProbes) -> None:
        """Ask this worker's probes from now on. Twice is once."""
        key = key_of(action.order)
        if key in self._asking:
            return
        probes = {Asked.READY: action.order.ready, Asked.LIVE: action.order.live}
        self._asking[key] = [
            self._tasks.start(
                self._keep_asking(key, asked, probe, action.ports), f"{asked.value} of {key}"
            )
            for asked, probe in probes.items()
            if probe is not None and probe.kind is not ProbeKind.LINK
        ]

    def end(self, key: Key) -> None:
        """The worker has ended."""
        for task in self._asking.pop(key, ()):
            task.cancel()

    async def close(self) -> None:
        """Ask nobody any more; return when nothing of it runs."""
        self._asking.clear()
        await self._tasks.close()

    async def _keep_asking(
        self, key: Key, asked: Asked, probe: Probe, ports: Mapping[str, int]
    ) -> None:
        pause_s = min(probe.every_s, PROBE_FIRST_S)
        while True:
            try:
                await self._ask(key, probe, ports)
            except _ProbeFailed as failed:
                detail = f"{asked.value}: {failed}"[:PROBE_DETAIL_CHARACTERS_MAX]
                self._tell(Probed(key, asked, passed=False, said=detail))
            else:
                pause_s = probe.every_s
                self._tell(Probed(key, asked, passed=True))
            await asyncio.sleep(pause_s)

    async def _ask(self, key: Key, probe: Probe, ports: Mapping[str, int]) -> None:
        """Returns if it passes."""
        if probe.kind is ProbeKind.EXEC:
            async with self._commands:
                await self._run(key, probe, ports)
            return
        port = ports.get(probe.port) or int(probe.port)
        where = f"{self._host}:{port}"
        if probe.kind is ProbeKind.HTTP:
            where = f"GET http://{where}{probe.path}"
        try:
            async with asyncio.timeout(probe.timeout_s):
                await self._connect(probe, port)
        except TimeoutError:
            raise _ProbeFailed(f"{where}: no answer within {probe.timeout_s:g} s") from None
        except OSError as error:
            why = os.strerror(error.errno) if error.errno else str(error)
            raise _ProbeFailed(f"{where}: {why}") from None
        except _ProbeFailed as failed:
            raise _ProbeFailed(f"{where}: {failed}") from None

    async def _connect(self, probe: Probe, port: int) -> None:
        reader, writer = await asyncio.open_connection(self._host, port, limit=PROBE_LINE_BYTES_MAX)
        try:
            if probe.kind is ProbeKind.HTTP:
                writer.write(
                    f"GET {probe.path} HTTP/1.1\r\nHost: {self._host}:{port}\r\nAccept: */*\r\n"
                    "User-Agent: holdfast-probe\r\nConnection: close\r\n\r\n".encode()
                )
                _judge(await _first_line(reader))
        finally:
            writer.transport.abort()

    async def _run(self, key: Key, probe: Probe, ports: Mapping[str, int]) -> None:
        launch = self._launch(key)
        line = with_ports(probe.command, ports)
        if not launch:
            raise _ProbeFailed("the worker's folder is not there")
        try:
            child = _Child(line, launch)
        except OSError as error:
            raise _ProbeFailed(f"{line[0]}: {os.strerror(error.errno or 0)}") from None
        try:
            async with asyncio.timeout(probe.timeout_s):
                await child.ended()
        except TimeoutError:
            raise _ProbeFailed(f"{line[0]} took more than {probe.timeout_s:g} s") from None
        finally:
            status, lines = await child.clean_up()
        if status:
            last = f": {lines[-1]}" if lines else ""
            raise _ProbeFailed(f"{line[0]} ended with status {status}{last}")


class _Child:
    """A command in a session of its own. The beginning of what it writes is kept; the rest is read
    and thrown away, so that it never waits for us."""

    def __init__(self, line: Sequence[str], launch: Mapping[str, Any]) -> None:
        self._kept = b""
        self._pipe, theirs = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            os.set_blocking(theirs, True)
            self._process = subprocess.Popen(
                line,
                stdin=subprocess.DEVNULL,
                stdout=theirs,
                stderr=theirs,
                cwd=launch["cwd"],
                env=launch["environment"],
                start_new_session=True,
            )
        except BaseException:
            os.close(self._pipe)
            raise
        finally:
            os.close(theirs)
        self._held = os.pidfd_open(self._process.pid)
        asyncio.get_running_loop().add_reader(self._pipe, self._read)

    async def ended(self) -> None:
        """Wait until the command has ended, whatever it has left behind."""
        await processes.readable(self._held)

    async def clean_up(self) -> tuple[int, list[str]]:
        """End whatever still runs of it; its status, and the lines that it wrote. One that does
        not die (its disk hangs) is left to the system: nobody waits for it."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        with suppress(TimeoutError):
            async with asyncio.timeout(KILL_AGAIN_S):
                await self.ended()
        status = self._process.poll() or 0
        self._read()
        asyncio.get_running_loop().remove_reader(self._pipe)
        os.close(self._pipe)
        os.close(self._held)
        return status, self._kept.decode(errors="replace").strip().splitlines()

    def _read(self) -> None:
        try:
            piece = os.read(self._pipe, PROBE_READ_BYTES)
        except BlockingIOError:
            return
        if not piece:
            asyncio.get_running_loop().remove_reader(self._pipe)
        self._kept = (self._kept + piece)[:PROBE_OUTPUT_BYTES_MAX]


async def _first_line(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.readline()
    except ValueError:
        raise _ProbeFailed("its first line is too long") from None


def _judge(line: bytes) -> None:
    version, _, rest = line.decode("latin-1").partition(" ")
    code = rest[:3]
    if not version.startswith("HTTP/") or not (code.isascii() and code.isdecimal()):
        raise _ProbeFailed("it hung up" if not line else f"that is not HTTP: {line[:60]!r}")
    if int(code) not in _PASSING:
        raise _ProbeFailed(f"status {code}")
