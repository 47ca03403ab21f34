"""Nodes as the recipes need them: bounded in time, with lost replies found again.

With `fences` the only place that calls kazoo's operations. A request is sent only while a server is
connected (kazoo would queue it otherwise, and do it long after its caller gave up). When the
connection breaks before the reply, whether it was done is found out, not guessed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from kazoo import exceptions as kz
from kazoo.client import KazooClient
from kazoo.security import ACL

from holdfast.coordination.access import Access
from holdfast.coordination.fences import Fences, Gate
from holdfast.coordination.kazoo_client import entries
from holdfast.coordination.life import Life
from holdfast.coordination.together import Together
from holdfast.coordination.translate import REPLY_LOST, translated
from holdfast.coordination.waits import Bells, Deadline, Wake
from holdfast.coordination.znodes import Op, Rejected, ReplyLost, Znode, parent_of, znode_of
from holdfast.wire.errors import Conflict, SessionLost, Unavailable

__all__ = ["Nodes", "Op", "Rejected", "ReplyLost", "Znode", "parent_of"]

Send = Callable[[], Any]


class Nodes:
    """Reads and writes of one session. `life`, where given, must still be alive when it is done."""

    def __init__(
        self, gate: Gate, client: KazooClient, root: str, access: Access | None = None
    ) -> None:
        self._gate = gate
        self._access = access
        self.client = client
        self._root = root
        self._bells = Bells()
        self.fences = Fences(gate, client, root)

    def forget(self, *wakes: Wake) -> None:
        self._bells.forget(*wakes)

    @property
    def waiting(self) -> int:
        """How many wakes hang on watches now."""
        return len(self._bells)

    def full(self, path: str) -> str:
        """A path of ours as the servers know it."""
        return (self._root + path).rstrip("/") or "/"

    def deadline(self, deadline: Deadline | None) -> Deadline:
        """The end of one operation within a longer wait."""
        return (deadline or Deadline(None)).within(self._gate.operation_timeout_s)

    # --- one attempt, many attempts ---------------------------------------------------------

    def attempt(
        self, send: Send, deadline: Deadline, life: Life | None = None, *, writes: bool = True
    ) -> Any:
        """Send once. kazoo's own exceptions pass, for the caller to translate."""
        self._gate.await_connected(deadline, life)
        answer = send()
        try:
            return answer.get(timeout=deadline.left_s())
        except REPLY_LOST as error:
            if writes:
                self.fences.doubt()
            if life is not None and isinstance(error, kz.SessionExpiredError):
                life.end("the servers ended the session")
                life.check()
            raise ReplyLost from error

    def persist(
        self,
        send: Send,
        doing: str,
        deadline: Deadline | None = None,
        life: Life | None = None,
        passing: tuple[type[Exception], ...] = (),
        *,
        writes: bool = False,
    ) -> Any:
        """Send what may be done twice, until it is answered. `passing` exceptions pass."""
        deadline = self.deadline(deadline)
        while True:
            try:
                return self.attempt(send, deadline, life, writes=writes)
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
        life: Life | None = None,
    ) -> Znode | None:
        """The node, or None if there is none. `wake` is called when that changes.

        `fresh`: no older than the call, as docs/guarantees.md says it; after a write whose reply
        was lost it shows whether that was done. Else it is what one server remembers.
        """
        full = self._root + path
        doing, missing = f"read {path}", (kz.NoNodeError,)
        with self._bells.hung(("data", full), wake) as watch:

            def get() -> Any:
                return self.client.get_async(full, watch=watch)

            ask = self.fences.before(full, get) if fresh else get
            while True:
                try:
                    data, stat = self.persist(ask, doing, deadline, life, missing)
                except kz.NoNodeError:
                    if wake is None or not self.persist(
                        lambda: self.client.exists_async(full, watch=watch), doing, deadline, life
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
        hang, wakes = self._bells.hang, [wake for _, wake in wanted]
        bells = [hang((kind, at), wake) for at, wake in zip(full, wakes, strict=True)]
        watched = list(zip(full, bells, strict=True))
        answers: list[Any] = [None] * len(wanted)
        placed = [False] * len(wanted)

        def send() -> Together:
            return Together([ask(at, watch=bell) for at, bell in watched])

        try:
            if wanted:
                behind = self.fences.before(full[0], send) if fresh else send
                answers = self.persist(behind, f"read {len(wanted)} nodes")
                placed = [awaits or answer is not None for answer in answers]
        finally:
            for bell, wake, there in zip(bells, wakes, placed, strict=True):
                self._bells.tell(bell, wake, placed=there)
        return answers

    def children(
        self,
        path: str,
        wake: Wake | None = None,
        *,
        fresh: bool = False,
        deadline: Deadline | None = None,
        life: Life | None = None,
    ) -> list[str]:
        """Names of the children; none if there is no such node. `wake`, `fresh` as for `read`."""
        full, names = self._root + path, self.client.get_children_async
        doing, missing = f"list {path}", (kz.NoNodeError,)
        while True:
            try:
                with self._bells.hung(("children", full), wake) as watch:
                    get = partial(names, full, watch=watch)
                    ask = self.fences.before(full, get) if fresh else get
                    found: list[str] = self.persist(ask, doing, deadline, life, missing)
            except kz.NoNodeError:
                if wake is None or self.read(path, wake, deadline=deadline, life=life) is None:
                    return []
            else:
                return found

    def watch_end(
        self,
        path: str,
        wake: Wake,
        *,
        deadline: Deadline | None = None,
        life: Life | None = None,
    ) -> bool:
        """Whether the childless node is there; if so, `wake` is called when it is removed.

        A watch on its children: changes of its data do not fire it.
        """
        full = self._root + path
        get, doing, missing = self.client.get_children_async, f"watch {path}", (kz.NoNodeError,)
        try:
            with self._bells.hung(("children", full), wake) as watch:
                self.persist(lambda: get(full, watch=watch), doing, deadline, life, missing)
        except kz.NoNodeError:
            return False
        return True

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
        life: Life | None = None,
        deadline: Deadline | None = None,
    ) -> Znode:
        """Make a node; ephemeral if a `life` is given. `Conflict` if it is somebody else's.

        After a lost reply the node is known again by its content, and by its owner if ephemeral:
        give it content that nobody else writes where that matters.
        """
        deadline = self.deadline(deadline)
        unsure = False
        while True:
            try:
                made = self._create(path, data, False, life, deadline)
            except ReplyLost as error:
                unsure = True
                if deadline.passed:
                    raise self._gate.unavailable() from error
            except kz.NodeExistsError as error:
                found = self.read(path, fresh=True, deadline=deadline, life=life)
                owner = 0 if life is None else life.session_id
                if unsure and found and (found.data, found.owner) == (data, owner):
                    return found
                if found is not None:
                    raise Conflict(f"could not make {path}", why="it exists already") from error
            else:
                return self._owned(made, life)

    def create_in_line(
        self, parent: str, prefix: str, data: bytes, life: Life, deadline: Deadline | None = None
    ) -> Znode:
        """Make an ephemeral child with the next number after `prefix`, which only we use."""
        deadline = self.deadline(deadline)
        while True:
            try:
                made = self._create(f"{parent}/{prefix}", data, True, life, deadline)
            except ReplyLost as error:
                if deadline.passed:
                    raise self._gate.unavailable() from error
                found = self.find_prefixed(parent, prefix, life, deadline)
                if found is not None:
                    return found
            else:
                return self._owned(made, life)

    def find_prefixed(
        self, parent: str, prefix: str, life: Life | None = None, deadline: Deadline | None = None
    ) -> Znode | None:
        """The child of `parent` that begins with `prefix`, as the ensemble knows it now."""
        for name in self.children(parent, fresh=True, deadline=deadline, life=life):
            if name.startswith(prefix):
                return self.read(f"{parent}/{name}", deadline=deadline, life=life)
        return None

    def delete(
        self,
        path: str,
        version: int = -1,
        *,
        life: Life | None = None,
        deadline: Deadline | None = None,
    ) -> bool:
        """Remove the node. False if there was none (or a lost reply's attempt removed it)."""
        full, delete = self._root + path, self.client.delete_async
        doing, missing = f"remove {path}", (kz.NoNodeError,)
        try:
            self.persist(lambda: delete(full, version), doing, deadline, life, missing, writes=True)
        except kz.NoNodeError:
            return False
        return True

    def delete_prefixed(self, parent: str, prefix: str, life: Life, deadline: Deadline) -> None:
        """Remove the child of `parent` that begins with `prefix`, which only we use."""
        found = self.find_prefixed(parent, prefix, life, deadline)
        if found is not None:
            self.delete(found.path, life=life, deadline=deadline)

    def transact(
        self, ops: Sequence[Op], deadline: Deadline, life: Life | None = None
    ) -> list[Any]:
        """All of `ops` or none, once; a create gives its path, a put its stat. `Rejected` and
        `ReplyLost` are for the recipe to resolve. A server with a full disk: `Unavailable`."""
        try:
            results: list[Any] = self.attempt(lambda: self._commit(ops), deadline, life)
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
        self, path: str, data: bytes, sequence: bool, life: Life | None, deadline: Deadline
    ) -> Znode:
        """One attempt; makes missing parents on the way."""
        full = self._root + path

        def send() -> Any:
            return self.client.create_async(
                full,
                data,
                self._acl(full),
                ephemeral=life is not None,
                sequence=sequence,
                include_data=True,
            )

        while True:
            try:
                made, stat = self.attempt(send, deadline, life)
            except kz.NoNodeError:
                self.ensure(parent_of(path), deadline)
            except kz.NodeExistsError:
                raise
            except kz.KazooException as error:
                raise translated(error, f"make {path}") from error
            else:
                return znode_of(made[len(self._root) :], data, stat)

    def _owned(self, made: Znode, life: Life | None) -> Znode:
        """The node, if it belongs to `life`: a new session may have begun just before the send."""
        if life is None or made.owner == life.session_id:
            return made
        self.delete(made.path)
        raise SessionLost(
            f"could not make {made.path}",
            why="the session ended, and another one had begun",
            fix="acquire again",
        )
