"""Facts with versions, for those who keep many of them: read several, write several together.

`Config` is one value with compare-and-set; this is for a domain with a layout of its own, whose
verbs decide what is written together. A leader writes through `Leadership.transaction`, which is
fenced; `Facts.transaction` is not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from kazoo import exceptions as kz

from holdfast.coordination.nodes import Op, Rejected, ReplyLost, Znode, parent_of
from holdfast.coordination.transaction import Transaction
from holdfast.coordination.translate import translated
from holdfast.coordination.waits import Wake
from holdfast.wire.limits import READS_IN_FLIGHT

if TYPE_CHECKING:
    from holdfast.coordination.session import Session


T = TypeVar("T")


class Fact(NamedTuple):
    """What a path holds, in which version, and the zxid of the transaction that wrote it; a mirror
    also knows since when the node is there."""

    data: bytes
    version: int
    created_ms: int = 0
    zxid: int = 0


class Facts:
    """Reads and writes of facts by path.

    Within one session a thread's reads are never older than what it read before, and with `fresh`
    no older than the call (as docs/guarantees.md says it); together they are not one moment. A wake
    is called once, when what was read changes or when the connection broke that would have told;
    then read again.
    """

    def __init__(self, session: Session) -> None:
        self._session = session

    def read(self, path: str, wake: Wake | None = None, *, fresh: bool = False) -> Fact | None:
        """The fact, or None. `wake` also waits for one that is not there."""
        node = self._session.nodes.read(path, wake, fresh=fresh)
        return None if node is None else _fact(node)

    def names(self, path: str, wake: Wake | None = None, *, fresh: bool = False) -> list[str]:
        """The names directly below `path`, sorted; none if there is no such path."""
        return sorted(self._session.nodes.children(path, wake, fresh=fresh))

    def read_all(
        self, paths: Sequence[str], wakes: Mapping[str, Wake] | None = None
    ) -> dict[str, Fact]:
        """Those of `paths` that are there, in a few round trips. A missing one wakes nobody."""
        wakes = wakes or {}
        found: dict[str, Fact] = {}
        for some in batches(paths):
            read = self._session.nodes.read_all([(path, wakes.get(path)) for path in some])
            found.update((node.path, _fact(node)) for node in read if node)
        return found

    def forget(self, wake: Wake) -> None:
        """Nobody waits behind `wake` any more."""
        self._session.forget(wake)

    def transaction(self, happened: Callable[[], bool]) -> Transaction:
        """Writes that take effect together, or not at all; not fenced.

        `happened` is asked after a lost reply: whether what is there now shows that they did.
        """

        def commit(ops: Sequence[Op]) -> int:
            self._commit(ops, happened)
            return 0

        return Transaction(commit)

    def _commit(self, ops: Sequence[Op], happened: Callable[[], bool]) -> None:
        nodes = self._session.nodes
        deadline = nodes.deadline(None)
        unsure = False
        while True:
            try:
                nodes.transact(ops, deadline)
            except ReplyLost as error:
                unsure = True
                if deadline.passed:
                    raise nodes.gone(error) from error
            except Rejected as rejected:
                op = ops[rejected.index]
                if unsure and happened():
                    return
                if op.kind != "create" or not isinstance(rejected.cause, kz.NoNodeError):
                    raise translated(rejected.cause, f"{op.kind} {op.path}") from rejected
                nodes.ensure(parent_of(op.path), deadline)
            else:
                return


def _fact(node: Znode) -> Fact:
    return Fact(node.data, node.version, zxid=node.zxid)


def batches(many: Sequence[T]) -> Iterator[Sequence[T]]:
    """As many as are asked for together."""
    for start in range(0, len(many), READS_IN_FLIGHT):
        yield many[start : start + READS_IN_FLIGHT]
