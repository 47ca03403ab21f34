"""Watched, versioned configuration with compare-and-set."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from holdfast.coordination import stamps
from holdfast.coordination.follow import Follow
from holdfast.coordination.nodes import Op, Rejected, ReplyLost
from holdfast.coordination.stamps import EMPTY, Stamped, new_stamp
from holdfast.coordination.transaction import Transaction
from holdfast.coordination.translate import translated
from holdfast.coordination.waits import Deadline, Wake
from holdfast.wire.errors import Conflict
from holdfast.wire.limits import UPDATE_TRIES_MAX

if TYPE_CHECKING:
    from holdfast.coordination.session import Session

ABSENT = -1
"""The version of a configuration that does not exist (yet)."""


class Versioned(NamedTuple):
    """A value and its version; (None, ABSENT) if there is none."""

    value: Any
    version: int


class Config:
    """A value (anything that JSON can say) under `path`. Each change adds one to its version."""

    def __init__(self, session: Session, path: str) -> None:
        self._session = session
        self.path = path

    def get(self) -> Versioned:
        """The value as the ensemble knows it now."""
        stamped, version = self._read(None)
        return Versioned(stamped.value, version)

    def put(self, value: Any, expect: int | None = None) -> int:
        """Write it, and give its version. With `expect`, only upon that version: `Conflict`.

        `expect=ABSENT` makes it, and fails if it is there.
        """
        tries = 1 if expect is not None else UPDATE_TRIES_MAX
        for _ in range(tries):
            before, version = self._read(None)
            if expect is not None and version != expect:
                raise self._conflict(expect, version)
            written = self._write(before, version, value)
            if written is not None:
                return written
        raise self._conflict(expect, self._read(None)[1])

    def update(self, change: Callable[[Any], Any]) -> Versioned:
        """Write `change(value)`, as often as it takes. `change` may be called several times."""
        for _ in range(UPDATE_TRIES_MAX):
            before, version = self._read(None)
            value = change(before.value)
            written = self._write(before, version, value)
            if written is not None:
                return Versioned(value, written)
        raise Conflict(
            f"{self.path} was changed by others {UPDATE_TRIES_MAX} times in a row",
            fix="let fewer writers change it, or less often",
        )

    def put_in(self, transaction: Transaction, value: Any, expect: int) -> None:
        """Write it as a part of a transaction, upon version `expect` (or ABSENT): `Conflict`."""
        before, version = self._read(None)
        if version != expect:
            raise self._conflict(expect, version)
        data = before.written(value, new_stamp()).encoded(self.path)
        if expect == ABSENT:
            transaction.create(self.path, data)
        else:
            transaction.replace(self.path, data, expect)

    def watch(self, callback: Callable[[Versioned], None]) -> Follow[Versioned]:
        """Call `callback(versioned)` now and after each change, on a thread of its own."""

        def read(wake: Wake) -> Versioned:
            stamped, version = self._read(wake)
            return Versioned(stamped.value, version)

        return Follow(self._session, self.path, read, callback)

    # --- private --------------------------------------------------------------------------------

    def _read(self, wake: Wake | None) -> tuple[Stamped, int]:
        node = self._session.nodes.read(self.path, wake, fresh=True)
        if node is None:
            return EMPTY, ABSENT
        return stamps.decoded(self.path, node.data), node.version

    def _write(self, before: Stamped, version: int, value: Any) -> int | None:
        """One compare-and-set, its lost replies resolved. None if somebody else was first."""
        nodes = self._session.nodes
        deadline = nodes.deadline(None)
        stamp = new_stamp()
        data = before.written(value, stamp).encoded(self.path)
        if version == ABSENT:
            try:
                nodes.create(self.path, data, deadline=deadline)
            except Conflict:
                # Ours, if it carries our mark: made by an attempt whose reply was lost.
                return 0 if stamp in self._read(None)[0].stamps else None
            return 0
        lost: ReplyLost | None = None
        while True:
            try:
                nodes.transact([Op("put", self.path, data, version)], deadline)
            except ReplyLost as error:
                lost = error
                done = self._done(version, stamp, deadline, lost)
                if done is not None:
                    return version + 1 if done else None
            except Rejected as rejected:
                refusal = translated(rejected.cause, f"write {self.path}")
                if not isinstance(refusal, Conflict):
                    raise refusal from rejected
                # Perhaps with ourselves: an attempt whose reply was lost.
                ours = lost is not None and self._done(version, stamp, deadline, lost)
                return version + 1 if ours else None
            else:
                return version + 1

    def _done(self, version: int, stamp: str, deadline: Deadline, error: ReplyLost) -> bool | None:
        """Whether a write whose reply was lost was done; None if it may be tried again."""
        nodes = self._session.nodes
        if deadline.passed:
            raise nodes.gone(error)
        present, now = self._read(None)
        if now == version:
            return None
        answer = stamps.happened(version, stamp, now, present)
        if answer is None:
            raise nodes.gone(error)
        return answer

    def _conflict(self, expect: int | None, version: int) -> Conflict:
        return Conflict(
            f"{self.path} has version {version}, not {expect}",
            why="somebody else changed it first",
            fix="get it again, and decide again",
        )
