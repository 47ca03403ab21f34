"""A thread for what blocks, or must not disturb requests: one call after the other."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, TypeVar

from holdfast.serve.replica.batching import first_line
from holdfast.system.tasks import in_loop, start_thread

T = TypeVar("T")


class Aside:
    """Calls functions one after the other. Its thread does not keep the process from ending.
    `at_first`: what it does before all others."""

    def __init__(self, at_first: Callable[[], None] | None = None) -> None:
        self._at_first = at_first
        self._loop = asyncio.get_running_loop()
        self._calls: SimpleQueue[tuple[Callable[[], Any], asyncio.Future[Any]]] = SimpleQueue()
        start_thread(self._run, "aside", lasts="what it calls may never come to an end")

    async def call(self, function: Callable[[], T]) -> T:
        """What the function returns or raises, later. A call that is cancelled is still made."""
        future: asyncio.Future[T] = self._loop.create_future()
        self._calls.put((function, future))
        return await future

    def _run(self) -> None:
        if self._at_first is not None:
            self._at_first()
        while True:
            function, future = self._calls.get()
            settle = _called(function, future)
            in_loop(self._loop, settle)
            del function, future, settle  # what is unloaded must not live on here


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
