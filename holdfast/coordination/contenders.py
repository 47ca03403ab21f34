"""A queue of contenders: first come, first served. Elections and all locks are made of it.

A contender is an ephemeral node with a number. Each watches only the one that it waits for, so
that a leaver wakes one other, not all. Its name begins with a mark of its own, so that it finds
its node again when the reply to its creation was lost.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import uuid
from collections.abc import Callable
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple, NoReturn

from holdfast.coordination.lease import Lease
from holdfast.coordination.nodes import Znode
from holdfast.coordination.waits import Deadline, Wake
from holdfast.wire.errors import Cancelled, Fenced, RetryError, TimedOut
from holdfast.wire.limits import RECONNECT_DELAY_S_MAX

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.coordination.session import Session
from typing import Final

# A caller that waits for less, or not at all, still gives each request this long to be answered.
OPERATION_GRACE_S: Final = 5.0

Blocks = Callable[[str], bool]


def own_name() -> str:
    """How this process is called where nobody gave it a name."""
    return f"{socket.gethostname()}:{os.getpid()}"


class Contender(NamedTuple):
    """Somebody in a queue. `token` grows from each contender to the next, also after restarts."""

    name: str
    kind: str
    since_ms: int
    token: int
    node: str


class QueuePosition:
    """Our place in a queue of contenders."""

    def __init__(self, queue: ContenderQueue, node: Znode, lease: Lease) -> None:
        self._queue = queue
        self.path = node.path
        self.node = node.path.rpartition("/")[2]
        self.data = node.data
        self.token = node.czxid
        self.lease = lease

    def leave(self) -> None:
        """Give it up; the node is removed now, or as soon as a server answers."""
        self._queue.leave(self.node, self.lease)


class ContenderQueue:
    """The contenders under `path`. One object may be used by several threads, each for its own
    place."""

    def __init__(self, session: Session, path: str, what: str) -> None:
        self._session = session
        self._path = path
        self._what = what
        self._lock = threading.Lock()
        self._waits: set[_Waiter] = set()
        self._closed = False

    def enter(
        self, kind: str, name: str, blocks: Blocks, timeout_s: float | None, share: int = 1
    ) -> QueuePosition:
        """Wait until fewer than `share` before us are of a kind that `blocks`. On any error, also
        one that `blocks` raises, we leave the queue.

        `timeout_s` bounds the waiting: `TimedOut`. None waits for ever, 0 not at all. A request
        that is under way is given `OPERATION_GRACE_S` in any case.
        """
        deadline = Deadline(timeout_s)
        lease = self._session.lease(self._patience(deadline))
        mark = f"{uuid.uuid4().hex}-{kind}-"
        data = json.dumps({"name": name}).encode()
        with self._waiting(lease) as wait:
            try:
                node = self._session.nodes.create_sequential(
                    self._path, mark, data, lease, self._patience(deadline)
                )
                place = QueuePosition(self, node, lease)
                self._wait(place, blocks, share, deadline, wait)
                self._session.lease(self._patience(deadline))  # so that what we got is sure now
                lease.check()
            except BaseException:
                self.leave(mark, lease)
                raise
        return place

    def cancel(self) -> None:
        """All that wait here now, through this object, raise `Cancelled` and leave the queue."""
        with self._lock:
            waits = tuple(self._waits)
        for wait in waits:
            wait.cancelled = True
            wait.event.set()

    def close(self) -> None:
        """As `cancel`, and for all who would wait here later, too."""
        self._closed = True
        self.cancel()

    def contenders(self) -> list[Contender]:
        """All in the queue, first come first."""
        found = []
        for name in self._sorted(self._session.nodes.children(self._path, fresh=True)):
            node = self._session.nodes.read(f"{self._path}/{name}")
            if node is not None:
                found.append(_contender(name, node))
        return found

    def leave(self, mark: str, lease: Lease) -> None:
        """Remove our node, which begins with `mark`."""
        nodes, path = self._session.nodes, self._path
        self._session.soon(lambda end: nodes.delete_prefixed(path, mark, lease, end), lease)

    # --- private --------------------------------------------------------------------------------

    @contextmanager
    def _waiting(self, lease: Lease) -> Iterator[_Waiter]:
        wait = _Waiter()
        wake = wait.event.set
        with self._lock:
            self._waits.add(wait)
            wait.cancelled = self._closed
        lease.on_end(wake)
        try:
            yield wait
        finally:
            lease.forget(wake)
            self._session.forget(wake)
            with self._lock:
                self._waits.discard(wait)

    def _wait(
        self, place: QueuePosition, blocks: Blocks, share: int, deadline: Deadline, wait: _Waiter
    ) -> None:
        nodes, lease = self._session.nodes, place.lease
        # Who waits for one watches that one. Who waits for any of several watches the queue.
        any_change = None if share == 1 else wait.event.set
        while True:
            wait.event.clear()
            if wait.cancelled:
                raise Cancelled(f"the wait for {self._what} was called off")
            lease.check()
            try:
                patience = self._patience(deadline)
                ahead = self._ahead(place, blocks, patience, any_change)
                if len(ahead) < share:
                    return
                if deadline.passed:
                    self._timed_out(ahead[-1])
                path = f"{self._path}/{ahead[-1]}"
                if any_change or nodes.watch_end(
                    path, wait.event.set, lease=lease, deadline=patience
                ):
                    wait.event.wait(deadline.left_s())
            except TimedOut:
                raise
            except RetryError:
                if deadline.passed:
                    raise
                wait.event.wait(RECONNECT_DELAY_S_MAX)

    def _ahead(
        self, place: QueuePosition, blocks: Blocks, deadline: Deadline, wake: Wake | None
    ) -> list[str]:
        """Those before us that count, the nearest last."""
        names = self._session.nodes.children(self._path, wake, lease=place.lease, deadline=deadline)
        if place.node not in names:
            raise Fenced(
                f"our place in the queue for {self._what} is gone",
                why="somebody removed our node",
                fix="enter again",
            )
        queue = self._sorted(names)
        return [name for name in queue[: queue.index(place.node)] if blocks(_kind(name))]

    def _timed_out(self, before: str) -> NoReturn:
        node = self._session.nodes.read(f"{self._path}/{before}")
        whom = "somebody" if node is None else repr(_contender(before, node).name)
        raise TimedOut(
            f"{self._what} was not free in time",
            why=f"{whom} is before us",
            fix="wait longer, or ask the holder to let go",
        )

    def _patience(self, deadline: Deadline) -> Deadline:
        left_s = deadline.left_s()
        return Deadline(None if left_s is None else max(left_s, OPERATION_GRACE_S))

    @staticmethod
    def _sorted(names: list[str]) -> list[str]:
        return sorted((name for name in names if _number(name) is not None), key=_number_or_zero)


class _Waiter:
    """A thread that waits in a queue."""

    def __init__(self) -> None:
        self.event = threading.Event()
        self.cancelled = False


def _contender(name: str, node: Znode) -> Contender:
    try:
        known = str(json.loads(node.data)["name"])
    except (ValueError, KeyError, TypeError):
        known = "?"
    return Contender(known, _kind(name), node.created_ms, node.czxid, name)


def _kind(name: str) -> str:
    return name.split("-")[1]


def _number(name: str) -> int | None:
    """The number at the end of a contender's name; None for a node that is no contender."""
    parts = name.split("-", 2)
    try:
        return int(parts[2])
    except (IndexError, ValueError):
        return None


def _number_or_zero(name: str) -> int:
    return _number(name) or 0
