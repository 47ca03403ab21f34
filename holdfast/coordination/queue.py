"""A bounded queue: first in, first out, each item processed at least once.

`<path>/state` holds the capacity and the size, and is written in the same transaction as each item
that comes or goes: so the bound holds under any number of producers. An item stays in its place
until it is acknowledged. A claim is an ephemeral node beside it, so a dead consumer's item is free
again; and taking an item raises the item's version, so that a consumer whose claim is over cannot
acknowledge what somebody else works on.
"""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, Self

from holdfast.coordination import stamps
from holdfast.coordination.lease import Lease
from holdfast.coordination.nodes import Op, Rejected, ReplyLost
from holdfast.coordination.stamps import Stamped, new_stamp
from holdfast.coordination.translate import translated
from holdfast.coordination.waits import Deadline, Wake
from holdfast.wire.errors import Conflict, Fenced, Full, RetryError, SessionLost, TimedOut, Usage
from holdfast.wire.limits import RECONNECT_DELAY_S_MAX

if TYPE_CHECKING:
    from holdfast.coordination.session import Session
from typing import Final

# An item of a queue is written again with each delivery; larger things belong into a blob.
QUEUE_ITEM_BYTES_MAX: Final = 64 * 1024
# All names of a queue's items come in one frame, 44 bytes each.
QUEUE_CAPACITY_MAX: Final = 10_000

_BUSY_S = 0.01  # the longest pause before a lost race is run again; grows with the races lost


class _QueueState(NamedTuple):
    stamped: Stamped
    version: int

    @property
    def size(self) -> int:
        return int(self.stamped.value["size"])

    @property
    def capacity(self) -> int:
        return int(self.stamped.value["capacity"])


class Item:
    """An item that this process works on. In a `with`: acknowledged, or released on an error."""

    def __init__(self, queue: Queue, name: str, value: bytes, version: int, lease: Lease) -> None:
        self._queue = queue
        self._name = name
        self._version = version
        self._lease = lease
        self._done = False
        self.value = value

    @property
    def deliveries(self) -> int:
        """How often it was taken, this time included. More than once: a consumer failed before."""
        return self._version

    @property
    def lost(self) -> bool:
        """Whether the claim is known to be over: somebody else gets the item."""
        return self._lease.lost

    def ack(self) -> None:
        """It is done: remove it for good. `Fenced` if the claim was over; then it is not done."""
        if self._done:
            raise Usage("this item was acknowledged or released already", fix="take the next one")
        self._queue.finish(self._name, self._version, self._lease)
        self._done = True

    def release(self) -> None:
        """Give it back to its place, for anyone."""
        if not self._done:
            self._done = True
            self._queue.give_back(self._name, self._version, self._lease)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        if kind is not None:
            self.release()
        elif not self._done:
            self.ack()


