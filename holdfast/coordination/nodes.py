"""Nodes as the recipes need them: bounded in time, with lost replies found again.

The only place that calls kazoo's operations. A request is sent only while a server is
connected (kazoo would queue it otherwise, and do it long after its caller gave up). When the
connection breaks before the reply, whether it was done is found out, not guessed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple, Protocol

from kazoo import exceptions as kz
from kazoo.client import KazooClient
from kazoo.protocol.states import Callback
from kazoo.security import ACL

from holdfast.coordination.access import Access
from holdfast.coordination.kazoo_client import entries
from holdfast.coordination.lease import Lease
from holdfast.coordination.together import Behind, Together
from holdfast.coordination.translate import REPLY_LOST, translated
from holdfast.coordination.waits import Deadline, Wake, WatchRegistry
from holdfast.wire.errors import Conflict, SessionLost, Unavailable

__all__ = ["Nodes", "Op", "Rejected", "ReplyLost", "Znode", "parent_of"]

Send = Callable[[], Any]


class Znode(NamedTuple):
    """A node as it was read. `owner` is the session of an ephemeral node, else 0; `zxid` is of the
    transaction that wrote its data."""

    path: str
    data: bytes
    version: int
    czxid: int
    owner: int
    created_ms: int
    zxid: int


class Op(NamedTuple):
    """One operation of a transaction. A version of -1 fits any."""

    kind: Literal["create", "put", "delete", "check"]
    path: str
    data: bytes = b""
    version: int = -1
    ephemeral: bool = False
    sequence: bool = False


class ReplyLost(Exception):
    """The request was sent, and whether it was done is not known."""


class Rejected(Exception):
    """The transaction was not done, because of its operation number `index`."""

    def __init__(self, index: int, cause: Exception) -> None:
        super().__init__(f"operation {index}: {cause!r}")
        self.index = index
        self.cause = cause


def parent_of(path: str) -> str:
    return path.rpartition("/")[0] or "/"


def znode_of(path: str, data: bytes | None, stat: Any) -> Znode:
    owner, created_ms = stat.ephemeralOwner, stat.ctime
    return Znode(path, data or b"", stat.version, stat.czxid, owner, created_ms, stat.mzxid)


class Nodes:
    """Reads and writes of one session. `lease`, where given, must still hold when it is done."""

    def __init__(
        self, gate: Gate, client: KazooClient, root: str, access: Access | None = None
    ) -> None:
        self._gate = gate
        self._access = access
        self.client = client
        self._root = root
        self._watches = WatchRegistry()
        self.fences = Fences(gate, client, root)

    def forget(self, *wakes: Wake) -> None:
        self._watches.forget(*wakes)

    @property
    def waiting(self) -> int:
        """How many wakes hang on watches now."""
        return len(self._watches)

    def full(self, path: str) -> str:
        """A path of ours as the servers know it."""
        return (self._root + path).rstrip("/") or "/"

    def deadline(self, deadline: Deadline | None) -> Deadline:
        """The end of one operation within a longer wait."""
        return (deadline or Deadline(None)).within(self._gate.operation_timeout_s)

    # --- one attempt, many attempts ---------------------------------------------------------

    def attempt(
        self, send: Send, deadline: Deadline, lease: Lease | None = None, *, writes: bool = True
    ) -> Any:
        """Send once. kazoo's own exceptions pass, for the caller to translate."""
        self._gate.await_connected(deadline, lease)
        answer = send()
        try:
            return answer.get(timeout=deadline.left_s())
        except REPLY_LOST as error:
            if writes:
                self.fences.note_lost_reply()
            if lease is not None and isinstance(error, kz.SessionExpiredError):
                lease.end("the servers ended the session")
                lease.check()
            raise ReplyLost from error

    def persist(
        self,
        send: Send,
        doing: str,
        deadline: Deadline | None = None,
        lease: Lease | None = None,
        passing: tuple[type[Exception], ...] = (),
        *,
        writes: bool = False,
    ) -> Any:
        """Send what may be done twice, until it is answered. `passing` exceptions pass."""
        deadline = self.deadline(deadline)
        while True:
            try:
                return self.attempt(send, deadline, lease, writes=writes)
            except ReplyLost as error:
                if deadline.passed:
                    raise self._gate.unavailable() from error
            except passing:
                raise
            except kz.KazooException as error:
                raise translated(error, doing) from error

    # --- reading ------------------------------------------------------------------------------

    def read(
        self,
        path: str,
        wake: Wake | None = None,
        *,
        fresh: bool = False,
        deadline: Deadline | None = None,
        lease: Lease | None = None,
    ) -> Znode | None:
        """The node, or None if there is none. `wake` is called when that changes.

        `fresh`: no older than the call, as docs/guarantees.md says it; after a write whose reply
        was lost it shows whether that was done. Else it is what one server remembers.
        """
        full = self._root + path
        doing, missing = f"read {path}", (kz.NoNodeError,)
        with self._watches.placing(("data", full), wake) as watch:

            def get() -> Any:
                return self.client.get_async(full, watch=watch)

            ask = self.fences.before(full, get) if fresh else get
            while True:
                try:
                    data, stat = self.persist(ask, doing, deadline, lease, missing)
                except kz.NoNodeError:
                    if wake is None or not self.persist(
                        lambda: self.client.exists_async(full, watch=watch), doing, deadline, lease
                    ):
                        return None
                else:
                    return znode_of(path, data, stat)

    def read_all(
        self, wanted: Sequence[tuple[str, Wake | None]], *, fresh: bool = False
    ) -> list[Znode | None]:
        """Several nodes in one round trip. Nobody is woken for one that is not there."""
        answers = self._ask_all("data", self.client.get_async, wanted, fresh=fresh)
        found = zip(wanted, answers, strict=True)
        return [znode_of(path, *answer) if answer else None for (path, _), answer in found]

    def await_all(self, wanted: Sequence[tuple[str, Wake]]) -> list[bool]:
        """Which of several nodes are there, in one round trip. Each wake is called when that
        changes."""
        exists = self.client.exists_async
        return [bool(stat) for stat in self._ask_all("data", exists, wanted, awaits=True)]

    def children_all(
        self, wanted: Sequence[tuple[str, Wake | None]], *, fresh: bool = False
    ) -> list[list[str]]:
        """The names of the children of several nodes, as `children` does, in one round trip."""
        names = self._ask_all("children", self.client.get_children_async, wanted, fresh=fresh)
        for at, (path, wake) in enumerate(wanted):
            if names[at] is None and wake is not None and self.read(path, wake) is not None:
                names[at] = self.children(path, wake)
        return [found or [] for found in names]

    def _ask_all(
        self,
        kind: str,
        ask: Callable[..., Any],
        wanted: Sequence[tuple[str, Wake | None]],
        *,
        fresh: bool = False,
        awaits: bool = False,
    ) -> list[Any]:
        """The answers, None for a node that is not there. Only a question that `awaits` it places
        its watch then."""
        full = [self._root + path for path, _ in wanted]
        add, wakes = self._watches.add, [wake for _, wake in wanted]
        watches = [add((kind, at), wake) for at, wake in zip(full, wakes, strict=True)]
        watched = list(zip(full, watches, strict=True))
        answers: list[Any] = [None] * len(wanted)
        placed = [False] * len(wanted)

        def send() -> Together:
            return Together([ask(at, watch=watch) for at, watch in watched])

        try:
            if wanted:
                behind = self.fences.before(full[0], send) if fresh else send
                answers = self.persist(behind, f"read {len(wanted)} nodes")
                placed = [awaits or answer is not None for answer in answers]
        finally:
            for watch, wake, there in zip(watches, wakes, placed, strict=True):
                self._watches.settle(watch, wake, placed=there)
        return answers

    def children(
        self,
        path: str,
        wake: Wake | None = None,
        *,
        fresh: bool = False,
        deadline: Deadline | None = None,
        lease: Lease | None = None,
    ) -> list[str]:
        """Names of the children; none if there is no such node. `wake`, `fresh` as for `read`."""
        full, names = self._root + path, self.client.get_children_async
        doing, missing = f"list {path}", (kz.NoNodeError,)
        while True:
            try:
                with self._watches.placing(("children", full), wake) as watch:
                    get = partial(names, full, watch=watch)
                    ask = self.fences.before(full, get) if fresh else get
                    found: list[str] = self.persist(ask, doing, deadline, lease, missing)
            except kz.NoNodeError:
                if wake is None or self.read(path, wake, deadline=deadline, lease=lease) is None:
                    return []
            else:
                return found

    def watch_end(
        self,
        path: str,
        wake: Wake,
        *,
        deadline: Deadline | None = None,
        lease: Lease | None = None,
    ) -> bool:
        """Whether the childless node is there; if so, `wake` is called when it is removed.

        A watch on its children: changes of its data do not fire it.
        """
        full = self._root + path
        get, doing, missing = self.client.get_children_async, f"watch {path}", (kz.NoNodeError,)
        try:
            with self._watches.placing(("children", full), wake) as watch:
                self.persist(lambda: get(full, watch=watch), doing, deadline, lease, missing)
        except kz.NoNodeError:
            return False
        return True

    def settled(self, deadline: Deadline | None = None) -> int:
        """A zxid, no older than the call: of every change up to it that was watched, the wakes
        have been called.

        A server sends a watch's event before any reply that knows of the change. kazoo hands events
        to a thread of its own, in order: so what it was given before has been done once that
        thread comes to what is given to it now.
        """
        deadline = self.deadline(deadline)
        top = self._root or "/"
        ask = self.fences.before(top, lambda: self.client.exists_async(top))
        self.persist(ask, "catch up with the servers", deadline)
        zxid: int = self.client.last_zxid
        told = threading.Event()
        self.client.handler.dispatch_callback(Callback("watch", told.set, ()))
        if not told.wait(deadline.left_s()):
            raise self._gate.unavailable()
        return zxid

    # --- writing ------------------------------------------------------------------------------

    def ensure(self, path: str, deadline: Deadline | None = None) -> None:
        """Make the node, and those above it, where missing."""
        deadline = self.deadline(deadline)
        full = self.full(path).rstrip("/")
        doing, passing = f"make {path}", (kz.NodeExistsError, kz.NoNodeError)
        missing = [full] if full else []
        while missing:
            here = missing[-1]
            find = partial(self.client.exists_async, here)
            make = partial(self.client.create_async, here, b"", acl=self._acl(here))
            try:
                if not self.persist(find, doing, deadline):
                    self.persist(make, doing, deadline, None, passing, writes=True)
            except kz.NoNodeError:
                missing.append(parent_of(here))
                continue
            except kz.NodeExistsError:
                pass  # somebody else made it
            missing.pop()

    def create(
        self,
        path: str,
        data: bytes,
        *,
        lease: Lease | None = None,
        deadline: Deadline | None = None,
    ) -> Znode:
        """Make a node; ephemeral if a `lease` is given. `Conflict` if it is somebody else's.

        After a lost reply the node is known again by its content, and by its owner if ephemeral:
        give it content that nobody else writes where that matters.
        """
        deadline = self.deadline(deadline)
        unsure = False
        while True:
            try:
                made = self._create(path, data, False, lease, deadline)
            except ReplyLost as error:
                unsure = True
                if deadline.passed:
                    raise self._gate.unavailable() from error
            except kz.NodeExistsError as error:
                found = self.read(path, fresh=True, deadline=deadline, lease=lease)
                owner = 0 if lease is None else lease.session_id
                if unsure and found and (found.data, found.owner) == (data, owner):
                    return found
                if found is not None:
                    raise Conflict(f"could not make {path}", why="it exists already") from error
            else:
                return self._owned(made, lease)

    def create_sequential(
        self, parent: str, prefix: str, data: bytes, lease: Lease, deadline: Deadline | None = None
    ) -> Znode:
        """Make an ephemeral child with the next number after `prefix`, which only we use."""
        deadline = self.deadline(deadline)
        while True:
            try:
                made = self._create(f"{parent}/{prefix}", data, True, lease, deadline)
            except ReplyLost as error:
                if deadline.passed:
                    raise self._gate.unavailable() from error
                found = self.find_prefixed(parent, prefix, lease, deadline)
                if found is not None:
                    return found
            else:
                return self._owned(made, lease)

    def find_prefixed(
        self, parent: str, prefix: str, lease: Lease | None = None, deadline: Deadline | None = None
    ) -> Znode | None:
        """The child of `parent` that begins with `prefix`, as the ensemble knows it now."""
        for name in self.children(parent, fresh=True, deadline=deadline, lease=lease):
            if name.startswith(prefix):
                return self.read(f"{parent}/{name}", deadline=deadline, lease=lease)
        return None

    def delete(
        self,
        path: str,
        version: int = -1,
        *,
        lease: Lease | None = None,
        deadline: Deadline | None = None,
    ) -> bool:
        """Remove the node. False if there was none (or a lost reply's attempt removed it)."""
        full, delete = self._root + path, self.client.delete_async
        doing, missing = f"remove {path}", (kz.NoNodeError,)
        try:
            self.persist(
                lambda: delete(full, version), doing, deadline, lease, missing, writes=True
            )
        except kz.NoNodeError:
            return False
        return True

    def delete_prefixed(self, parent: str, prefix: str, lease: Lease, deadline: Deadline) -> None:
        """Remove the child of `parent` that begins with `prefix`, which only we use."""
        found = self.find_prefixed(parent, prefix, lease, deadline)
        if found is not None:
            self.delete(found.path, lease=lease, deadline=deadline)

    def transact(
        self, ops: Sequence[Op], deadline: Deadline, lease: Lease | None = None
    ) -> list[Any]:
        """All of `ops` or none, once; a create gives its path, a put its stat. `Rejected` and
        `ReplyLost` are for the recipe to resolve. A server with a full disk: `Unavailable`."""
        try:
            results: list[Any] = self.attempt(lambda: self._commit(ops), deadline, lease)
        except kz.KazooException as error:
            raise translated(error, f"change {', '.join(op.path for op in ops)}") from error
        for index, result in enumerate(results):
            if isinstance(result, Exception) and not isinstance(
                result, (kz.RolledBackError, kz.RuntimeInconsistency)
            ):
                raise Rejected(index, result)
        return [
            result[len(self._root) :] if isinstance(result, str) else result for result in results
        ]

    def gone(self, error: BaseException) -> Unavailable:
        """The error for a write whose outcome could not be found out."""
        unknown = Unavailable(
            "whether the last write was done is not known",
            why="the connection broke before its reply, and its trace could not be found in time",
            fix="read again what it would have changed, then decide",
        )
        unknown.__cause__ = error
        return unknown

    # --- private --------------------------------------------------------------------------------

    def _acl(self, full: str) -> list[ACL] | None:
        """Who may do what to the node at this path of the servers; None: as the server has it."""
        if self._access is None:
            return None
        if full != self._root and not full.startswith(f"{self._root}/"):
            return entries(self._access.above())
        return entries(self._access.acl(full[len(self._root) :] or "/"))

    def _commit(self, ops: Sequence[Op]) -> Any:
        request = self.client.transaction()
        for op in ops:
            full = self._root + op.path
            if op.kind == "create":
                more = {"ephemeral": op.ephemeral, "sequence": op.sequence}
                request.create(full, op.data, self._acl(full), **more)
            elif op.kind == "put":
                request.set_data(full, op.data, op.version)
            elif op.kind == "delete":
                request.delete(full, op.version)
            else:
                request.check(full, op.version)
        return request.commit_async()

    def _create(
        self, path: str, data: bytes, sequence: bool, lease: Lease | None, deadline: Deadline
    ) -> Znode:
        """One attempt; makes missing parents on the way."""
        full = self._root + path

        def send() -> Any:
            return self.client.create_async(
                full,
                data,
                self._acl(full),
                ephemeral=lease is not None,
                sequence=sequence,
                include_data=True,
            )

        while True:
            try:
                made, stat = self.attempt(send, deadline, lease)
            except kz.NoNodeError:
                self.ensure(parent_of(path), deadline)
            except kz.NodeExistsError:
                raise
            except kz.KazooException as error:
                raise translated(error, f"make {path}") from error
            else:
                return znode_of(made[len(self._root) :], data, stat)

    def _owned(self, made: Znode, lease: Lease | None) -> Znode:
        """The node, if it belongs to `lease`: a new session may have begun just before the send."""
        if lease is None or made.owner == lease.session_id:
            return made
        self.delete(made.path)
        raise SessionLost(
            f"could not make {made.path}",
            why="the session ended, and another one had begun",
            fix="acquire again",
        )


