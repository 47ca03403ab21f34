"""Who is here: members with data, each alive as long as its session.

A name belongs to the newest process that joined with it. A process that was killed and started
again finds the node of its former self, whose session has not ended yet. It does not wait for that
at each restart: it takes the name over, in one transaction. The former owner, should it be alive
after all (two machines with one name), sees that it was displaced, says so, and does not fight.

A request of a process that died may arrive after its successor has joined. Versions do not tell
their nodes apart: each begins with 0. So each name has a *turn* beside the members, a node that
stays: who makes the member's node also writes the turn, and every change of the node is one
transaction with a check of the turn as it was read before. What comes late meets another turn, and
is refused as a whole.
"""

from __future__ import annotations

import json
import logging
import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from holdfast.coordination.facts import Fact, batches
from holdfast.coordination.follow import Follow
from holdfast.coordination.lease import Lease
from holdfast.coordination.mirror import Mirror, Mirrored
from holdfast.coordination.nodes import Op, Rejected, ReplyLost, Znode
from holdfast.coordination.translate import translated
from holdfast.coordination.waits import Deadline, Wake
from holdfast.system.tasks import ENDS_SOON, start_thread
from holdfast.wire.errors import Conflict, Fenced, HoldfastError, SessionLost, Usage
from holdfast.wire.limits import (
    NAME_CHARACTERS_MAX,
    READS_IN_FLIGHT,
    RECONNECT_DELAY_S_MAX,
    VALUE_BYTES_MAX,
)

if TYPE_CHECKING:
    from holdfast.coordination.session import Session

_log = logging.getLogger("holdfast.coordination")


class MemberInfo(NamedTuple):
    """A member as others see it."""

    name: str
    data: Any
    since_ms: int


Members = Mapping[str, MemberInfo]


class _Ours(NamedTuple):
    """Our own node as it was left: in which lease, in whose turn, in which version."""

    lease: Lease
    turn: int
    version: int
    data: bytes