class Queue:
    """The queue under `path`, for at most `capacity` items, those being worked on included."""

    def __init__(self, session: Session, path: str, capacity: int) -> None:
        if not 1 <= capacity <= QUEUE_CAPACITY_MAX:
            raise Usage(
                f"a queue for {capacity} items",
                why="all its names must fit into one frame",
                fix=f"give a capacity of 1 to {QUEUE_CAPACITY_MAX}",
            )
        self._session = session
        self._path = path
        self._state_path = f"{path}/state"
        self._items = f"{path}/items"
        self._claims = f"{path}/claims"
        self._create(capacity)

    def put(self, value: bytes, timeout_s: float | None = 0.0) -> None:
        """Append an item. `Full` if there is no room within `timeout_s`; None waits for ever."""
        if len(value) > QUEUE_ITEM_BYTES_MAX:
            raise Usage(
                f"an item of {len(value)} bytes",
                why=f"at most {QUEUE_ITEM_BYTES_MAX} fit into a queue",
                fix="put it into a blob, and its name into the queue",
            )
        deadline, event = Deadline(timeout_s), threading.Event()
        try:
            lost_races = 0
            while True:
                event.clear()
                state = self._state(event.set)
                if state.size < state.capacity:
                    stamp = new_stamp()
                    op = Op("create", f"{self._items}/{stamp}-", value, sequence=True)
                    if self._change(state, stamp, 1, [op], None, partial(self._arrived, stamp)):
                        return
                    lost_races += 1
                    _pause(lost_races)
                elif deadline.passed:
                    raise Full(
                        f"the queue {self._path} has no room",
                        why=f"it holds {state.size} of {state.capacity} items",
                        fix="wait with a time-out, or start more consumers",
                    )
                else:
                    event.wait(deadline.left_s())
        finally:
            self._session.forget(event.set)

    def take(self, timeout_s: float | None = None) -> Item:
        """The oldest item that nobody works on. `TimedOut` if there is none within `timeout_s`."""
        deadline, event = Deadline(timeout_s), threading.Event()
        self._session.on_change(event.set)
        try:
            while True:
                event.clear()
                try:
                    names = self._free(event.set)
                    item = self._claim(names[0]) if names else None
                except (RetryError, SessionLost):
                    if deadline.passed or self._session.over:
                        raise
                    event.wait(RECONNECT_DELAY_S_MAX)
                    continue
                if item is not None:
                    return item
                if names:
                    continue  # somebody else was faster
                if deadline.passed:
                    raise TimedOut(f"no item came into {self._path} in time", fix="wait longer")
                event.wait(deadline.left_s())
        finally:
            self._session.forget(event.set)

    def __len__(self) -> int:
        """Items in the queue, those being worked on included."""
        return self._state(None).size

    # --- for items ------------------------------------------------------------------------------

    def finish(self, name: str, version: int, lease: Lease) -> None:
        """Remove an item that was taken as `version` by `lease`."""
        stamp = new_stamp()
        ops = [Op("delete", f"{self._items}/{name}", version=version), self._unclaim(name)]
        lost_races = 0
        while not self._change(
            self._state(None), stamp, -1, ops, lease, partial(self._finished, name, version, lease)
        ):
            lost_races += 1
            _pause(lost_races)

    def give_back(self, name: str, version: int, lease: Lease) -> None:
        """End the claim of `lease` on an item that it took as `version`."""
        nodes = self._session.nodes
        ops = [Op("check", f"{self._items}/{name}", version=version), self._unclaim(name)]

        def chore(deadline: Deadline) -> None:
            while True:
                try:
                    nodes.transact(ops, deadline, lease)
                except ReplyLost as error:
                    if deadline.passed:
                        raise nodes.gone(error) from error
                except Rejected:
                    return  # the claim is over already
                else:
                    return

        self._session.soon(chore, lease)

    # --- private --------------------------------------------------------------------------------

    def _create(self, capacity: int) -> None:
        nodes = self._session.nodes
        nodes.ensure(self._items)
        nodes.ensure(self._claims)
        first = Stamped({"capacity": capacity, "size": 0}, ()).encoded(self._state_path)
        if nodes.read(self._state_path, fresh=True) is None:
            with contextlib.suppress(Conflict):  # somebody else's; its capacity is compared below
                nodes.create(self._state_path, first)
        known = self._state(None).capacity
        if known != capacity:
            raise Conflict(
                f"the queue {self._path} has a capacity of {known}, not {capacity}",
                fix=f"use {known}, or another path",
            )

    def _state(self, wake: Wake | None) -> _QueueState:
        node = self._session.nodes.read(self._state_path, wake, fresh=True)
        if node is None:
            raise Conflict(
                f"the queue {self._path} was removed", fix="make it again: Queue(session, path, n)"
            )
        return _QueueState(stamps.decoded(self._state_path, node.data), node.version)

    def _unclaim(self, name: str) -> Op:
        return Op("delete", f"{self._claims}/{name}")

    def _change(
        self,
        state: _QueueState,
        stamp: str,
        by: int,
        ops: Sequence[Op],
        lease: Lease | None,
        left_a_trace: Callable[[], bool | None],
    ) -> bool:
        """The size changes by `by` together with `ops`. False if another change came first.

        `left_a_trace` tells by the items whether it was done, when the marks cannot; None: nor can
        they.
        """
        nodes = self._session.nodes
        deadline = nodes.deadline(None)
        value = {"capacity": state.capacity, "size": state.size + by}
        data = state.stamped.written(value, stamp).encoded(self._state_path)
        counted = Op("put", self._state_path, data, version=state.version)
        lost: Exception | None = None
        while True:
            try:
                nodes.transact([counted, *ops], deadline, lease)
            except (ReplyLost, SessionLost) as error:
                lost = error
                done = self._happened(state, stamp, deadline, lost, left_a_trace)
                if done is not None:
                    return done
                if isinstance(error, SessionLost):
                    raise self._fenced() from error
            except Rejected as rejected:
                refusal = translated(rejected.cause, f"change the queue {self._path}")
                if not isinstance(refusal, Conflict):
                    raise refusal from rejected
                if rejected.index > 0:
                    raise self._fenced() from rejected
                # Another change was first: perhaps an attempt of ours whose reply was lost.
                return lost is not None and bool(
                    self._happened(state, stamp, deadline, lost, left_a_trace)
                )
            else:
                return True

    def _happened(
        self,
        state: _QueueState,
        stamp: str,
        deadline: Deadline,
        error: Exception,
        left_a_trace: Callable[[], bool | None],
    ) -> bool | None:
        """Whether the change whose reply was lost was done; None: no, and it may be tried again."""
        if deadline.passed:
            raise self._session.nodes.gone(error)
        present = self._state(None)
        if present.version == state.version:
            return None
        done = stamps.happened(state.version, stamp, present.version, present.stamped)
        if done is None:
            done = left_a_trace()
        if done is None:
            raise self._session.nodes.gone(error)
        return done

    def _arrived(self, stamp: str) -> bool | None:
        """Whether the item with our mark is there. If not, it may have come and gone."""
        return True if self._session.nodes.find_prefixed(self._items, f"{stamp}-") else None

    def _finished(self, name: str, version: int, lease: Lease) -> bool | None:
        """Whether our item is gone: while our claim lives, only we can remove it."""
        found = self._session.nodes.read(f"{self._items}/{name}", fresh=True)
        if found is not None:
            return False
        return None if lease.lost else True

    def _fenced(self) -> Fenced:
        return Fenced(
            f"the claim on an item of {self._path} is over",
            why="the session that took it ended, so the item is free for others",
            fix="take the next item; what was done for this one may be done again",
        )

    def _free(self, wake: Wake) -> list[str]:
        """Items that nobody works on, oldest first."""
        nodes = self._session.nodes
        names = nodes.children(self._items, wake, fresh=True)
        claimed = set(nodes.children(self._claims, wake))
        return sorted((name for name in names if name not in claimed), key=_number)

    def _claim(self, name: str) -> Item | None:
        nodes = self._session.nodes
        lease = self._session.lease()
        found = nodes.read(f"{self._items}/{name}", lease=lease)
        if found is None:
            return None
        mark = new_stamp().encode()
        claim = f"{self._claims}/{name}"
        deadline = nodes.deadline(None)
        ops = [
            Op("put", found.path, found.data, version=found.version),
            Op("create", claim, mark, ephemeral=True),
        ]
        try:
            nodes.transact(ops, deadline, lease)
        except ReplyLost as error:
            if deadline.passed:
                raise nodes.gone(error) from error
            made = nodes.read(claim, fresh=True, lease=lease)
            if made is None or made.data != mark:
                return None
        except Rejected:
            return None
        return Item(self, name, found.data, found.version + 1, lease)


def _number(name: str) -> int:
    return int(name.rpartition("-")[2])


def _pause(lost_races: int) -> None:
    """Let others pass: the more races we lost, the longer."""
    time.sleep(random.uniform(0, min(_BUSY_S * lost_races, _BUSY_S * 10)))  # noqa: S311
