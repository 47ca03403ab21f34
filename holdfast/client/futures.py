"""Futures of what takes long: one thread looks at all of them, from the first until `close`."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, TypeVar

from holdfast.client.waiting import Poll
from holdfast.system.tasks import OwnedThread, start_thread, unexpected
from holdfast.wire.errors import Cancelled, HoldfastError
from holdfast.wire.limits import JOB_LOOK_S, THREAD_END_S

T = TypeVar("T")
R = TypeVar("R")


@dataclass
class _PendingFuture:
    future: Future[Any]
    check: Callable[[], Any]  # the result, or None: not yet
    every_s: float
    due_s: float = 0.0


class Futures:
    """Whatever is waited for by a client's futures. Its end is the client's: `close`."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._pending: list[_PendingFuture] = []
        self._thread: OwnedThread | None = None
        self._closed = False

    def add(self, wait: Poll[T], then: Callable[[T], R]) -> Future[R]:
        """What `then` makes of what is waited for, or the error of either."""
        future: Future[R] = Future()

        def check() -> R | None:
            found = wait.check()
            return None if found is None else then(found)

        with self._changed:
            if self._closed:
                raise closed()
            self._pending.append(_PendingFuture(future, check, wait.every_s))
            if self._thread is None:
                self._thread = start_thread(self._run, "holdfast-client-futures", self._died)
            self._changed.notify()
        return future

    def close(self) -> None:
        """Look no more. What is not there yet ends with `Cancelled`; may be called twice."""
        with self._changed:
            self._closed = True
            self._changed.notify()
            thread = self._thread
        if thread is not None:
            thread.join(THREAD_END_S)
        self._give_up(closed())

    def _died(self, error: BaseException) -> None:
        """Nobody looks any more: whoever waits is told."""
        with self._changed:
            self._closed = True
        self._give_up(unexpected("the thread of the client's futures", error))

    def _give_up(self, error: HoldfastError) -> None:
        with self._changed:
            left, self._pending = self._pending, []
        for one in left:
            if not _over(one.future) and one.future.set_running_or_notify_cancel():
                one.future.set_exception(error)

    def _run(self) -> None:
        while True:
            with self._changed:
                if self._closed:
                    return
                self._pending = [one for one in self._pending if not _over(one.future)]
                now_s = time.monotonic()
                due = [one for one in self._pending if one.due_s <= now_s]
                if not due:
                    next_s = min((one.due_s for one in self._pending), default=None)
                    self._changed.wait(None if next_s is None else max(0.0, next_s - now_s))
                    continue
            for one in due:
                if self._closed:
                    return
                _look(one)


def _over(future: Future[Any]) -> bool:
    """Whether nobody waits for it any more. Whoever waits for a cancelled one is told so, once."""
    if future.cancelled():
        future.set_running_or_notify_cancel()
    return future.done()


def _look(one: _PendingFuture) -> None:
    """Whatever comes of it is the future's: the thread goes on for the others."""
    one.due_s = time.monotonic() + max(one.every_s, JOB_LOOK_S)
    try:
        found = one.check()
    except BaseException as error:
        if one.future.set_running_or_notify_cancel():
            one.future.set_exception(error)
        return
    if found is not None and one.future.set_running_or_notify_cancel():
        one.future.set_result(found)


def closed() -> Cancelled:
    """What a closed client says."""
    return Cancelled(
        "this client is closed",
        why="its `close` was called, or its `with` block has ended",
        fix="make another one: with Client() as client: ...",
    )
