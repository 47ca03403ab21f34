"""Threads and tasks with an owner: whoever starts one waits for it, and its death is noticed.

    self._thread = start_thread(self._run, "housekeeping")     # its death ends this process
    self._thread = start_thread(self._run, "line", self._fail)  # … is told to whoever needs it
    self._thread.join(THREAD_END_S)

    self._chores = Tasks(died)
    self._chores.start(self._tidy(), "tidying")
    await self._chores.close()

What dies by an exception that nobody asks for dies in silence, and what it did is not done any
more. So each has a name and a policy for that: it ends the process (the default), `died` is told,
or somebody waits for its result (`WAITED`). A part that can go on after a failure has `Retries`
(`holdfast.system.retries`). `make lint` refuses threads, tasks and futures without an owner.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from holdfast.wire.errors import BugError, HoldfastError

if TYPE_CHECKING:  # light: processes without a loop need none of it
    import asyncio
    from concurrent.futures import Future

R = TypeVar("R")
T = TypeVar("T", bound="asyncio.Future[Any] | Future[Any]")
Died = Callable[[BaseException], None]

# A process that has lost a part of itself has so long for a clean end: a replica drains meanwhile.
DEATH_END_S: Final = 60.0

# `lasts` of one that is told to end, and may be in a call that waits for a server.
ENDS_SOON: Final = "it ends by itself within the time of a call, which nobody waits for"

_log = logging.getLogger(__name__)


def WAITED(_error: BaseException) -> None:  # noqa: N802 - a policy, written where others are given
    """`died` of what somebody waits for: the exception is raised there."""


# --- threads --------------------------------------------------------------------------------------


class OwnedThread:
    """A thread that was started. `lasts`: why nobody waits for it; then it ends with the process,
    or by itself."""

    def __init__(
        self, target: Callable[[], object], name: str, died: Died | None, lasts: str
    ) -> None:
        self.name = name
        self.lasts = lasts
        self._target = target
        self._died = died or ends_process(name)
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def join(self, timeout_s: float | None = None) -> bool:
        """Wait for its end; whether it has ended. A thread does not wait for itself."""
        if self._thread is not threading.current_thread():
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def result(self) -> None:
        """Wait for its end, and raise what it died of."""
        self._thread.join()
        if self._error is not None:
            raise self._error

    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def _run(self) -> None:
        try:
            self._target()
        except BaseException as error:  # whatever it is: that it is gone is somebody's business
            self._error = error
            self._died(error)
        finally:
            del self._target  # nor does what it worked on live as long as its owner


def start_thread(
    target: Callable[[], object], name: str, died: Died | None = None, *, lasts: str = ""
) -> OwnedThread:
    """Start it. The caller owns it, and joins it; or says with `lasts` why nobody does. `died` is
    called in the thread; without one its death ends this process."""
    return OwnedThread(target, name, died, lasts)


# --- tasks ----------------------------------------------------------------------------------------


def start_task(
    work: Coroutine[Any, Any, R], name: str, died: Died | None = None
) -> asyncio.Task[R]:
    """Start it in the running loop. The caller owns it, and waits for it. `died` is called in the
    loop; without one its death ends this process. One that is called off has not died."""
    import asyncio  # noqa: PLC0415

    task = asyncio.get_running_loop().create_task(work, name=name)
    return task if died is WAITED else owned(task, died or ends_process(name))


def owned(future: T, died: Died) -> T:
    """The same task or future. `died` is called with its exception, if it ends by one; one that is
    called off does not. It is called where it ends: in its loop, or in its thread."""

    def ended(future: Any) -> None:
        if not future.cancelled() and (error := future.exception()) is not None:
            died(error)

    future.add_done_callback(ended)
    return future


class Tasks:
    """Tasks of one owner, who need not look at each. Used in one loop."""

    def __init__(self, died: Died | None = None) -> None:
        self._died = died
        self._tasks: set[asyncio.Task[Any]] = set()

    def start(self, work: Coroutine[Any, Any, R], name: str) -> asyncio.Task[R]:
        task = start_task(work, name, self._died)
        self.keep(task)
        return task

    def keep(self, task: asyncio.Task[Any]) -> None:
        """Take over one that was started: it is waited for, too."""
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def wait(self) -> None:
        """Return when all have ended."""
        import asyncio  # noqa: PLC0415

        while self._tasks:
            await asyncio.wait(list(self._tasks))

    async def close(self) -> None:
        """Call all off; return when none runs any more."""
        for task in self._tasks:
            task.cancel()
        await self.wait()


async def end(*tasks: asyncio.Task[Any]) -> None:
    """Call these off; return when none of them runs any more. Their errors are not raised here."""
    import asyncio  # noqa: PLC0415

    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks)


async def until_one_ends(*works: Coroutine[Any, Any, object], name: str) -> None:
    """Do all of these at a time, until one of them ends; the others are called off. Raises what it
    raised."""
    import asyncio  # noqa: PLC0415

    tasks = [start_task(work, name, WAITED) for work in works]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        await end(*tasks)
    for task in done:
        task.result()


def in_loop(loop: asyncio.AbstractEventLoop, work: Callable[..., object], *given: Any) -> None:
    """Do it in the loop, from any thread; a loop that has ended has nothing to do any more."""
    try:
        loop.call_soon_threadsafe(work, *given)
    except RuntimeError:
        if not loop.is_closed():
            raise


# --- the end of a process -------------------------------------------------------------------------


def unexpected(what: str, error: BaseException) -> BugError:
    """The error with which a process ends that has lost a part of itself."""
    found = BugError(
        f"{what} has ended unexpectedly",
        why=f"{type(error).__name__}: {error}",
        fix="start it again, and report what its log says",
    )
    found.__cause__ = error
    return found


class _OfProcess:
    """What there is once in a process."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.end: Callable[[], None] | None = None  # how its main is told to end
        self.death: HoldfastError | None = None


_process = _OfProcess()


def ends_process(what: str) -> Died:
    """The policy of a part without which the process is of no use: its main is told to end, and
    says of what. In somebody else's program we end nothing: there it is shown as Python shows a
    thread that dies."""

    def died(error: BaseException) -> None:
        with _process.lock:
            end_main, first = _process.end, _process.death is None
            if end_main is not None and first:
                ours = isinstance(error, HoldfastError)
                _process.death = error if ours else unexpected(what, error)  # type: ignore[assignment]
        if end_main is None:
            shown = (type(error), error, error.__traceback__, threading.current_thread())
            threading.excepthook(threading.ExceptHookArgs(shown))
            return
        _log.critical("%s has died: this process ends", what, exc_info=error)
        if first:
            insist = partial(_insist, end_main)
            start_thread(insist, "insist", lasts="it ends the process that does not end by itself")
            end_main()

    return died


def _insist(end_main: Callable[[], None]) -> None:
    time.sleep(DEATH_END_S)
    if _process.end is end_main:
        _log.critical("this process does not come to an end by itself")
        os._exit(BugError.exit_code)


@contextmanager
def main_ended_by(end_main: Callable[[], None]) -> Iterator[None]:
    """For a main of ours: `end_main` is called, from any thread, when a part has died without which
    the process is of no use. `death` says what it then ends with."""
    _process.end, _process.death = end_main, None
    try:
        yield
    finally:
        _process.end = None


def death() -> HoldfastError | None:
    """Why this process ends, if a part of it has died."""
    return _process.death
