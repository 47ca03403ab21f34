"""A thread for what blocks, or must not disturb requests: one call after the other."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, TypeVar

from holdfast.serve.replica.batching import first_line
from holdfast.wire import logs

T = TypeVar("T")

log = logs.get(__name__)


class Aside:
    """Calls functions one after the other. Its thread does not keep the process from ending.
    `nice`: its priority, as the system's `nice` has it."""

    def __init__(self, nice: int = 0) -> None:
        self._nice = nice
        self._loop = asyncio.get_running_loop()
        self._calls: SimpleQueue[tuple[Callable[[], Any], asyncio.Future[Any]]] = SimpleQueue()
        threading.Thread(target=self._run, name="aside", daemon=True).start()

    async def call(self, function: Callable[[], T]) -> T:
        """What the function returns or raises, later. A call that is cancelled is still made."""
        future: asyncio.Future[T] = self._loop.create_future()
        self._calls.put((function, future))
        return await future

    def _run(self) -> None:
        if self._nice:
            self._step_back()
        while True:
            function, future = self._calls.get()
            settle = _called(function, future)
            with suppress(RuntimeError):  # the loop has ended: nobody waits for it
                self._loop.call_soon_threadsafe(settle)
            del function, future, settle  # what is unloaded must not live on here

    def _step_back(self) -> None:
        try:
            # Of this thread alone: for Linux a thread is a process of its own.
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), self._nice)
        except OSError as error:
            log.warning("versions are loaded at the priority of requests", reason=str(error))


def _called(function: Callable[[], Any], future: asyncio.Future[Any]) -> Callable[[], None]:
    """Call it; what is then to be done in the loop."""
    try:
        result = function()
    except BaseException as raised:  # a model's code may raise whatever it likes
        # A future takes no `StopIteration`, and a loop no end of the process.
        ordinary = isinstance(raised, Exception) and not isinstance(raised, StopIteration)
        error = raised if ordinary else RuntimeError(first_line(raised))
        return lambda: None if future.done() else future.set_exception(error)
    return lambda: None if future.done() else future.set_result(result)
