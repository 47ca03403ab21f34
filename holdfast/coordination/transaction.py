"""A transaction that a leader or a holder puts together: all of it happens, or nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from holdfast.coordination.nodes import Op
from holdfast.wire.errors import Usage
from holdfast.wire.limits import VALUE_BYTES_MAX


class Transaction:
    """Writes that are committed together, with the check of whoever gave it.

    Missing parents of what is created are made. A version of -1 fits any.
    """

    def __init__(self, commit: Callable[[Sequence[Op]], int]) -> None:
        self._commit = commit
        self._ops: list[Op] = []
        self._done = False

    def create(self, path: str, data: bytes) -> Transaction:
        """The fact must not exist yet."""
        return self._add(Op("create", path, _bounded(path, data)))

    def replace(self, path: str, data: bytes, version: int = -1) -> Transaction:
        """The fact must exist, in this version."""
        return self._add(Op("put", path, _bounded(path, data), version))

    def remove(self, path: str, version: int = -1) -> Transaction:
        return self._add(Op("delete", path, version=version))

    def check(self, path: str, version: int = -1) -> Transaction:
        """The fact must exist, in this version; it is not changed."""
        return self._add(Op("check", path, version=version))

    @property
    def size_bytes(self) -> int:
        """What it takes of a frame, but for a few bytes for each write."""
        return sum(len(op.path) + len(op.data) for op in self._ops)

    def commit(self) -> int:
        """Do it all; the zxid of that, or 0 where it is not known: only a leader's always is.

        `Conflict`: nothing happened. `Fenced`: we are deposed; nothing happened,
        unless it says that it may have.

        A lost reply is found out. `Unavailable` only if no server answered in time: then, and only
        then, it may or may not have happened.
        """
        if self._done:
            raise Usage("this transaction was committed already", fix="make a new one")
        self._done = True
        return self._commit(tuple(self._ops))

    def _add(self, op: Op) -> Transaction:
        if not op.path.startswith("/"):
            raise Usage(f"{op.path!r} is not a path", fix="begin it with a slash")
        self._ops.append(op)
        return self


def _bounded(path: str, data: bytes) -> bytes:
    if len(data) > VALUE_BYTES_MAX:
        raise Usage(
            f"{len(data)} bytes for {path} are too many",
            why=f"at most {VALUE_BYTES_MAX} fit into the coordination plane",
            fix="put them into a blob, and its name here",
        )
    return data
