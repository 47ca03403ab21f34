"""Starts workers, finds them again, signals them, and tidies up after them.

Each worker runs under a shim (`shim`), which outlives the agent. What the supervisor promises:

- `start` runs a worker at most once, whoever else tried before: the shim's claim decides.
- The end of a worker is told once nothing of it runs any more, within milliseconds of it.
- A worker that the journal does not know is ended; its folder is removed.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from holdfast.agent import cgroups, processes, shim
from holdfast.agent.events import (
    Ending,
    Event,
    Force,
    Identity,
    Key,
    NeverStarted,
    ProcessAdopted,
    ProcessExited,
    ProcessStarted,
    Slots,
    StartProcess,
    key_of,
)
from holdfast.agent.folders import Folders
from holdfast.wire import logs, talk
from holdfast.wire.errors import BugError, HoldfastError, RetryError
from holdfast.wire.limits import (
    AGENT_AWAY_NOTICE_S,
    AGENT_AWAY_S,
    AGENT_LOOK_S,
    BUNDLE_RETRY_S,
    KILL_AGAIN_S,
    WORKER_LOG_BYTES_MAX,
)
from holdfast.wire.orders import StartWorker

_SHIM: Final = Path(shim.__file__)
_SWEEP_S: Final = 0.02

log = logs.get(__name__)

BundleFolder = Callable[[str], Path]
"""Gives the folder of an unpacked bundle; may block. `RetryError`: it may work later."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """How long workers go on without an agent, and how much they may write."""

    away_s: float = AGENT_AWAY_S
    away_notice_s: float = AGENT_AWAY_NOTICE_S
    log_bytes_max: int = WORKER_LOG_BYTES_MAX


class Supervisor:
    """The processes of one agent. Used from its loop alone; events go to `tell`."""

    def __init__(
        self,
        folders: Folders,
        bundle_folder: BundleFolder,
        tell: Callable[[Event], None],
        groups: cgroups.Groups | None = None,
        bounds: Bounds | None = None,
    ) -> None:
        self._folders = folders
        self._bundle_folder = bundle_folder
        self._tell = tell
        self._groups = groups
        self._bounds = bounds or Bounds()
        self._held: dict[Key, int] = {}  # pidfds of shims
        self._children: dict[Key, subprocess.Popen[bytes]] = {}
        self._launching: dict[Key, asyncio.Task[None]] = {}
        self._killed: set[Key] = set()
        self._chores: set[asyncio.Task[None]] = set()

    # --- starting ------------------------------------------------------------------------------

    def start(self, action: StartProcess) -> None:
        """Start it, in the background; `ProcessStarted` or `ProcessExited` follows."""
        key = key_of(action.order)
        task = asyncio.create_task(self._launch(key, action.order, action.slots))
        self._launching[key] = task
        task.add_done_callback(partial(self._launched, key))

    def _launched(self, key: Key, task: asyncio.Task[None]) -> None:
        del self._launching[key]
        if task.cancelled():
            self._tell(ProcessExited(key, Ending(fault="it was stopped before it was started")))

    async def _launch(self, key: Key, order: StartWorker, slots: Slots) -> None:
        try:
            bundle = await self._unpacked(order.bundle) if order.bundle else None
            self._spawn(key, order, slots, bundle)
        except (HoldfastError, OSError) as error:
            self._tell(ProcessExited(key, Ending(fault=f"it could not be started: {error}")))

    async def _unpacked(self, bundle: str) -> Path:
        while True:
            try:
                return await asyncio.to_thread(self._bundle_folder, bundle)
            except RetryError as error:
                log.warning("a bundle cannot be fetched now", bundle=bundle, reason=str(error))
                await asyncio.sleep(BUNDLE_RETRY_S)

    def _spawn(self, key: Key, order: StartWorker, slots: Slots, bundle: Path | None) -> None:
        folder = self._folders.worker(key)
        for path in (folder, folder / "tmp", folder / "work", self._folders.log(key)):
            path.mkdir(mode=0o700, exist_ok=True)
        launch = self._launch_file(key, order, slots, bundle or folder / "work")
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            shim.write_durably(handle, "launch.json", launch)
        finally:
            os.close(handle)
        with (folder / "shim.log").open("ab") as words:
            child = subprocess.Popen(
                [sys.executable, "-I", "-S", str(_SHIM), str(folder)],
                stdin=subprocess.DEVNULL,
                stdout=words,
                stderr=words,
                cwd="/",
                start_new_session=True,
            )
        held = os.pidfd_open(child.pid)
        ticks = shim.start_ticks(child.pid)
        self._children[key] = child
        self._watch(key, held)
        if ticks is not None:
            self._tell(ProcessStarted(key, Identity(child.pid, ticks, shim.boot())))

    def _launch_file(self, key: Key, order: StartWorker, slots: Slots, cwd: Path) -> dict[str, Any]:
        group = self._groups.make(key, order.resources) if self._groups else None
        bounds, logs_folder = self._bounds, self._folders.log(key)
        return {
            "command": list(order.command),
            "cwd": str(cwd),
            "environment": self._environment(key, order, slots),
            "out": str(logs_folder / "out.log"),
            "err": str(logs_folder / "err.log"),
            "log_bytes_max": bounds.log_bytes_max,
            "data_bytes_max": 0 if group else order.resources.memory_bytes,
            "cgroup": str(group or ""),
            "cpus": list(slots.cpus),
            "agent": str(self._folders.agent),
            "look_s": AGENT_LOOK_S,
            "away_s": bounds.away_s,
            "away_notice_s": bounds.away_notice_s,
        }

    def _environment(self, key: Key, order: StartWorker, slots: Slots) -> dict[str, str]:
        """The agent's environment without its own settings, the order's, then what is certain."""
        ours = {name: text for name, text in os.environ.items() if not name.startswith("HOLDFAST_")}
        beside = str(Path(sys.executable).parent)
        ours["PATH"] = f"{beside}{os.pathsep}{ours.get('PATH', os.defpath)}"
        ours["PYTHONUNBUFFERED"] = "1"
        if slots.cpus:
            ours["OMP_NUM_THREADS"] = str(len(slots.cpus))
        folder = self._folders.worker(key)
        return {
            **ours,
            **order.environment,
            "CUDA_VISIBLE_DEVICES": ",".join(map(str, slots.gpus)),
            talk.JOB_VARIABLE: key.job,
            talk.WORKER_VARIABLE: str(key.worker),
            talk.PORTS_VARIABLE: ",".join(map(str, slots.ports)),
            "TMPDIR": str(folder / "tmp"),
            processes.MARK: str(folder),
        }

    # --- finding again -------------------------------------------------------------------------

    async def find(self, key: Key) -> Event:
        """What has become of a worker that an earlier agent accepted. A living one is watched."""
        identity = self._folders.claim(key)
        if identity is None:
            return NeverStarted(key)
        held = processes.hold(identity)
        if held is None:
            return ProcessExited(key, await self._ending(key))
        self._watch(key, held)
        return ProcessAdopted(key, identity)

    async def end_strangers(self, living: frozenset[Key]) -> None:
        """End and remove whatever is here and should not be."""
        for key in self._folders.present():
            if key not in living:
                await self._clear(key)
        await asyncio.to_thread(self._folders.finish_removals)

    # --- signals -------------------------------------------------------------------------------

    def signal(self, key: Key, force: Force) -> None:
        """Ask or kill. What is still being prepared is called off instead."""
        launching = self._launching.get(key)
        if launching is not None and launching.cancel():
            return
        held = self._held.get(key)
        if held is None:
            return
        if force is Force.ASK:
            processes.send(held, signal.SIGTERM)
            return
        # A shim that was itself paused cannot do as it is told.
        processes.send(held, signal.SIGCONT)
        processes.send(held, signal.SIGUSR1)
        if key in self._killed:
            self._chore(asyncio.to_thread(processes.kill_marked, self._folders.worker(key)))
        self._killed.add(key)

    # --- ends ----------------------------------------------------------------------------------

    def _watch(self, key: Key, held: int) -> None:
        if key in self._held:
            raise BugError(f"worker {key} is watched already")
        self._held[key] = held
        asyncio.get_running_loop().add_reader(held, self._shim_ended, key)

    def _shim_ended(self, key: Key) -> None:
        self._release(key)
        child = self._children.pop(key, None)
        if child is not None and child.wait() == shim.RACE_LOST:
            self._chore(self._find_winner(key))
        else:
            self._chore(self._tell_end(key))

    def _release(self, key: Key) -> None:
        held = self._held.pop(key)
        asyncio.get_running_loop().remove_reader(held)
        os.close(held)

    async def _find_winner(self, key: Key) -> None:
        """An earlier agent had started it after all, so late that its claim was not there yet."""
        self._tell(await self.find(key))

    async def _tell_end(self, key: Key) -> None:
        if self._folders.claim(key) is None:
            words = self._folders.shim_words(key) or "its shim was ended"
            ending = Ending(fault=f"it could not be started: {words}")
        else:
            ending = await self._ending(key)
        self._killed.discard(key)
        self._tell(ProcessExited(key, ending))

    async def _ending(self, key: Key) -> Ending:
        ending = self._folders.ending(key)
        if ending is not None:
            return ending
        log.warning(
            "a shim ended before its worker", worker=str(key), said=self._folders.shim_words(key)
        )
        await asyncio.to_thread(self._sweep, key)
        return Ending(stderr_tail=self._folders.stderr_tail(key))

    def _sweep(self, key: Key) -> None:
        """Return when nothing runs for this worker any more."""
        warn_at = time.monotonic() + KILL_AGAIN_S
        while processes.kill_marked(self._folders.worker(key)):
            if time.monotonic() > warn_at:
                log.warning("processes of a worker do not die", worker=str(key))
                warn_at = time.monotonic() + KILL_AGAIN_S
            time.sleep(_SWEEP_S)

    # --- tidying up ----------------------------------------------------------------------------

    def bury(self, key: Key, living: frozenset[Key]) -> None:
        """Remove the worker's folder and control group, and the oldest logs, in the background."""
        self._chore(self._buried(key, living))

    async def _buried(self, key: Key, living: frozenset[Key]) -> None:
        try:
            await self._clear(key)
            await asyncio.to_thread(self._folders.drop_old_logs, living)
        except OSError as error:
            log.warning("a worker's folder stays until the next start", reason=str(error))

    async def _clear(self, key: Key) -> None:
        """Remove the worker's folder. Nothing can be started from it any more, however late."""
        if not self._folders.worker(key).is_dir():
            return
        if not self._folders.claim_void(key):
            identity = self._folders.claim(key)
            held = processes.hold(identity) if identity else None
            if held is not None:
                log.warning("a worker that the journal does not know is ended", worker=str(key))
                processes.send(held, signal.SIGUSR1)
                await _readable(held)
                os.close(held)
            await asyncio.to_thread(self._sweep, key)
        group = self._folders.launch(key).get("cgroup")
        if group:
            cgroups.remove(Path(group))
        await asyncio.to_thread(self._folders.remove_worker, key)

    def _chore(self, work: Coroutine[Any, Any, Any]) -> None:
        task = asyncio.create_task(work)
        self._chores.add(task)
        task.add_done_callback(self._chores.discard)

    async def close(self) -> None:
        """Let go of everything. Workers go on; the next agent finds them."""
        for task in list(self._launching.values()):
            task.cancel()
        for key in list(self._held):
            self._release(key)
        waiting = [*self._launching.values(), *self._chores]
        if waiting:
            await asyncio.wait(waiting)


async def _readable(handle: int) -> None:
    """Return when the held process has ended."""
    loop = asyncio.get_running_loop()
    ended = loop.create_future()
    loop.add_reader(handle, ended.set_result, None)
    try:
        await ended
    finally:
        loop.remove_reader(handle)
