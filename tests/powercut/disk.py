"""A folder on a disk that keeps only what was synced.

The code under test runs as it is, on a real folder. Its calls of `os` that sync, or that change
names or lengths, are noted: before each of them, and after each sync, a `Moment` is kept, with what
the folder looks like and what of it is durable. A sync of a file makes its present bytes durable,
one of a folder the present names in it; nothing else makes anything durable.

What is written is not noted but read from the folder. So nothing escapes by taking another way to
the disk: a sync that goes by unnoticed makes the disk keep less, and the test fail.

    disk = Disk(folder)
    with disk:
        store.put("a", b"1")
        disk.acknowledge("a")           # from now on it must be there
    for moment in disk.moments:
        for image in images(moment): ...

`disk.at_sync(number)` is asked before each sync, and may raise: `Killed`, or an `OSError` of a
failing disk. After `Killed` nothing is noted any more; `disk.restarted(folder)` goes on from there
as a new process does, which finds what the old one had written and not synced.
"""

from __future__ import annotations

import copy
import os
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self

_CHANGES: Final = (
    "ftruncate", "link", "mkdir", "remove", "rename", "replace", "rmdir", "truncate", "unlink",
)  # fmt: skip
_SYNCS: Final = ("fsync", "fdatasync")


class Killed(BaseException):
    """SIGKILL: whoever catches it does so for nothing, since nothing is noted after it."""


@dataclass(eq=False)
class File:
    """`synced` None: never. `between`: other contents since then, which may have been written
    back. `live`: what a reader sees now."""

    synced: bytes | None = None
    live: bytes = b""
    between: list[bytes] = field(default_factory=list)


@dataclass(eq=False)
class Folder:
    """Names: those that are durable, and those that a reader sees."""

    synced: dict[str, Node] = field(default_factory=dict)
    live: dict[str, Node] = field(default_factory=dict)


Node = File | Folder


@dataclass
class Moment:
    """The disk when the power goes. `promised`: all that was acknowledged by then."""

    what: str
    root: Folder
    promised: tuple[Any, ...]


