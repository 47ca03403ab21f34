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
import time
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any, Final

from holdfast.agent import cgroups, processes
from holdfast.agent.environments import Environments
from holdfast.agent.events import (
    NOBODY,
    Ending,
    Event,
    Examined,
    Force,
    Identity,
    Key,
    NeverStarted,
    PortsTaken,
    ProcessAdopted,
    ProcessExited,
    ProcessStarted,
    Slots,
    StartProcess,
    key_of,
)
from holdfast.agent.folders import Folders
from holdfast.agent.launching import Bounds, Launcher
from holdfast.agent.requirements import CannotPrepare
from holdfast.wire import logs
from holdfast.wire.disk import NO_ROOM
from holdfast.wire.errors import BugError, HoldfastError, RetryError
from holdfast.wire.limits import JOURNAL_RETRY_S, KILL_AGAIN_S
from holdfast.wire.orders import StartWorker
from holdfast.wire.tasks import Died, Tasks, start_task

# A bundle that cannot be fetched now is tried again so often, as long as its worker is wanted.
BUNDLE_RETRY_S: Final = 2.0

_SWEEP_S: Final = 0.02

log = logs.get(__name__)

__all__ = ["Bounds", "BundleFolder", "Supervisor"]

BundleFolder = Callable[[str], Path]
"""Gives the folder of an unpacked bundle; may block. `RetryError`: it may work later."""