# --- fences ---------------------------------------------------------------------------------------
# Fences: what a fresh read is sent behind, so that its answer is no older than its question.
#
# Usually a `sync`: the server catches up with the leader, then answers the read. The leader's own
# server answers it alone, from its memory, even if others have replaced it and it does not know
# yet. That is not enough for whoever looks for a write whose reply was lost: not to see it must
# mean that it was not done, and will not be. So that look is behind a *vote*: a transaction that
# changes nothing. Most of the ensemble take part in it, and it is decided after all that was
# proposed before. What this session sent over an older connection, and was not proposed by then, is
# refused.


class Gate(Protocol):
    """What fences and nodes need of their session. `link` is the number of its connection."""

    link: int
    operation_timeout_s: float

    def await_connected(self, deadline: Deadline, lease: Lease | None = None) -> Lease: ...

    def unavailable(self) -> Unavailable: ...


class Fences:
    """The fences of one session. Thread-safe."""

    def __init__(self, gate: Gate, client: KazooClient, root: str) -> None:
        self._gate = gate
        self._client = client
        self._root = root or "/"
        self._lock = threading.Lock()
        self._lost = 0
        self._decided = 0

    def note_lost_reply(self) -> None:
        """The reply to a write was lost: the next fresh read, whoever asks, is behind a vote."""
        with self._lock:
            self._lost += 1

    def before(self, path: str, ask: Callable[[], Any]) -> Callable[[], Behind]:
        """Sends a fence, then `ask`. The answers count together, over one connection, or not."""

        def send() -> Behind:
            link, lost = self._gate.link, self._lost
            fence = self.vote() if lost > self._decided else self.sync(path)

            def counts() -> bool:
                if self._gate.link != link:
                    return False
                with self._lock:
                    self._decided = max(self._decided, lost)
                return True

            return Behind(fence, ask(), counts)

        return send

    def sync(self, path: str = "/") -> Any:
        """Answered by the leader through another server; by the leader's own server, alone."""
        return self._client.sync_async(path)

    def vote(self) -> Any:
        """Answered by most of the ensemble. Whether its check holds does not matter: one that
        fails is voted upon as well."""
        request = self._client.transaction()
        request.check(self._root, -1)
        return request.commit_async()