class Disk:
    """The recorder of one folder, all of which is durable when it begins."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.moments: list[Moment] = []
        self.syncs = 0
        self.at_sync: Callable[[int], None] = lambda number: None
        self._promised: list[Any] = []
        self._nodes: dict[tuple[int, int], Node] = {}
        # An inode that is held open is not given to another file.
        self._held: list[int] = []
        self._kept: dict[str, Any] = {}
        self._lock = threading.RLock()
        self._busy = False
        self._dead = False
        self._root = self._node(folder)
        self._look()
        _all_durable(self._root)

    def acknowledge(self, fact: Any) -> None:
        """Somebody was told: after every cut from now on it must be so."""
        with self._lock:
            self._promised.append(fact)
        self._note(f"acknowledged {fact!r}")

    def restarted(self, folder: Path) -> Disk:
        """The same disk, seen by the next process: in `folder`, which is made."""
        moment = copy.deepcopy(self.moments[-1])
        again = Disk.__new__(Disk)
        folder.mkdir()
        again.folder, again.moments, again.syncs = folder, [], 0
        again.at_sync = lambda number: None
        again._promised, again._nodes = list(moment.promised), {}
        again._held, again._kept, again._lock = [], {}, threading.RLock()
        again._busy = again._dead = False
        again._root = moment.root
        again._settle(folder, moment.root, {})
        return again

    def __enter__(self) -> Self:
        for name in (*_CHANGES, *_SYNCS):
            self._kept[name] = getattr(os, name)
            setattr(os, name, self._noting(name, self._kept[name]))
        return self

    def __exit__(self, kind: type[BaseException] | None, *exc: object) -> bool:
        for name, plain in self._kept.items():
            setattr(os, name, plain)
        self._note("the end")
        for handle in self._held:
            os.close(handle)
        self._held.clear()
        return kind is Killed

    # --- noting -----------------------------------------------------------------------------

    def _noting(self, name: str, plain: Callable[..., Any]) -> Callable[..., Any]:
        def changing(*arguments: Any, **named: Any) -> Any:
            self._note(f"before {name} {arguments}")
            if name == "ftruncate":
                self._may_be_written_back(arguments[0])
            return plain(*arguments, **named)

        def syncing(handle: Any) -> None:
            number = handle if isinstance(handle, int) else handle.fileno()
            with self._lock:
                self.syncs += 1
                count = self.syncs
            self._note(f"before sync {count} of {_name(number)}")
            self._ask(count, number)
            # The real disk is not asked: this one is lost with the test anyway.
            self._synced(number)
            self._note(f"after sync {count} of {_name(number)}")

        return syncing if name in _SYNCS else changing

    def _ask(self, count: int, handle: int) -> None:
        if self._dead:
            return
        try:
            self.at_sync(count)
        except Killed:
            self._dead = True
            raise
        except OSError:
            self._may_be_written_back(handle)
            raise

    def _note(self, what: str) -> None:
        with self._alone() as free:
            if free:
                self._look()
                root, promised = copy.deepcopy((self._root, tuple(self._promised)))
                self.moments.append(Moment(what, root, promised))

    def _synced(self, handle: int) -> None:
        with self._alone() as free:
            node = self._known(os.fstat(handle)) if free else None
            if isinstance(node, File):
                node.synced, node.between = _content(handle), []
            elif node is not None:
                self._look()
                node.synced = dict(node.live)

    def _may_be_written_back(self, handle: int) -> None:
        with self._alone() as free:
            node = self._known(os.fstat(handle)) if free else None
            if isinstance(node, File):
                node.between.append(_content(handle))

    @contextmanager
    def _alone(self) -> Iterator[bool]:
        """One at a time; False: within our own work, or after the end."""
        with self._lock:
            if self._busy or self._dead:
                yield False
                return
            self._busy = True
            try:
                yield True
            finally:
                self._busy = False

    # --- looking ----------------------------------------------------------------------------

    def _look(self) -> None:
        """Let every node's `live` be what is in the folder now."""
        self._look_into(self.folder, self._root)

    def _look_into(self, path: Path, node: Node) -> None:
        if isinstance(node, File):
            node.live = path.read_bytes()
            return
        node.live = {}
        for entry in sorted(child.name for child in path.iterdir()):
            try:
                found = self._node(path / entry)
                if found is not None:
                    self._look_into(path / entry, found)
                    node.live[entry] = found
            except FileNotFoundError:
                continue  # removed by another thread

    def _node(self, path: Path) -> Any:
        """What has this name. None: neither a file nor a folder (a socket, a pipe)."""
        found = path.lstat()
        if not stat.S_ISDIR(found.st_mode) and not stat.S_ISREG(found.st_mode):
            return None
        key = (found.st_dev, found.st_ino)
        if key not in self._nodes:
            self._held.append(os.open(path, os.O_PATH))
            self._nodes[key] = Folder() if stat.S_ISDIR(found.st_mode) else File()
        return self._nodes[key]

    def _known(self, found: os.stat_result) -> Node | None:
        """The node of an open file. One that has lost its name, or lies elsewhere, is none."""
        if (found.st_dev, found.st_ino) not in self._nodes:
            self._look()
        return self._nodes.get((found.st_dev, found.st_ino))

    def _settle(self, path: Path, node: Folder, written: dict[int, Path]) -> None:
        """Write what `node` says is seen, and know it again. A file may have two names."""
        self._nodes[_key(path)] = node
        self._held.append(os.open(path, os.O_PATH))
        for name, child in node.live.items():
            if isinstance(child, Folder):
                (path / name).mkdir()
                self._settle(path / name, child, written)
                continue
            if id(child) in written:
                (path / name).hardlink_to(written[id(child)])
                continue
            (path / name).write_bytes(child.live)
            written[id(child)] = path / name
            self._nodes[_key(path / name)] = child
            self._held.append(os.open(path / name, os.O_PATH))


def _key(path: Path) -> tuple[int, int]:
    found = path.lstat()
    return found.st_dev, found.st_ino


def _all_durable(node: Node) -> None:
    if isinstance(node, File):
        node.synced = node.live
        return
    node.synced = dict(node.live)
    for child in node.live.values():
        _all_durable(child)


def _content(handle: int) -> bytes:
    """All bytes of an open file, which may be open for writing alone."""
    with Path(f"/proc/self/fd/{handle}").open("rb") as file:
        return file.read()


def _name(handle: int) -> str:
    return os.path.basename(os.readlink(f"/proc/self/fd/{handle}"))  # noqa: PTH115, PTH119
