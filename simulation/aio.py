"""An asyncio loop in the world's time: a real shell runs in it, as one life of a process.

What is ready runs at once, in the order in which it became so; timers are events of the kernel. So
a schedule is the same each time it is run. What runs in threads elsewhere runs here at once, or
takes as long as the executor that it is given to says. When its process dies, nothing of it runs
any more; when its process is stopped, everything waits.
"""

from __future__ import annotations

import asyncio
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Protocol, TypeVar

from simulation.kernel import SimulatedProcess, Violation

R = TypeVar("R")


class Killed(BaseException):
    """The process that was running is dead: nothing after this happens."""


class Busy(Protocol):
    """What work is given to that takes time, as a thread that syncs a disk."""

    def takes_s(self) -> float: ...


class _Handle:
    __slots__ = ("args", "callback", "is_off")

    def __init__(self, callback: Callable[..., object], args: tuple[Any, ...]) -> None:
        self.callback = callback
        self.args = args
        self.is_off = False

    def cancel(self) -> None:
        self.is_off = True

    def cancelled(self) -> bool:
        return self.is_off


class VirtualLoop(asyncio.AbstractEventLoop):
    """The loop of a process's present life."""

    def __init__(self, process: SimulatedProcess) -> None:
        self.process = process
        self._kernel = process.kernel
        self._life = process.life
        self._ready: deque[_Handle] = deque()
        self._tasks: list[asyncio.Task[Any]] = []
        self._is_running = False
        self._is_drained_soon = False
        self._is_over = False
        self._broken: Violation | None = None

    # --- the world's side ------------------------------------------------------------------------

    def enter(self, call: Callable[..., object], *args: Any) -> None:
        """Something happens to the process: do this, and all that follows at once."""
        if self._is_over:
            return
        if self._is_running:
            self._ready.append(_Handle(call, args))
            return
        before, ready = events._get_running_loop(), self._ready
        events._set_running_loop(self)
        self._is_running = True
        try:
            call(*args)
            while ready:
                handle = ready.popleft()
                if not handle.is_off:
                    handle.callback(*handle.args)
        except Killed:
            pass
        finally:
            self._is_running = False
            events._set_running_loop(before)
            if self._is_over:
                self._end_tasks()
        if self._broken is not None:
            raise self._broken

    def run(self, work: Coroutine[Any, Any, Any], ended: Callable[[Any], object]) -> None:
        """Begin with this; `ended` is called with its task."""
        self.enter(lambda: self.create_task(work).add_done_callback(ended))

    def check(self, rule: Callable[..., None], *args: Any) -> None:
        """Ask a check from within the process: a violation is not the shell's to catch."""
        try:
            rule(*args)
        except Violation as violation:
            self._broken = violation
            self.end()
            raise Killed from None

    def end(self) -> None:
        """The process is dead."""
        self._is_over = True
        self._ready.clear()
        if not self._is_running:
            self._end_tasks()

    def _end_tasks(self) -> None:
        """Nothing that a shell does on the way out reaches the world: its loop takes no calls. What
        waits on the way out is ended again, until it is out."""
        before = events._get_running_loop()
        events._set_running_loop(self)
        try:
            while self._tasks:
                task = self._tasks.pop()
                if not task.done():
                    task._log_destroy_pending = False  # type: ignore[attr-defined]
                    with suppress(Exception, Killed):
                        task.get_coro().close()
                        continue
                    self._tasks.append(task)
        finally:
            events._set_running_loop(before)

    # --- what asyncio asks for -------------------------------------------------------------------

    def time(self) -> float:
        return self._kernel.now_s

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return self._is_running

    def is_closed(self) -> bool:
        return self._is_over

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(  # type: ignore[override]
        self, coro: Coroutine[Any, Any, R], *, name: str | None = None
    ) -> asyncio.Task[R]:
        task = asyncio.Task(coro, loop=self, name=name)
        self._tasks.append(task)
        return task

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Any = None
    ) -> _Handle:
        handle = _Handle(callback, args)
        if not self._is_over:
            self._ready.append(handle)
            if not self._is_running and not self._is_drained_soon:
                self._is_drained_soon = True
                self._kernel.after_for(0.0, self._drain, self.process, self._life)
        return handle

    call_soon_threadsafe = call_soon  # type: ignore[assignment]

    def _drain(self) -> None:
        self._is_drained_soon = False
        self.enter(lambda: None)

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., object], *args: Any, context: Any = None
    ) -> _Handle:
        handle = _Handle(callback, args)

        def fire() -> None:
            if not handle.is_off:
                self.enter(callback, *args)

        if not self._is_over:
            self._kernel.after_for(max(0.0, delay), fire, self.process, self._life)
        return handle

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: Any = None
    ) -> _Handle:
        return self.call_later(when - self._kernel.now_s, callback, *args)

    def run_in_executor(  # type: ignore[override]
        self, executor: Busy | None, func: Callable[..., R], *args: Any
    ) -> asyncio.Future[R]:
        future: asyncio.Future[R] = self.create_future()

        def work() -> None:
            try:
                result = func(*args)
            except Exception as error:
                future.set_exception(error)
            else:
                future.set_result(result)

        if executor is None:
            work()
        else:
            self.call_later(executor.takes_s(), work)
        return future

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """What nobody asked for is of a dead process, or was reported by its owner."""


def loop_of(process: SimulatedProcess) -> VirtualLoop:
    """The loop of its present life. Of what a loop can do it has what shells ask for."""
    return VirtualLoop(process)  # type: ignore[abstract]