class Supervisor:
    """The processes of one agent. Used from its loop alone; events go to `tell`. `died` is called
    when a task of it has ended unexpectedly: then it does not keep its promises any more."""

    def __init__(
        self,
        folders: Folders,
        bundle_folder: BundleFolder,
        tell: Callable[[Event], None],
        launcher: Launcher,
        died: Died,
    ) -> None:
        self._folders = folders
        self._bundle_folder = bundle_folder
        self._tell = tell
        self._launcher = launcher
        self._died = died
        self._held: dict[Key, int] = {}  # pidfds of shims
        self._shims: dict[Key, Identity] = {}  # who they are
        self._committed: set[Key] = set()  # launches that can no longer be called off
        self._children: dict[Key, subprocess.Popen[bytes]] = {}
        self._launching: dict[Key, asyncio.Task[None]] = {}
        self._killed: set[Key] = set()
        self._chores = Tasks(died)
        in_use = folders.environments_in_use
        self._environments = Environments(folders.environments, tell, in_use)
        self._closing = False

    # --- starting ------------------------------------------------------------------------------

    def start(self, action: StartProcess) -> None:
        """Start it, in the background; `ProcessStarted` or `ProcessExited` follows."""
        key = key_of(action.order)
        launch = self._launch(key, action.order, action.slots)
        self._launching[key] = task = start_task(launch, f"launch of {key}", self._died)
        task.add_done_callback(partial(self._launched, key))

    def _launched(self, key: Key, task: asyncio.Task[None]) -> None:
        del self._launching[key]
        if task.cancelled() and not self._closing:
            self._chore(self._tell_never(key, "it was stopped before it was started"))

    async def _launch(self, key: Key, order: StartWorker, slots: Slots) -> None:
        try:
            bundle = await self._unpacked(order.bundle) if order.bundle else None
            if bundle is not None and (order.user or order.resources.disk_bytes):
                # What it writes beside its code is its own, and is counted.
                bundle = await asyncio.to_thread(self._launcher.own_code, key, bundle)
            venv = None
            if order.requirements:
                making = partial(self._launcher.making, key, order, slots, bundle)
                venv = await self._environments.get(await asyncio.to_thread(making))
            taken = await asyncio.to_thread(self._launcher.taken, slots)
            if taken and self._folders.claim(key) is not None:
                self._tell(await self.find(key))  # its own, by the shim of an earlier agent
                return
            if taken:
                log.warning("ports are taken by others", worker=str(key), ports=taken)
                self._tell(PortsTaken(key, taken))
                return
            warm = self._launcher.prepare(key, order, slots, bundle, venv)
            warm = warm and await self._launcher.warmth(key)
            await self._spawn(key, warm)
        except CannotPrepare as error:
            await self._tell_never(key, error.what, final=True)
        except (HoldfastError, OSError) as error:
            await self._tell_never(key, f"it could not be started: {error}")
        except Exception as error:  # a bug of ours, or of whoever gives bundles: of this worker
            log.exception("a worker could not be started", worker=str(key))
            await self._tell_never(key, f"it could not be started: {error!r}")

    async def _unpacked(self, bundle: str) -> Path:
        while True:
            try:
                return await asyncio.to_thread(self._bundle_folder, bundle)
            except RetryError as error:
                log.warning("a bundle cannot be fetched now", bundle=bundle, reason=str(error))
                await asyncio.sleep(BUNDLE_RETRY_S)

    async def _spawn(self, key: Key, warm: bool) -> None:
        self._committed.add(key)
        try:
            born = await self._launcher.start(key, warm=warm)
        finally:
            self._committed.discard(key)
        if born.child is not None:
            self._children[key] = born.child
            held: int | None = os.pidfd_open(born.child.pid)
        else:
            held = processes.hold(born.identity)
        if held is None:
            self._chore(self._after(key, born.identity))
            return
        self._watch(key, held, born.identity)
        if born.identity.start_ticks:
            self._tell(ProcessStarted(key, born.identity))

    # --- finding again -------------------------------------------------------------------------

    async def call_off(self, key: Key) -> None:
        """If it was never started it never will be, however late the shim of an earlier agent is:
        before `find`, for a worker that is to stop."""
        await self._void(key)

    async def find(self, key: Key) -> Event:
        """What has become of a worker that an earlier agent accepted. A living one is watched."""
        identity = self._folders.claim(key)
        if identity is None:
            return NeverStarted(key, prepared=self._folders.worker(key).is_dir())
        if identity == NOBODY:
            return NeverStarted(key, called_off=True)
        held = processes.hold(identity)
        if held is None:
            return ProcessExited(key, await self._ending(key))
        self._watch(key, held, identity)
        return ProcessAdopted(key, identity)

    async def end_strangers(self, living: frozenset[Key]) -> None:
        """End and remove whatever is here and should not be."""
        for key in self._folders.present():
            if key not in living:
                await self._clear(key)
        await asyncio.to_thread(self._folders.finish_removals)
        await self._environments.tidy()

    # --- signals -------------------------------------------------------------------------------

    def signal(self, key: Key, force: Force) -> None:
        """Ask or kill. What is still being prepared is called off instead."""
        launching = self._launching.get(key)
        if launching is not None:
            # One that is committed is asked again, or killed again, once it has started.
            if key not in self._committed:
                launching.cancel()
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

    def examine(self, key: Key) -> None:
        """Look whether it is paused; `Examined` follows."""
        if key in self._shims:
            self._chore(self._examined(key, self._shims[key]))

    async def _examined(self, key: Key, identity: Identity) -> None:
        paused = await asyncio.to_thread(processes.paused_below, identity.pid)
        self._tell(Examined(key, paused))

    # --- ends ----------------------------------------------------------------------------------

    def _watch(self, key: Key, held: int, identity: Identity) -> None:
        if key in self._held:
            raise BugError(f"worker {key} is watched already")
        self._held[key] = held
        self._shims[key] = identity
        asyncio.get_running_loop().add_reader(held, self._shim_ended, key)

    def _shim_ended(self, key: Key) -> None:
        identity = self._shims[key]
        self._release(key)
        child = self._children.pop(key, None)
        if child is not None:
            child.wait()
        self._chore(self._after(key, identity))

    async def _after(self, key: Key, identity: Identity) -> None:
        """The shim has ended. If the worker is another's, an earlier agent had started it after
        all, so late that its claim was not there yet."""
        claim = self._folders.claim(key)
        if claim is None or claim.pid == identity.pid:
            await self._tell_end(key)
        else:
            self._tell(await self.find(key))

    def _release(self, key: Key) -> None:
        del self._shims[key]
        held = self._held.pop(key)
        asyncio.get_running_loop().remove_reader(held)
        os.close(held)

    async def _tell_end(self, key: Key) -> None:
        self._killed.discard(key)
        if self._folders.claim(key) is None:
            words = self._folders.shim_words(key) or "its shim was ended"
            await self._tell_never(key, f"it could not be started: {words}")
        else:
            self._tell(ProcessExited(key, await self._ending(key)))

    async def _tell_never(self, key: Key, fault: str, *, final: bool = False) -> None:
        """It was not started by us. Nor is it by anybody else from now on, unless the shim of an
        earlier agent has come first: then that is the worker."""
        if await self._void(key):
            self._tell(ProcessExited(key, Ending(fault=fault, final=final)))
        else:
            self._tell(await self.find(key))

    async def _void(self, key: Key) -> bool:
        """Claim the worker for nobody; False: somebody has claimed it. Waits for room."""
        while True:
            try:
                return await asyncio.to_thread(self._folders.claim_void, key)
            except FileNotFoundError:
                return True  # without a folder there is nothing to start
            except OSError as error:
                log.warning("a claim cannot be made", worker=str(key), reason=str(error))
                if error.errno not in NO_ROOM or self._closing:
                    return True  # nor can that of a shim
                await asyncio.sleep(JOURNAL_RETRY_S)

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
            self._environments.forget(key)
            await self._environments.tidy()
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
                await processes.readable(held)
                os.close(held)
            await asyncio.to_thread(self._sweep, key)
        group = self._folders.launch(key).get("cgroup")
        if group:
            cgroups.remove(Path(group))
        await asyncio.to_thread(self._folders.remove_worker, key)

    def _chore(self, work: Coroutine[Any, Any, Any]) -> None:
        self._chores.start(work, "chore")

    async def close(self) -> None:
        """Let go of everything. Workers go on; the next agent finds them, and starts those that
        are not started yet."""
        self._closing = True
        for key, task in list(self._launching.items()):
            if key not in self._committed:
                task.cancel()
        if self._launching:
            await asyncio.wait(list(self._launching.values()))
        await self._environments.close()
        for key in list(self._held):
            self._release(key)
        await self._chores.wait()
        await self._launcher.close()