class Member:
    """Our own membership: joined again by itself after a lost session, until `leave`."""

    def __init__(self, session: Session, path: str, name: str, data: Any) -> None:
        self._session = session
        self._path = f"{path}/{name}"
        self._turn_path = f"{path}-turns/{name}"
        self._mark = uuid.uuid4().hex
        self._wake = threading.Event()
        self._lock = threading.Lock()
        self._displaced = threading.Event()
        self._left = False
        self._lease: Lease | None = None
        self._ours: _Ours | None = None  # None: nobody knows without looking
        self._data = _encoded(self._path, data, self._mark)
        self.name = name
        self._join(take_over=True)
        session.on_change(self._wake.set)
        died = partial(session.failed, f"the membership of {name}")
        start_thread(self._run, f"member {name}", died, lasts=ENDS_SOON)

    @property
    def joined(self) -> bool:
        """Whether others see us, as far as we know."""
        lease = self._lease
        return lease is not None and not lease.lost and not self.displaced and not self._left

    @property
    def displaced(self) -> bool:
        """Whether a newer process has joined with our name. That is final."""
        return self._displaced.is_set()

    def wait_displaced(self, timeout_s: float | None = None) -> bool:
        return self._displaced.wait(timeout_s)

    def update(self, data: Any) -> None:
        """Show other data. `Fenced` if displaced; seen at once, or after joining again. That is one
        request, and none if others see it already."""
        encoded = _encoded(self._path, data, self._mark)
        with self._lock:
            self._check()
            self._data = encoded
            if not self._put():
                self._join(take_over=False)
            self._check()

    def leave(self) -> None:
        """Go; others see it at once, or as soon as a server answers."""
        with self._lock:
            if self._left:
                return
            self._left = True
            self._wake.set()
            lease = self._lease
        if lease is not None and not self.displaced:
            self._session.soon(lambda end: self._go(lease, end), lease)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.leave()

    # --- private --------------------------------------------------------------------------------

    def _check(self) -> None:
        if self.displaced or self._left:
            raise Fenced(
                f"{self.name} is not a member any more",
                why="a newer process has its name" if self.displaced else "it left",
                fix="join again, under a name of its own",
            )

    def _go(self, lease: Lease, deadline: Deadline) -> None:
        while True:
            turn = self._turn(deadline, lease)
            found = self._session.nodes.read(self._path, fresh=True, deadline=deadline, lease=lease)
            if found is None or not self._mine(found):
                return
            ops = [
                Op("check", self._turn_path, version=turn),
                Op("delete", self._path, version=found.version),
            ]
            if self._try(ops, deadline, lease) is not None:
                return

    def _mine(self, node: Znode) -> bool:
        return _mark_of(node.data) == self._mark

    def _put(self) -> bool:
        """Our data into our node as we know it; False: it is not so any more, or nobody knows."""
        ours, self._ours = self._ours, None
        if ours is None or ours.lease.lost:
            return False
        if ours.data == self._data:
            self._ours = ours
            return True
        ops = [
            Op("check", self._turn_path, version=ours.turn),
            Op("put", self._path, self._data, ours.version),
        ]
        try:
            done = self._try(ops, self._session.nodes.deadline(None), ours.lease)
        except SessionLost:
            return False  # our node went with it
        if done is None:
            return False
        self._ours = ours._replace(version=done[1].version, data=self._data)
        return True

    def _join(self, *, take_over: bool) -> None:
        """Have our node there with our data. Others' nodes are replaced only on the first join."""
        nodes = self._session.nodes
        lease = self._session.lease()
        deadline = nodes.deadline(None)
        while True:
            turn = self._turn(deadline, lease)
            found = nodes.read(self._path, fresh=True, deadline=deadline, lease=lease)
            ours_now = Op("put", self._turn_path, b"", turn)
            create = Op("create", self._path, self._data, ephemeral=True)
            if found is not None and self._mine(found) and found.owner == lease.session_id:
                if found.data == self._data:
                    self._lease = lease
                    self._ours = _Ours(lease, turn, found.version, found.data)
                    return
                ops = [
                    Op("check", self._turn_path, version=turn),
                    Op("put", self._path, self._data, found.version),
                ]
            elif found is None:
                ops = [ours_now, create]
            elif take_over or self._mine(found):
                ops = [ours_now, Op("delete", self._path, version=found.version), create]
            else:
                self._displaced.set()
                _log.error("%s: a newer process has joined with this name", self._path)
                return
            self._try(ops, deadline, lease)

    def _turn(self, deadline: Deadline, lease: Lease) -> int:
        """Whose turn it is, as a version. Read before the node, so that whoever comes in between
        makes the transaction fail."""
        nodes = self._session.nodes
        while True:
            found = nodes.read(self._turn_path, fresh=True, deadline=deadline, lease=lease)
            if found is not None:
                return found.version
            nodes.ensure(self._turn_path, deadline)

    def _try(self, ops: Sequence[Op], deadline: Deadline, lease: Lease) -> list[Any] | None:
        """What came of each; None: it was not done, or the reply was lost, so look again."""
        nodes = self._session.nodes
        try:
            return nodes.transact(ops, deadline, lease)
        except ReplyLost as error:
            if deadline.passed:
                raise nodes.gone(error) from error
        except Rejected as rejected:
            self._resolve(rejected)
            if deadline.passed:
                raise nodes.gone(rejected) from rejected
        return None

    def _resolve(self, rejected: Rejected) -> None:
        refusal = translated(rejected.cause, f"join as {self._path}")
        if not isinstance(refusal, Conflict):
            raise refusal from rejected
        self._session.nodes.ensure(self._path.rpartition("/")[0])

    def _run(self) -> None:
        try:
            while True:
                self._wake.clear()
                if self._left or self.displaced or self._session.over:
                    return
                try:
                    self._look()
                except SessionLost:
                    continue  # the next look waits for the new session
                except HoldfastError as error:
                    _log.info("member %s goes on after: %s", self._path, error)
                    self._wake.wait(RECONNECT_DELAY_S_MAX)
                    continue
                self._wake.wait()
        finally:
            self._session.forget(self._wake.set)

    def _look(self) -> None:
        """Watch our node, and mend what is not as it should be. It is watched for its end only:
        what it shows is changed by ourselves, and whoever takes the name over ends it first."""
        nodes = self._session.nodes
        there = nodes.watch_end(self._path, self._wake.set)
        found = nodes.read(self._path) if there else None
        lease = self._lease
        if (
            found is None
            or not self._mine(found)
            or lease is None
            or lease.lost
            or found.owner != lease.session_id
        ):
            with self._lock:
                if not self._left:
                    self._join(take_over=False)
            self._wake.set()


