"""The agent's end of its zygote: starts it, keeps it alive, and asks it for workers.

A zygote is a help and never a need: whatever is wrong with it, workers are started cold.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from holdfast.agent import processes
from holdfast.agent.events import Identity
from holdfast.agent.zygote import LOCK_NAME, READY, SOCKET_NAME, fingerprint, socket_path
from holdfast.system import logs
from holdfast.system.backoff import Backoff
from holdfast.system.tasks import end, start_task
from holdfast.wire.limits import ZYGOTE_ANSWER_S, ZYGOTE_MESSAGE_BYTES_MAX

# A worker that wants torch waits so long for the zygote to have imported it, and is then started
# cold. Importing takes three seconds on a quiet core and ten times that on a busy one, where a cold
# start would only begin it anew.
ZYGOTE_READY_S: Final = 60.0
# A zygote that has died is started again after so long, and later each time.
ZYGOTE_RETRY_S: Final = 1.0
ZYGOTE_RETRY_S_MAX: Final = 300.0
# Room in a zygote's environment where its children write who they are: a path, and some.
ZYGOTE_TITLE_BYTES: Final = 8 * 1024

# Its children have the streams that it has, and show who they are where this variable stands.
_OWN: Final = {"PYTHONUNBUFFERED": "1", "HOLDFAST_ROOM": " " * ZYGOTE_TITLE_BYTES}

log = logs.get(__name__)


class Cold(Exception):
    """The zygote does not start this worker; the reason is for people."""


class Keeper:
    """The zygote of one agent, at most one at a time. Used from the agent's loop alone."""

    def __init__(self, home: Path, away_s: float) -> None:
        self._home = home
        self._away_s = away_s
        self._keeping: asyncio.Task[None] | None = None
        self.is_ready = False
        self._settled = asyncio.Event()  # it is ready, or rests after a failure
        self._zygote: int | None = None  # a pidfd of the present one
        self._child: subprocess.Popen[bytes] | None = None
        self._reason = "it is not there yet"

    def begin(self) -> None:
        """See to it that there is a zygote from now on."""
        if self._keeping is None:
            self._keeping = start_task(self._keep(), "zygote")

    def go_on(self) -> None:
        """Go on with the zygote of the agent before this one, if it had one."""
        if (self._home / SOCKET_NAME).exists():
            self.begin()

    async def ready(self) -> None:
        """Wait while it imports, within a bound; `Cold` if it is not ready then, or has failed."""
        self.begin()
        with suppress(TimeoutError):
            async with asyncio.timeout(ZYGOTE_READY_S):
                await self._settled.wait()
        if not self.is_ready:
            raise Cold(f"the zygote is not ready: {self._reason}")

    async def fork(self, folder: Path) -> Identity:
        """Start the worker of this folder; its shim. `Cold`: it has not been, or nobody knows: a
        second start of the same folder does no harm."""
        try:
            answer = await self._ask({"fork": str(folder)})
        except (OSError, TimeoutError, ValueError) as error:
            self._replace(f"it does not answer: {type(error).__name__} {error}".strip())
            raise Cold(f"the zygote has gone: {error!r}") from None
        if "refused" in answer:
            raise Cold(str(answer["refused"]))
        return Identity(*answer["identity"])

    async def close(self) -> None:
        """End it. Its shims and workers go on."""
        if self._keeping is not None:
            await end(self._keeping)

    # --- keeping ---------------------------------------------------------------------------------

    async def _keep(self) -> None:
        deaths = Backoff(ZYGOTE_RETRY_S, ZYGOTE_RETRY_S_MAX, at_once=True)
        try:
            while True:
                since_s = time.monotonic()
                self._is(ready=False, settled=False)
                try:
                    if await self._find() or await self._start():
                        self._is(ready=True)
                except OSError as error:  # no room for a process or on the disk: that passes
                    self._reason = f"it cannot be started: {error}"
                await self._clean_up()
                if time.monotonic() - since_s > ZYGOTE_RETRY_S_MAX:
                    deaths.succeeded()
                pause_s = deaths.failed()
                log.warning("the zygote has ended", reason=self._reason, again_in_s=pause_s)
                if pause_s:
                    self._is(ready=False)
                    await asyncio.sleep(pause_s)
        finally:
            self._is(ready=False)
            if self._zygote is not None:
                processes.send(self._zygote, signal.SIGKILL)  # it holds nothing but memory
            await self._clean_up()

    def _is(self, *, ready: bool, settled: bool = True) -> None:
        self.is_ready = ready
        if settled:
            self._settled.set()
        else:
            self._settled.clear()

    async def _find(self) -> bool:
        """Whether an earlier agent left one that answers and has the same code as we have. Another
        one is ended."""
        held = zygote_of(self._home)
        if held is None:
            return False
        try:
            answer = await self._ask({})
        except (OSError, TimeoutError, ValueError):
            answer = {}
        self._zygote = held
        if answer.get("code") == await asyncio.to_thread(fingerprint):
            return True
        log.info("the zygote of an earlier agent is of no use; it is ended")
        processes.send(held, signal.SIGKILL)
        await self._clean_up()
        return False

    async def _start(self) -> bool:
        """Start one, and wait until it is ready; False: it has ended before."""
        self._child = child = self._execute()
        self._zygote = os.pidfd_open(child.pid)
        self._reason = "it is still importing"
        assert child.stdout is not None
        with child.stdout as output:
            await processes.readable(output.fileno())
            return os.read(output.fileno(), len(READY)) == READY

    def _execute(self) -> subprocess.Popen[bytes]:
        ours = {name: text for name, text in os.environ.items() if not name.startswith("HOLDFAST_")}
        line = [sys.executable, "-m", "holdfast.agent.zygote", str(self._home), str(self._away_s)]
        with (self._home / "zygote.log").open("wb") as words:
            return subprocess.Popen(
                line,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=words,
                cwd="/",
                env={**ours, **_OWN},
                start_new_session=True,
            )

    async def _clean_up(self) -> None:
        """Wait for its end, and take note of it."""
        if self._zygote is not None:
            await processes.readable(self._zygote)
            os.close(self._zygote)
            self._zygote = None
        if self._child is not None:
            status = self._child.wait()
            self._child = None
            with suppress(OSError):
                log_text = (self._home / "zygote.log").read_text(errors="replace").strip()
                last = log_text.splitlines()[-1] if log_text else f"it ended with status {status}"
                self._reason = last[:200]

    def _replace(self, reason: str) -> None:
        """One that does not answer is of no use; the keeper sees its end and starts another."""
        log.warning("the zygote is replaced", reason=reason)
        self._is(ready=False, settled=False)
        if self._zygote is not None:
            processes.send(self._zygote, signal.SIGKILL)

    # --- asking ----------------------------------------------------------------------------------

    async def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        loop = asyncio.get_running_loop()
        folder = os.open(self._home, os.O_RDONLY | os.O_DIRECTORY)
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as line:
                line.setblocking(False)
                async with asyncio.timeout(ZYGOTE_ANSWER_S):
                    await loop.sock_connect(line, socket_path(folder))
                    await loop.sock_sendall(line, json.dumps(request).encode())
                    raw = await loop.sock_recv(line, ZYGOTE_MESSAGE_BYTES_MAX)
        finally:
            os.close(folder)
        if not raw:
            raise ConnectionResetError("it hung up")
        answer: dict[str, Any] = json.loads(raw)
        return answer


def zygote_of(home: Path) -> int | None:
    """A handle of the zygote that has this agent's folder; None: there is none."""
    try:
        fields = json.loads((home / LOCK_NAME).read_bytes())
        return processes.hold(Identity(*fields))
    except (OSError, ValueError, TypeError):
        return None
