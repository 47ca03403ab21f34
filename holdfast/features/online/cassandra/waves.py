"""Statements on the way: all those of one call at once, and never more than so many of a store."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import cassandra

from holdfast.features.online.cassandra import failures
from holdfast.features.online.cassandra.connection import Ring
from holdfast.wire.errors import HoldfastError, TimedOut

# Of all calls of a store together. A node works on some dozens at a time; what waits there for its
# turn is in its memory, and in nobody's control.
IN_FLIGHT_MAX: Final = 256


class Sent(NamedTuple):
    """A statement, bound, and the driver's name of the way to ask."""

    statement: Any
    profile: Any


class Waves:
    """Sends what calls ask for. Any thread may use it."""

    def __init__(self, ring: Ring, in_flight_max: int = IN_FLIGHT_MAX) -> None:
        self._ring = ring
        self._slots = threading.BoundedSemaphore(in_flight_max)

    def run(self, statements: Sequence[Sent], what: str, *, writes: bool = False) -> list[Any]:
        """The results, in the order of the statements. All have ended when this returns; raises
        what has stood in the way of one, with `what` could not be done."""
        session, answer_s = self._ring.session, self._ring.answer_s
        futures: list[Any] = []
        failed: BaseException | None = None
        for statement, profile in statements:
            if not self._slots.acquire(timeout=answer_s):
                failed = TimedOut(
                    what,
                    why=f"for {answer_s:g} s as many statements as may be on the way had no answer",
                    fix="ask for less at a time, or add nodes",
                )
                break
            try:
                future = session.execute_async(
                    statement, timeout=answer_s, execution_profile=profile
                )
            except BaseException as error:
                self._slots.release()
                if not isinstance(error, Exception):
                    raise
                failed = error
                break
            ended = _Once(self._slots.release)
            future.add_callbacks(ended, ended)
            futures.append(future)
        results: list[Any] = []
        refused = 0
        for future in futures:
            try:
                results.append(future.result())
            except Exception as error:
                failed = failed or error
                refused += writes and _left_nothing(future, error)
        if failed is not None:
            nothing = refused == len(futures) == len(statements)
            raise _told(failed, what, nothing) from failed
        return results


class _Once:
    """A callback that counts the first time: of two nodes that were asked both may answer."""

    def __init__(self, call: Callable[[], None]) -> None:
        self._lock = threading.Lock()
        self._call: Callable[[], None] | None = call

    def __call__(self, _result: Any) -> None:
        with self._lock:
            call, self._call = self._call, None
        if call is not None:
            call()


def _told(error: BaseException, what: str, nothing: bool) -> HoldfastError:
    return failures.translate(error, what, wrote_nothing=nothing)


def _left_nothing(future: Any, error: Exception) -> bool:
    """Whether every node that was asked has said that too few copies are there: before it has sent
    the row to any. One that has not answered at all may do it yet."""
    if not isinstance(error, cassandra.Unavailable):
        return False
    said: dict[Any, Any] = getattr(future, "_errors", {})
    no = {host for host, one in said.items() if isinstance(one, cassandra.Unavailable)}
    return set(future.attempted_hosts) <= no | {getattr(future, "coordinator_host", None)}
