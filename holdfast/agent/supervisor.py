"""Starts workers, finds them again, signals them, and tidies up after them.

Each worker runs under a shim (`shim`), which outlives the agent. What the supervisor promises:

- `start` runs a worker at most once, whoever else tried before: the shim's claim decides.
- The end of a worker is told once nothing of it runs any more, within milliseconds of it.
- A worker that the journal does not know is ended; its folder is removed.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

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
from holdfast.agent.ports import HeldProcess, Launching, Processes, WorkerFolders
from holdfast.agent.requirements import CannotPrepare
from holdfast.system import logs
from holdfast.system.disk import NO_ROOM
from holdfast.system.tasks import Died, Tasks, start_task
from holdfast.wire.errors import BugError, HoldfastError
from holdfast.wire.limits import JOURNAL_RETRY_S
from holdfast.wire.orders import StartWorker

log = logs.get(__name__)


class WorkerSupervisor:
    """The processes of one agent. Used from its loop alone; events go to `tell`. `died` is called
    when a task of it has ended unexpectedly: then it does not keep its promises any more."""

    def __init__(
        self,
        folders: WorkerFolders,
        processes: Processes,
        launcher: Launching,
        tell: Callable[[Event], None],
        died: Died,
    ) -> None:
        self._folders = folders
        self._processes = processes
        self._launcher = launcher
        self._tell = tell
        self._died = died
        self._shims: dict[Key, HeldProcess] = {}
        self._committed: set[Key] = set()  # launches that can no longer be called off
        self._launching: dict[Key, asyncio.Task[None]] = {}
        self._killed: set[Key] = set()
        self._chores = Tasks(died)
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
        launcher = self._launcher
        try:
            gathered = await launcher.gather(key, order, slots)
            taken = await asyncio.to_thread(launcher.taken, slots)
            if taken and self._folders.claim(key) is not None:
                self._tell(await self.find(key))  # its own, by the shim of an earlier agent
                return
            if taken:
                log.warning("ports are taken by others", worker=str(key), ports=taken)
                self._tell(PortsTaken(key, taken))
                return
            await self._spawn(key, await launcher.prepare(key, order, slots, gathered))
        except CannotPrepare as error:
            await self._tell_never(key, error.what, final=True)
        except (HoldfastError, OSError) as error:
            await self._tell_never(key, f"it could not be started: {error}")
        except Exception as error:  # a bug of ours, or of whoever gives bundles: of this worker
            log.exception("a worker could not be started", worker=str(key))
            await self._tell_never(key, f"it could not be started: {error!r}")

    async def _spawn(self, key: Key, warm: bool) -> None:
        self._committed.add(key)
        try:
            identity, held = await self._launcher.start(key, warm=warm)
        finally:
            self._committed.discard(key)
        if held is None:
            self._chore(self._after(key, identity))
            return
        self._watch(key, held)
        if identity.start_ticks:
            self._tell(ProcessStarted(key, identity))

    # --- finding again -------------------------------------------------------------------------

    async def call_off(self, key: Key) -> None:
        """If it was never started it never will be, however late the shim of an earlier agent is:
        before `find`, for a worker that is to stop."""
        await self._void(key)

    async def find(self, key: Key) -> Event:
        """What has become of a worker that an earlier agent accepted. A living one is watched."""
        identity = self._folders.claim(key)
        if identity is None:
            return NeverStarted(key, prepared=self._folders.is_there(key))
        if identity == NOBODY:
            return NeverStarted(key, called_off=True)
        held = self._processes.hold(identity)
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
        await self._launcher.tidy()

    # --- signals -------------------------------------------------------------------------------

    def signal(self, key: Key, force: Force) -> None:
        """Ask or kill. What is still being prepared is called off instead."""
        launching = self._launching.get(key)
        if launching is not None:
            # One that is committed is asked again, or killed again, once it has started.
            if key not in self._committed:
                launching.cancel()
            return
        shim = self._shims.get(key)
        if shim is None:
            return
        if force is Force.ASK:
            shim.send(signal.SIGTERM)
            return
        # A shim that was itself paused cannot do as it is told.
        shim.send(signal.SIGCONT)
        shim.send(signal.SIGUSR1)
        if key in self._killed:
            kill_all, folder = self._processes.kill_all, self._folders.worker(key)
            self._chore(asyncio.to_thread(kill_all, folder))
        self._killed.add(key)

    def examine(self, key: Key) -> None:
        """Look whether it is paused; `Examined` follows."""
        if key in self._shims:
            self._chore(self._examined(key, self._shims[key].identity))

    async def _examined(self, key: Key, identity: Identity) -> None:
        paused = await asyncio.to_thread(self._processes.is_paused_below, identity)
        self._tell(Examined(key, paused))

    # --- ends ----------------------------------------------------------------------------------

    def _watch(self, key: Key, shim: HeldProcess) -> None:
        if key in self._shims:
            raise BugError(f"worker {key} is watched already")
        self._shims[key] = shim
        shim.on_end(partial(self._shim_ended, key))

    def _shim_ended(self, key: Key) -> None:
        self._chore(self._after(key, self._shims.pop(key).identity))

    async def _after(self, key: Key, identity: Identity) -> None:
        """The shim has ended. If the worker is another's, an earlier agent had started it after
        all, so late that its claim was not there yet."""
        claim = self._folders.claim(key)
        if claim is None or claim.pid == identity.pid:
            await self._tell_end(key)
        else:
            self._tell(await self.find(key))

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
        await self._processes.sweep(self._folders.worker(key))
        return Ending(stderr_tail=self._folders.stderr_tail(key))

    # --- tidying up ----------------------------------------------------------------------------

    def clean_up(self, key: Key, living: frozenset[Key]) -> None:
        """Remove the worker's folder and control group, and the oldest logs, in the background."""
        self._chore(self._cleaned_up(key, living))

    async def _cleaned_up(self, key: Key, living: frozenset[Key]) -> None:
        try:
            await self._clear(key)
            await asyncio.to_thread(self._folders.drop_old_logs, living)
            await self._launcher.tidy(key)
        except OSError as error:
            log.warning("a worker's folder stays until the next start", reason=str(error))

    async def _clear(self, key: Key) -> None:
        """Remove the worker's folder. Nothing can be started from it any more, however late."""
        if not self._folders.is_there(key):
            return
        if not self._folders.claim_void(key):
            identity = self._folders.claim(key)
            shim = self._processes.hold(identity) if identity else None
            if shim is not None:
                log.warning("a worker that the journal does not know is ended", worker=str(key))
                shim.send(signal.SIGUSR1)
                await shim.wait()
                shim.close()
            await self._processes.sweep(self._folders.worker(key))
        await self._launcher.remove(key)

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
        for shim in self._shims.values():
            shim.close()
        self._shims.clear()
        await self._chores.wait()
        await self._launcher.close()
