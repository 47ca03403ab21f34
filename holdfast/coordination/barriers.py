"""Barriers. Nobody polls: whoever waits is woken by a watch."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING

from kazoo import exceptions as kz

from holdfast.coordination.contenders import own_name
from holdfast.coordination.lease import Lease
from holdfast.coordination.nodes import Op, Rejected, ReplyLost
from holdfast.coordination.waits import Deadline, Wake
from holdfast.wire.errors import RetryError, TimedOut, Usage
from holdfast.wire.limits import RECONNECT_DELAY_S_MAX

if TYPE_CHECKING:
    from holdfast.coordination.session import Session


def _wait(
    session: Session,
    clear: Callable[[Wake], bool],
    deadline: Deadline,
    what: str,
    lease: Lease | None = None,
) -> None:
    """Wait until `clear(wake)`, which sets a watch for its own change. `TimedOut` otherwise."""
    event = threading.Event()
    session.on_change(event.set)
    try:
        while True:
            event.clear()
            try:
                if clear(event.set):
                    return
            except RetryError:
                if deadline.passed:
                    raise
                event.wait(RECONNECT_DELAY_S_MAX)
                continue
            if lease is not None:
                lease.check()
            if deadline.passed:
                raise TimedOut(f"{what} did not open in time", fix="wait longer")
            event.wait(deadline.left_s())
    finally:
        session.forget(event.set)


class Barrier:
    """A gate that anyone may close and open. It stays as it is when its maker dies."""

    def __init__(self, session: Session, path: str) -> None:
        self._session = session
        self.path = path

    def close(self) -> None:
        """Let everyone wait who comes from now on."""
        self._session.nodes.ensure(self.path)

    def open(self) -> None:
        """Let everyone go on."""
        self._session.nodes.delete(self.path)

    def wait(self, timeout_s: float | None = None) -> None:
        """Wait until it is open."""
        nodes = self._session.nodes
        _wait(
            self._session,
            lambda wake: nodes.read(self.path, wake, fresh=True) is None,
            Deadline(timeout_s),
            f"the barrier {self.path}",
        )


class DoubleBarrier:
    """`count` members begin together, and end together.

    `<path>/round` is written when a round begins, so its version counts the rounds. A member's node
    names the round it came for. So a member that comes back early waits for the next round, and a
    slow one sees that its round has begun, even if the others have left already. A member that dies
    before the round begins does not count; one that dies later is not waited for.
    """

    def __init__(self, session: Session, path: str, count: int, name: str | None = None) -> None:
        if count < 1:
            raise Usage(f"a barrier for {count} members", fix="give a count of 1 or more")
        self._session = session
        self._round_path = f"{path}/round"
        self._members = f"{path}/members"
        self._what = f"the barrier {path}"
        self._count = count
        self._name = (name or own_name()).encode()
        self._joined: tuple[str, int, Lease] | None = None

    def enter(self, timeout_s: float | None = None) -> None:
        """Wait until `count` members are here. On any error this member is not."""
        if self._joined is not None:
            raise Usage(f"this member is in {self._what} already", fix="leave it first")
        deadline = Deadline(timeout_s)
        lease = self._session.lease()
        mark = uuid.uuid4().hex
        try:
            number = self._join(mark, lease)
            if len(self._of_round(number)) >= self._count:
                self._begin(number)
            self._await_round(mark, number, deadline, lease)
        except BaseException:
            self._go(mark, lease)
            raise
        self._joined = (mark, number, lease)

    def leave(self, timeout_s: float | None = None) -> None:
        """Wait until all members of the round have left, or are dead."""
        if self._joined is None:
            raise Usage(f"this member is not in {self._what}", fix="enter it first")
        mark, number, lease = self._joined
        self._joined = None
        self._go(mark, lease)
        _wait(
            self._session, lambda wake: self._empty(number, wake), Deadline(timeout_s), self._what
        )

    # --- private --------------------------------------------------------------------------------

    def _node(self, number: int, mark: str) -> str:
        return f"{self._members}/{mark}-{number}"

    def _round(self, wake: Wake | None) -> int:
        node = self._session.nodes.read(self._round_path, wake, fresh=True)
        return -1 if node is None else node.version

    def _of_round(self, number: int) -> list[str]:
        names = self._session.nodes.children(self._members, fresh=True)
        return sorted(name for name in names if name.endswith(f"-{number}"))

    def _join(self, mark: str, lease: Lease) -> int:
        """Stand in the round that has not begun yet; its number."""
        nodes = self._session.nodes
        nodes.ensure(self._members)
        nodes.ensure(self._round_path)
        deadline = nodes.deadline(None)
        lost = False
        while True:
            number = self._round(None)
            path = self._node(number, mark)
            ops = [
                Op("check", self._round_path, version=number),
                Op("create", path, self._name, ephemeral=True),
            ]
            try:
                nodes.transact(ops, deadline, lease)
            except ReplyLost as error:
                lost = True
                if deadline.passed:
                    raise nodes.gone(error) from error
            except Rejected:
                pass  # that round has begun: without us, unless a reply was lost
            else:
                return number
            if lost and nodes.read(path, fresh=True, lease=lease) is not None:
                return number

    def _await_round(self, mark: str, number: int, deadline: Deadline, lease: Lease) -> None:
        try:
            _wait(
                self._session, lambda wake: self._round(wake) > number, deadline, self._what, lease
            )
        except TimedOut:
            if self._withdraw(mark, number):
                raise

    def _begin(self, number: int) -> None:
        """Count the round up. Somebody else may have done it: then it is done as well."""
        nodes = self._session.nodes
        deadline = nodes.deadline(None)
        while self._round(None) == number:
            try:
                nodes.transact([Op("put", self._round_path, b"", version=number)], deadline)
            except ReplyLost as error:
                if deadline.passed:
                    raise nodes.gone(error) from error
            except Rejected:
                return
            else:
                return

    def _withdraw(self, mark: str, number: int) -> bool:
        """Leave a round that has not begun; False if it has begun after all."""
        nodes = self._session.nodes
        deadline = nodes.deadline(None)
        path = self._node(number, mark)
        ops = [Op("check", self._round_path, version=number), Op("delete", path)]
        lost = False
        while True:
            try:
                nodes.transact(ops, deadline)
            except ReplyLost as error:
                lost = True
                if deadline.passed:
                    raise nodes.gone(error) from error
            except Rejected as rejected:
                if isinstance(rejected.cause, kz.NoNodeError):
                    return True
                # It has begun: without us, if the attempt whose reply was lost took us out.
                return lost and nodes.read(path, fresh=True) is None
            else:
                return True

    def _go(self, mark: str, lease: Lease) -> None:
        nodes, members = self._session.nodes, self._members
        self._session.soon(lambda end: nodes.delete_prefixed(members, mark, lease, end), lease)

    def _empty(self, number: int, wake: Wake) -> bool:
        """Whether all of the round are gone; else watches one of them: most leavers wake nobody."""
        names = self._of_round(number)
        while names:
            if self._session.nodes.watch_end(f"{self._members}/{names[-1]}", wake):
                return False
            names.pop()
        return True