class Membership:
    """The members under `path`."""

    def __init__(self, session: Session, path: str) -> None:
        self._session = session
        self._path = path

    def join(self, name: str, data: Any = None) -> Member:
        """Be a member. A member of that name in another session is displaced."""
        if not name or "/" in name or name in (".", "..") or len(name) > NAME_CHARACTERS_MAX:
            raise Usage(
                f"{name!r} cannot be the name of a member",
                why=f"a name has 1 to {NAME_CHARACTERS_MAX} characters and no slash",
                fix="choose another name",
            )
        return Member(self._session, self._path, name, data)

    def members(self) -> Members:
        """Everyone who is here now, by name; an immutable snapshot."""
        nodes = self._session.nodes
        paths = [f"{self._path}/{name}" for name in sorted(nodes.children(self._path, fresh=True))]
        found = [
            _info(node.path, node)
            for some in batches(paths)
            for node in nodes.read_all([(path, None) for path in some])
            if node is not None
        ]
        return MappingProxyType({info.name: info for info in found})

    def seen(self, name: str) -> tuple[bool, ...]:
        """Whether somebody is here under this name now, and whether anybody ever was."""
        paths = (f"{self._path}/{name}", f"{self._path}-turns/{name}")
        return tuple(self._session.nodes.read(path, fresh=True) is not None for path in paths)

    def watch(self, callback: Callable[[Members], None]) -> Follow[Members]:
        """Call `callback(members)` now and after each change, on a thread of its own. Only who is
        new, or has changed, is read."""
        members = Mirrored(f"{self._path}/*", lambda path, found: _info(path, found[path]))
        mirror = Mirror(self._session, members)

        def read(wake: Wake) -> Members:
            mirror.wake = wake
            mirror.refresh()
            infos = sorted(members.values.values(), key=lambda info: info.name)
            return MappingProxyType({info.name: info for info in infos})

        what = f"the members of {self._path}"
        return Follow(self._session, what, read, callback, end=mirror.close)

    def dismiss(self, name: str, is_gone: Callable[[], bool]) -> bool:
        """Remove the node of a member whose process has ended: others need not wait for the end of
        its session. Whether it was there and is removed.

        `is_gone` is asked when the node has been read. Whoever joins under this name from then on
        is not touched, and a member that lives after all joins again by itself.
        """
        nodes = self._session.nodes
        turn = nodes.read(f"{self._path}-turns/{name}", fresh=True)
        found = nodes.read(f"{self._path}/{name}", fresh=True)
        if turn is None or found is None or not is_gone():
            return False
        # Another turn: what the dead one may still have on its way is refused.
        ops = [Op("put", turn.path, b"", turn.version), Op("delete", found.path, version=-1)]
        try:
            nodes.transact(ops, nodes.deadline(None))
        except ReplyLost:
            return False  # who asks again finds it there, or gone
        except Rejected as rejected:
            refusal = translated(rejected.cause, f"dismiss {found.path}")
            if not isinstance(refusal, Conflict):
                raise refusal from rejected
            return False
        return True

    def tidy(self, kept: int) -> None:
        """Forget the turns of names that no member has, down to `kept` of them. Only where a name
        is never used again: a late request is then refused because its turn is missing."""
        nodes, turns = self._session.nodes, f"{self._path}-turns"
        names = nodes.children(turns)
        spare = names[: max(0, min(len(names) - kept, READS_IN_FLIGHT))]
        if not spare:
            return
        found = nodes.read_all([(f"{turns}/{name}", None) for name in spare])
        here = set(nodes.children(self._path, fresh=True))  # after the turns: who joined since?
        for node in found:
            if node is not None and node.path.rpartition("/")[2] not in here:
                with suppress(Conflict):  # somebody joined with it after all
                    nodes.delete(node.path, node.version)


def _info(path: str, shown: Fact | Znode) -> MemberInfo:
    return MemberInfo(path.rpartition("/")[2], _data_of(shown.data), shown.created_ms)


def _encoded(path: str, data: Any, mark: str) -> bytes:
    try:
        encoded = json.dumps({"mark": mark, "data": data}).encode()
    except (TypeError, ValueError) as error:
        raise Usage(
            f"the data of member {path} is not JSON", why=str(error), fix="use dicts, lists, text …"
        ) from error
    if len(encoded) > VALUE_BYTES_MAX:
        raise Usage(
            f"the data of member {path} has {len(encoded)} bytes",
            why=f"at most {VALUE_BYTES_MAX} fit into the coordination plane",
            fix="show less, or the name of a blob",
        )
    return encoded


def _mark_of(data: bytes) -> str | None:
    try:
        return str(json.loads(data)["mark"])
    except (ValueError, KeyError, TypeError):
        return None


def _data_of(data: bytes) -> Any:
    try:
        return json.loads(data)["data"]
    except (ValueError, KeyError, TypeError):
        return None
