"""A typed copy of a part of the coordination plane, kept true by watches.

    jobs = Mirrored("/holdfast/jobs/*", decode_job, watched=("settings",), parts=("state",))
    draining = Mirrored("/holdfast/draining", single(decode_names))
    mirror = Mirror(session, jobs, draining, wake=woken.set)
    changed = mirror.refresh()          # reads what is dirty, and only that
    jobs.values["/holdfast/jobs/train"]

What is promised:

- A watch is placed by the read itself, so no change is missed: what changes after the read wakes.
- A watch only wakes. It marks what to read again, and carries no news.
- After the first `refresh` within a session every value is as it was at some moment since that call
  began, or newer. The same holds for what was passed to `invalidate`.
- A lost connection makes everything dirty that was watched; a new session makes everything dirty.
- What is gone is forgotten, with its watches.
- A value that cannot be decoded is named in `unreadable`, and keeps no other from being read.
- It is bounded: more nodes or bytes than it was given are an error, and are not kept.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from holdfast.coordination.facts import Fact, batches
from holdfast.coordination.nodes import Znode
from holdfast.coordination.waits import Wake
from holdfast.system import logs
from holdfast.wire.errors import Corrupt, TerminalError

if TYPE_CHECKING:
    from holdfast.coordination.session import Session

_log = logs.get(__name__)

T = TypeVar("T")
Decode = Callable[[str, Mapping[str, Fact]], T | None]
_Key = tuple[str, str]  # what is dirty: the children of a path, or the value there
_CHILDREN: Final = "children"
_VALUE: Final = "value"

# Ten thousand workers are some fifty nodes of placements; a hundred thousand jobs are more than a
# leader can decide about in time. Beyond it somebody writes where nobody should.
NODES_MAX: Final = 500_000
# A coordinator's whole memory, on a small machine; the plane itself holds its nodes in memory too.
BYTES_MAX: Final = 512 * 1024 * 1024


def single(decode: Callable[[str, bytes], T | None]) -> Decode[T]:
    """For a value that lies in one node."""
    return lambda path, found: decode(path, found[path].data)


def document(kind: type[T]) -> Decode[T]:
    """For a document of this kind. An empty node, made for what is below it, is none."""
    # The simulator imports this package where there is no `msgspec`.
    from holdfast.wire.documents import from_bytes  # noqa: PLC0415

    return single(lambda path, data: from_bytes(path, kind, data) if data else None)


class Mirrored(Generic[T]):
    """The values at the paths of one pattern. In it `*` stands for every child of what is before.

    `decode` is given a path and the nodes that were found for it, by path; None: there is no value
    after all. It raises `Corrupt` for what it does not understand. `watched` and `parts` are paths
    below the node that belong to its value, and are read with it; a change of one of `watched` is
    told, `parts` are for what only this process changes. A part may end in `/*`.

    Without a pattern the paths are those of `Mirror.follow`.
    """

    def __init__(
        self,
        pattern: str | None,
        decode: Decode[T],
        *,
        watched: Sequence[str] = (),
        parts: Sequence[str] = (),
        keeps_last: bool = False,
    ) -> None:
        self.pattern = pattern
        self.decode = decode
        self.watched = tuple(watched)
        self.parts = tuple(part for part in parts if not part.endswith("/*"))
        self.folders = tuple(part.removesuffix("/*") for part in parts if part.endswith("/*"))
        self.keeps_last = keeps_last  # a value that cannot be read any more stays
        self.values: dict[str, T] = {}
        self.unreadable: dict[str, Corrupt] = {}

    def paths(self, path: str) -> list[str]:
        """All nodes of the value but those in folders."""
        return [path, *(f"{path}/{part}" for part in (*self.watched, *self.parts))]

    def watched_paths(self, path: str) -> list[str]:
        """Those of its nodes whose changes are told."""
        return [path, *(f"{path}/{part}" for part in self.watched)]

    def forget(self, path: str) -> bool:
        """Whether a value was there."""
        self.unreadable.pop(path, None)
        return self.values.pop(path, None) is not None


@dataclass
class _PathLevel:
    """What may lie at the paths of one prefix of the patterns."""

    mirrored: Mirrored[Any] | None = None
    named: dict[str, _PathLevel] = field(default_factory=dict)
    each: _PathLevel | None = None  # below every child

    def add(self, words: list[str], mirrored: Mirrored[Any]) -> None:
        if not words:
            self.mirrored = mirrored
        elif words[0] == "*":
            self.each = self.each or _PathLevel()
            self.each.add(words[1:], mirrored)
        else:
            self.named.setdefault(words[0], _PathLevel()).add(words[1:], mirrored)


@dataclass
class _KeptPath:
    """A path whose value is kept. `listed`: the list above it tells when it comes and goes."""

    mirrored: Mirrored[Any]
    listed: bool
    # Of each of its nodes: which one, in which version. None: it was not there; empty: unknown.
    marks: dict[str, tuple[int, int]] | None = None
    size_nodes: int = 0
    size_bytes: int = 0


class Mirror:
    """The copy. `refresh` and the values are for one thread; `wake` is called on others, when there
    is something to refresh."""

    def __init__(
        self,
        session: Session,
        *mirrored: Mirrored[Any],
        wake: Wake = lambda: None,
        nodes_max: int = NODES_MAX,
        bytes_max: int = BYTES_MAX,
    ) -> None:
        self._session = session
        self._nodes = session.nodes
        self.wake = wake
        self._nodes_max = nodes_max
        self._bytes_max = bytes_max
        self._lock = threading.Lock()
        self._dirty: set[_Key] = set()
        self._needs_fence = True  # what is dirty must be no older than the refresh that reads it
        self._fence = False  # the next question goes behind a fence
        self._read_in = 0  # the session in which all was read; 0: none
        self._changed: set[str] = set()
        self._wakes: dict[_Key, Wake] = {}
        self._folders: dict[str, tuple[_PathLevel, set[str]]] = {}  # with the names that are known
        self._kept: dict[str, _KeptPath] = {}
        self._size_nodes = self._size_bytes = 0
        top = _PathLevel()
        for one in mirrored:
            if one.pattern is not None:
                top.add(one.pattern.strip("/").split("/"), one)
        self._dirty.update(self._begin("", top, listed=False))

    # --- for its user ---------------------------------------------------------------------------

    @property
    def caught_up(self) -> bool:
        """Whether all that watches have told was read, within the present session."""
        session = self._session
        with self._lock:
            read = not self._dirty and self._read_in != 0 and self._read_in == session.session_id
        return read and session.connected

    def refresh(self) -> set[str]:
        """Read what is dirty; the paths whose values are others now, or gone. Nothing dirty costs
        nothing. After an error the same is dirty as before, and no change is left untold."""
        session = self._session.session_id
        if not session or session != self._read_in:
            self._all_dirty()
        while True:
            with self._lock:
                todo, self._dirty = self._dirty, set()
                needs_fence, self._needs_fence = self._needs_fence, False
            link, self._fence = self._session.link, needs_fence
            try:
                self._read(todo)
            except BaseException:
                with self._lock:
                    self._dirty |= todo
                    self._needs_fence = self._needs_fence or needs_fence
                raise
            if not needs_fence or self._session.link == link:
                break
            self._all_dirty()  # a fence that another server has passed says nothing of this one
        self._read_in = session
        changed, self._changed = self._changed, set()
        return changed

    def follow(self, mirrored: Mirrored[Any], paths: Iterable[str]) -> None:
        """Keep the values at these paths, and at no others: for one without a pattern. They are
        read by the next `refresh`."""
        wanted = set(paths)
        held = {path for path, kept in self._kept.items() if kept.mirrored is mirrored}
        self._forget([self._end_value(path) for path in held - wanted])
        new = {self._begin_value(path, mirrored, listed=False) for path in wanted - held}
        with self._lock:
            self._dirty |= new

    def invalidate(self, *paths: str) -> None:
        """Read these values again, or what is in these folders; none given: everything. What the
        next `refresh` reads then is no older than that call: a write whose outcome is not known
        shows whether it was done."""
        if not paths:
            self._read_in = 0
            return
        with self._lock:
            self._dirty.update(
                (_CHILDREN if path in self._folders else _VALUE, path) for path in paths
            )
            self._needs_fence = True

    def put(self, mirrored: Mirrored[T], path: str, value: T) -> None:
        """This process has written it, so it is known without a read."""
        mirrored.values[path] = value
        self._kept[path].marks = {}

    def close(self) -> None:
        """Nobody is woken any more."""
        self._forget(list(self._wakes))

    # --- what is dirty --------------------------------------------------------------------------

    def _ring(self, key: _Key) -> None:
        with self._lock:
            self._dirty.add(key)
        self.wake()

    def _watch(self, kind: str, path: str) -> Wake:
        key = (kind, path)
        return self._wakes.setdefault(key, partial(self._ring, key))

    def _forget(self, keys: Iterable[_Key]) -> None:
        self._session.forget(*[self._wakes.pop(key) for key in keys if key in self._wakes])

    def _all_dirty(self) -> None:
        with self._lock:
            self._dirty = {(_CHILDREN, path) for path in self._folders}
            self._dirty |= {(_VALUE, path) for path in self._kept}
            self._needs_fence = True
        for kept in self._kept.values():
            kept.marks = None  # another plane may count the same

    # --- which paths there are ------------------------------------------------------------------

    def _begin(self, path: str, level: _PathLevel, *, listed: bool) -> Iterator[_Key]:
        """Keep what may be at this path and below it; what has to be read for that."""
        if level.mirrored is not None:
            yield self._begin_value(path, level.mirrored, listed=listed)
        if level.each is not None:
            self._folders[path] = (level.each, set())
            yield (_CHILDREN, path)
        for name, below in level.named.items():
            yield from self._begin(f"{path}/{name}", below, listed=False)

    def _begin_value(self, path: str, mirrored: Mirrored[Any], *, listed: bool) -> _Key:
        self._kept[path] = _KeptPath(mirrored, listed)
        return (_VALUE, path)

    def _end(self, path: str, level: _PathLevel) -> Iterator[_Key]:
        """It is gone, with all below it; whom nobody has to wake any more."""
        if level.mirrored is not None:
            yield self._end_value(path)
        if level.each is not None:
            for name in self._folders.pop(path)[1]:
                yield from self._end(f"{path}/{name}", level.each)
            yield (_CHILDREN, path)
        for name, below in level.named.items():
            yield from self._end(f"{path}/{name}", below)

    def _end_value(self, path: str) -> _Key:
        kept = self._kept.pop(path)
        self._count(kept, {})
        if kept.mirrored.forget(path):
            self._changed.add(path)
        return (_VALUE, path)

    # --- reading --------------------------------------------------------------------------------

    def _read(self, todo: set[_Key]) -> None:
        """Read these, and what they bring to light. `todo` is what is left of them."""
        while folders := sorted(path for kind, path in todo if kind == _CHILDREN):
            for some in batches(folders):
                here = [path for path in some if path in self._folders]
                asked = [(path, self._watch(_CHILDREN, path)) for path in here]
                for path, names in zip(here, self._children(asked), strict=True):
                    self._list(path, set(names), todo)
                todo.difference_update((_CHILDREN, path) for path in some)
        for some in batches(sorted(path for _, path in todo)):
            torn = self._read_values([path for path in some if path in self._kept], again=False)
            # Its nodes may have been read around a change that was made to several of them.
            for path in self._read_values(torn, again=True):
                self._ring((_VALUE, path))  # it comes and goes: the next refresh looks again
            todo.difference_update((_VALUE, path) for path in some)

    def _children(self, asked: Sequence[tuple[str, Wake | None]]) -> list[list[str]]:
        fence, self._fence = self._fence, False  # what is asked after it is no older
        return self._nodes.children_all(asked, fresh=fence)

    def _list(self, path: str, names: set[str], todo: set[_Key]) -> None:
        if path not in self._folders:
            return  # a folder above it has lost it
        level, known = self._folders[path]
        gone = [key for name in known - names for key in self._end(f"{path}/{name}", level)]
        todo.difference_update(gone)
        self._forget(gone)
        known &= names
        new = names - known
        if len(self._kept) + len(new) > self._nodes_max:
            raise self._too_much(path, len(self._kept) + len(new))
        for name in new:
            todo.update(self._begin(f"{path}/{name}", level, listed=True))
        # One that was gone when it was read has come back since.
        todo.update(
            (_VALUE, one)
            for one in (f"{path}/{name}" for name in known)
            if one in self._kept and self._kept[one].marks is None
        )
        self._folders[path] = (level, names)

    def _read_values(self, paths: Sequence[str], *, again: bool) -> list[str]:
        """Read them; those that must be read `again`, since their nodes do not fit together."""
        wanted = self._wanted(paths)
        watched = {path: set(self._kept[path].mirrored.watched_paths(path)) for path in paths}
        asked = [
            (one, self._watch(_VALUE, path) if one in watched[path] else None)
            for path, ones in wanted.items()
            for one in ones
        ]
        found: dict[str, Znode] = {}
        for some in batches(asked):
            fence, self._fence = self._fence, False
            answers = self._nodes.read_all(some, fresh=fence)
            found.update((node.path, node) for node in answers if node is not None)
        torn = self._await_missing(watched, found)
        for path, ones in wanted.items():
            nodes = {one: found[one] for one in ones if one in found}
            if path not in torn and not self._take(path, nodes, last=again or len(ones) == 1):
                torn.add(path)
        return sorted(torn)

    def _await_missing(
        self, watched: Mapping[str, set[str]], found: Mapping[str, Znode]
    ) -> set[str]:
        """Watch for what is not there, unless a list tells of it; whose nodes are there by now."""
        missing = [
            (path, one)
            for path, ones in watched.items()
            for one in sorted(ones - found.keys())
            if (path in found or one == path) and not (one == path and self._kept[path].listed)
        ]
        come: set[str] = set()
        for some in batches(missing):
            there = self._nodes.await_all([(one, self._watch(_VALUE, path)) for path, one in some])
            come.update(path for (path, _), now in zip(some, there, strict=True) if now)
        return come

    def _wanted(self, paths: Sequence[str]) -> dict[str, list[str]]:
        """For each value the paths of all its nodes."""
        wanted = {path: self._kept[path].mirrored.paths(path) for path in paths}
        folders = [
            (path, f"{path}/{folder}")
            for path in paths
            for folder in self._kept[path].mirrored.folders
        ]
        for some in batches(folders):
            listed = self._children([(folder, None) for _, folder in some])
            for (path, folder), names in zip(some, listed, strict=True):
                wanted[path] += [f"{folder}/{name}" for name in sorted(names)]
        return wanted

    def _take(self, path: str, nodes: Mapping[str, Znode], *, last: bool) -> bool:
        """Keep what was found there. False: it cannot be understood, which may not be the `last`
        word."""
        kept = self._kept[path]
        marks = {one: (node.czxid, node.version) for one, node in nodes.items()}
        if nodes and marks == kept.marks and path in kept.mirrored.values:
            return True
        facts = {
            one: Fact(at.data, at.version, at.created_ms, at.zxid) for one, at in nodes.items()
        }
        value, error = None, None
        try:
            value = kept.mirrored.decode(path, facts) if path in facts else None
        except Corrupt as unknown:
            if not last:
                return False
            error = unknown
        self._count(kept, facts)
        kept.marks = marks if path in facts else None
        self._store(kept.mirrored, path, value, error)
        return True

    def _store(self, mirrored: Mirrored[Any], path: str, value: Any, error: Corrupt | None) -> None:
        if error is not None:
            if str(mirrored.unreadable.get(path)) != str(error):
                stays = mirrored.keeps_last and path in mirrored.values
                _log.error(
                    "a value cannot be read; it is left as it is",
                    path=path,
                    error=str(error),
                    meanwhile="the last one counts" if stays else "as if it were not there",
                )
            if not mirrored.keeps_last:
                mirrored.values.pop(path, None)
            mirrored.unreadable[path] = error
            self._changed.add(path)
        elif value is None:
            if mirrored.forget(path):
                self._changed.add(path)
        else:
            mirrored.unreadable.pop(path, None)
            mirrored.values[path] = value
            self._changed.add(path)

    def _count(self, kept: _KeptPath, facts: Mapping[str, Fact]) -> None:
        size_nodes, size_bytes = len(facts), sum(len(fact.data) for fact in facts.values())
        self._size_nodes += size_nodes - kept.size_nodes
        self._size_bytes += size_bytes - kept.size_bytes
        kept.size_nodes, kept.size_bytes = size_nodes, size_bytes
        if facts and (self._size_nodes > self._nodes_max or self._size_bytes > self._bytes_max):
            raise self._too_much(min(facts), self._size_nodes)

    def _too_much(self, path: str, nodes: int) -> TerminalError:
        return TerminalError(
            f"the coordination plane holds too much to keep a copy: {path} makes it {nodes} nodes "
            f"and {self._size_bytes} bytes",
            why=f"at most {self._nodes_max} nodes and {self._bytes_max} bytes are kept",
            fix=f"holdfast coord tree {path.rpartition('/')[0] or '/'}; remove what is not needed",
        )
