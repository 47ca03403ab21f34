"""Calls by gRPC, for a process that has no loop of its own: one loop, until the process ends.

    answer = calls.run(ask(endpoint))         # as `asyncio.run`, from any thread without a loop
    going = calls.Going(watch())          # goes on by itself
    going.end()                           # cancelled, and over
    answer = await calls.awaited(ask(endpoint))   # from a loop of the caller's own

gRPC has one queue of completions for a process, and each loop that lives takes from it for all. One
for a loop that was closed meanwhile (the end of a call that was cancelled comes a moment later) is
raised in another loop, whose handler prints it: several tracebacks, which mean nothing. So the loop
in which we call is not closed while there may be another one.
"""

from __future__ import annotations

import asyncio
import atexit
import threading
from collections.abc import Coroutine
from typing import Any, Generic, TypeVar

from holdfast.system.tasks import (
    WAITED,
    Died,
    OwnedThread,
    ends_process,
    owned,
    start_task,
    start_thread,
)
from holdfast.wire.limits import THREAD_END_S

T = TypeVar("T")


class Going(Generic[T]):
    """Work in the loop of calls, from now on. It is begun even if it is ended at once."""

    def __init__(self, work: Coroutine[Any, Any, T], died: Died = WAITED) -> None:
        """`died` is called in the loop, if nobody waits for its result."""
        self._died = died
        self._over = threading.Event()
        self._task: asyncio.Task[T] | None = None
        self.loop = _LOOP.started()
        self.loop.call_soon_threadsafe(self._begin, work)

    def result(self) -> T:
        """Wait for its end: what it returns, or raises."""
        self._over.wait()
        assert self._task is not None, "it was begun"
        return self._task.result()

    def end(self, timeout_s: float = THREAD_END_S) -> bool:
        """Cancel it, and wait until it is over; whether it is. May be called twice."""
        self.loop.call_soon_threadsafe(self._cancel)
        return self._over.wait(timeout_s)

    # --- in the loop ----------------------------------------------------------------------------

    def _begin(self, work: Coroutine[Any, Any, T]) -> None:
        self._task = start_task(work, "call", self._died)
        self._task.add_done_callback(lambda _task: self._over.set())

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()


def run(work: Coroutine[Any, Any, T]) -> T:
    """Do it in the loop of calls. Ctrl-C cancels it, and is raised when it is over."""
    going = Going(work)
    try:
        return going.result()
    finally:
        going.end()


async def awaited(work: Coroutine[Any, Any, T]) -> T:
    """Do it in the loop of calls, for a caller in another loop. A cancelled wait cancels it."""
    return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, _LOOP.started()))


class _CallsLoop:
    """A loop on a thread, started by whoever needs it first."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None

    def started(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                loop = self._loop = asyncio.new_event_loop()
                thread = start_thread(loop.run_forever, "holdfast-calls")
                atexit.register(_end, loop, thread)
            return self._loop


def _end(loop: asyncio.AbstractEventLoop, thread: OwnedThread) -> None:
    """The interpreter shall not end in the middle of gRPC's code, nor find work that waits."""
    owned(asyncio.run_coroutine_threadsafe(_finish(loop), loop), ends_process("the last call"))
    thread.join(THREAD_END_S)


async def _finish(loop: asyncio.AbstractEventLoop) -> None:
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)
    loop.call_soon(loop.stop)


_LOOP = _CallsLoop()
