"""Who is told when something happens to a path.

Two tables as in ZooKeeper: data watches (getData, exists) and child watches (getChildren). A
persistent watch stands in both. A watcher has one watch for a path in a table: a later one takes
the place of an earlier one, also of a persistent one, as in ZooKeeper 3.8.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final, Generic, TypeVar

from holdfast.coordination.embedded import paths
from holdfast.coordination.embedded import protocol as p
from holdfast.coordination.embedded.protocol import OperationError
from holdfast.coordination.embedded.transactions import TreeEvent

# About 100 bytes each; a leak of watches in a client must not become one of ours.
WATCHES_PER_CONNECTION_MAX: Final = 100_000
WATCHES_MAX: Final = 2_000_000

DATA: Final = p.WATCHER_DATA
CHILD: Final = p.WATCHER_CHILDREN

_ONCE: Final = 0
_PERSISTENT: Final = 1
_RECURSIVE: Final = 2

W = TypeVar("W", bound=Hashable)


class _Table(Generic[W]):
    """One kind of watch: by path for firing, by watcher for letting go."""

    def __init__(self) -> None:
        self.by_path: dict[str, dict[W, int]] = {}
        self.by_watcher: dict[W, dict[str, None]] = {}
        self.count = 0
        self.recursive = 0

    def set(self, watcher: W, path: str, mode: int) -> None:
        watchers = self.by_path.setdefault(path, {})
        before = watchers.get(watcher)
        watchers[watcher] = mode
        if before is None:
            self.by_watcher.setdefault(watcher, {})[path] = None
            self.count += 1
        self.recursive += (mode == _RECURSIVE) - (before == _RECURSIVE)

    def remove(self, watcher: W, path: str) -> bool:
        own = self.by_watcher.get(watcher)
        if own is None or path not in own:
            return False
        del own[path]
        if not own:
            del self.by_watcher[watcher]
        self._forget(watcher, path)
        return True

    def has(self, path: str) -> bool:
        # ZooKeeper walks up the path and stumbles where no slash is left; it takes the first step
        # always, the others only if there are recursive watches and it has found nothing.
        found = path in self.by_path
        if path and ("/" not in path or (self.recursive and not found and path[0] != "/")):
            raise OperationError(p.MARSHALLING_ERROR)
        return found and path != ""

    def drop(self, watcher: W) -> None:
        for path in self.by_watcher.pop(watcher, ()):
            self._forget(watcher, path)

    def fire(self, kind: int, path: str) -> list[W]:
        """Who is to be told, each once; the one-shot watches among theirs are gone."""
        told: dict[W, None] = {}
        watchers = self.by_path.get(path)
        if watchers:
            spent = []
            for watcher, mode in watchers.items():
                if mode == _ONCE:
                    spent.append(watcher)
                if mode != _RECURSIVE or kind != p.EVENT_CHILDREN_CHANGED:
                    told[watcher] = None
            for watcher in spent:
                self.remove(watcher, path)
        if self.recursive and kind != p.EVENT_CHILDREN_CHANGED:
            for above in paths.ancestors(path):
                for watcher, mode in self.by_path.get(above, {}).items():
                    if mode == _RECURSIVE:
                        told[watcher] = None
        return list(told)

    def _forget(self, watcher: W, path: str) -> None:
        watchers = self.by_path[path]
        self.recursive -= watchers.pop(watcher) == _RECURSIVE
        self.count -= 1
        if not watchers:
            del self.by_path[path]


class WatchTable(Generic[W]):
    """All watches of a server. A watcher is a connection, or whatever else can be hashed.

    After `drop(watcher)` nothing here refers to it.
    """

    def __init__(
        self,
        watches_max: int = WATCHES_MAX,
        per_watcher_max: int = WATCHES_PER_CONNECTION_MAX,
    ) -> None:
        self._watches_max = watches_max
        self._per_watcher_max = per_watcher_max
        self._data: _Table[W] = _Table()
        self._child: _Table[W] = _Table()

    @property
    def count(self) -> int:
        """Watches in both tables; a persistent one counts in each, as in ZooKeeper's `mntr`."""
        return self._data.count + self._child.count

    @property
    def path_count(self) -> int:
        """Entries by path, summed over both tables."""
        return len(self._data.by_path) + len(self._child.by_path)

    @property
    def watcher_count(self) -> int:
        """How many have at least one watch."""
        return len(self._data.by_watcher.keys() | self._child.by_watcher.keys())

    def count_of(self, watcher: W) -> int:
        """Watches of one watcher, in both tables."""
        return len(self._data.by_watcher.get(watcher, ())) + len(
            self._child.by_watcher.get(watcher, ())
        )

    def add(self, watcher: W, kind: int, path: str) -> None:
        """Tell `watcher` once; `kind` is DATA or CHILD. QUOTA_EXCEEDED beyond the limits."""
        table = self._data if kind == DATA else self._child
        self._make_room(watcher, path, (table,))
        table.set(watcher, path, _ONCE)

    def add_persistent(self, watcher: W, path: str, recursive: bool) -> None:
        """Tell `watcher` until it lets go, of the path and, if recursive, of all below it."""
        self._make_room(watcher, path, (self._data, self._child))
        mode = _RECURSIVE if recursive else _PERSISTENT
        self._data.set(watcher, path, mode)
        self._child.set(watcher, path, mode)

    def fire(self, event: TreeEvent) -> list[tuple[W, int, str]]:
        """Who is to be told what, each watcher once at most. A one-shot watch fires and is gone."""
        kind, path, _ = event
        if kind == p.EVENT_CHILDREN_CHANGED:
            watchers = self._child.fire(kind, path)
        else:
            watchers = self._data.fire(kind, path)
            if kind == p.EVENT_DELETED:
                watchers = list(dict.fromkeys(watchers + self._child.fire(kind, path)))
        return [(watcher, kind, path) for watcher in watchers]

    def remove(self, watcher: W, path: str, kind: int) -> bool:
        """Let go of watches of any mode; whether there was one. `kind` is as on the wire."""
        removed = False
        for table in self._tables(kind):
            removed = table.remove(watcher, path) or removed
        return removed

    def has(self, watcher: W, path: str, kind: int) -> bool:
        """Whether the path is watched. ZooKeeper 3.8 says so also when only others watch it."""
        return True in [table.has(path) for table in self._tables(kind)]

    def drop(self, watcher: W) -> None:
        """Forget a watcher and all its watches."""
        self._data.drop(watcher)
        self._child.drop(watcher)

    def _tables(self, kind: int) -> tuple[_Table[W], ...]:
        if kind == p.WATCHER_ANY:
            return (self._child, self._data)
        if kind == p.WATCHER_CHILDREN:
            return (self._child,)
        if kind == p.WATCHER_DATA:
            return (self._data,)
        raise OperationError(p.MARSHALLING_ERROR)

    def _make_room(self, watcher: W, path: str, tables: tuple[_Table[W], ...]) -> None:
        wanted = sum(path not in table.by_watcher.get(watcher, ()) for table in tables)
        if wanted and (
            self.count + wanted > self._watches_max
            or self.count_of(watcher) + wanted > self._per_watcher_max
        ):
            raise OperationError(p.QUOTA_EXCEEDED)
