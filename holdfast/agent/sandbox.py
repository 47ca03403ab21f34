"""A /tmp and a /var/tmp of a worker's own, so that what one job leaves or removes there is no
other's.

    python -I -S sandbox.py       says what this machine allows: `mount`, `user`, or why not

A mount namespace of the worker's, in which folders of its own lie over the two. What it needs from
below them (the cluster's folder, the environment of Python, what its command names) is laid back
into place. Nobody else sees any of it, and it goes with the worker's last process.

As `shim`, which uses it in the worker's process before that becomes the worker, it imports nothing
of Holdfast and little of Python.
"""

# ruff: noqa: PTH103, PTH110, PTH112, PTH114, PTH120, PTH123
from __future__ import annotations

import ctypes
import os
import struct
import sys

SHARED = ("/tmp", "/var/tmp")  # noqa: S108 - the places themselves
MOUNT = "mount"  # a mount namespace alone: root may
USER = "user"  # within a user namespace: others may, where the system lets them
_NEW_MOUNTS, _NEW_USER = 0x0002_0000, 0x1000_0000
_BIND, _RECURSIVE, _SLAVE = 4096, 16384, 1 << 19
_DETACH = 2
_SET_DUMPABLE = 4
# The newer calls for mounts have the same numbers everywhere.
_OPEN_TREE, _MOVE_MOUNT, _SET_ATTRIBUTES = 428, 429, 442
_CLONE, _CLOSES, _EMPTY_PATH, _FROM_HANDLE, _HERE = 1, 0o2000000, 0x1000, 4, -100
_ID_MAP = 0x0010_0000
_MOUNT_ATTRIBUTES = struct.Struct("QQQQ")


class Plan:
    """How: `kind` of namespace, a folder to lie over each of `SHARED`, and what to keep.

    For a worker with a user of its own: `cover`, folders of which only what is kept is to be seen;
    and `mapped`, folders of ours that are to be as if they were that user's (`ids`)."""

    def __init__(
        self,
        kind: str,
        folders: list[str],
        keep: list[str],
        cover: tuple[str, ...] = (),
        mapped: tuple[str, ...] = (),
        ids: tuple[int, int] = (0, 0),
    ) -> None:
        self.kind = kind
        self.folders = folders
        self.keep = keep
        self.cover = cover
        self.mapped = mapped
        self.ids = ids


def enter(plan: Plan) -> None:
    """Give this process the places of the plan. `OSError`: it cannot be, and all is as before, but
    for a namespace of its own with nothing in it."""
    libc = ctypes.CDLL(None, use_errno=True)
    _unshare(libc, plan.kind)
    # What the machine mounts later is seen here; what is mounted here is not seen there.
    _mount(libc, "", "/", _RECURSIVE | _SLAVE)
    # All of it is opened before anything is covered: it may lie below what is.
    opened: dict[str, int] = {}
    made: list[str] = []
    trees = {path: _as_if_owned(libc, path, plan.ids) for path in plan.mapped}
    # What is made on the way to what is kept can be passed by another user, if there is one.
    before = os.umask(0o022 if plan.ids[0] else 0o077)
    try:
        places = [place for place in SHARED if os.path.isdir(place) and not os.path.islink(place)]
        kept = {place: outermost(plan.keep, place) for place in (*places, *plan.cover)}
        for path in (*plan.folders, *(one for each in kept.values() for one in each)):
            opened[path] = os.open(path, os.O_PATH | os.O_CLOEXEC)
        for place, folder in zip(SHARED, plan.folders, strict=True):
            if place in places:
                _lay(libc, opened[folder], place, made)
                for path in kept[place]:
                    _lay(libc, opened[path], path, made)
        for place in plan.cover:
            if libc.mount(b"tmpfs", place.encode(), b"tmpfs", ctypes.c_ulong(0), b"mode=755"):
                raise _failed(f"cover {place}")
            made.append(place)
            for path in kept[place]:
                _lay(libc, opened[path], path, made)
        for path, tree in trees.items():
            os.makedirs(path, exist_ok=True)
            _call(libc, _MOVE_MOUNT, tree, b"", _HERE, path.encode(), _FROM_HANDLE)
            made.append(path)
    except OSError:
        for path in reversed(made):
            libc.umount2(path.encode(), _DETACH)
        raise
    finally:
        os.umask(before)
        for handle in (*opened.values(), *trees.values()):
            os.close(handle)


def _as_if_owned(libc: ctypes.CDLL, path: str, ids: tuple[int, int]) -> int:
    """A copy of the mount at `path`, open and not laid anywhere yet. In it what is root's is that
    user's, and what the user makes is root's."""
    tree = _call(libc, _OPEN_TREE, _HERE, os.path.realpath(path).encode(), _CLONE | _CLOSES)
    space = _mapping(libc, ids)
    try:
        attributes = _MOUNT_ATTRIBUTES.pack(_ID_MAP, 0, 0, space)
        _call(libc, _SET_ATTRIBUTES, tree, b"", _EMPTY_PATH, attributes, len(attributes))
    except OSError as error:
        os.close(tree)
        raise OSError(
            error.errno,
            f"files of {path} cannot be another user's here ({error.strerror}): "
            "that takes Linux 5.12 and a file system that maps users; or a store in S3",
        ) from None
    finally:
        os.close(space)
    return tree


def _mapping(libc: ctypes.CDLL, ids: tuple[int, int]) -> int:
    """An open namespace of users in which root is that user. A process has to be in it first."""
    ours, theirs = os.pipe()
    go, wait = os.pipe()
    child = os.fork()
    if not child:
        made = libc.unshare(_NEW_USER) == 0
        os.write(theirs, b"+" if made else b"-")
        os.read(go, 1)
        os._exit(0)
    try:
        if os.read(ours, 1) != b"+":
            raise OSError(1, "no namespace of users can be made")
        for name, number in zip(("uid_map", "gid_map"), ids, strict=True):
            with open(f"/proc/{child}/{name}", "w") as file:
                file.write(f"0 {number} 1")
        return os.open(f"/proc/{child}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        os.write(wait, b"+")
        os.waitpid(child, 0)
        for handle in (ours, theirs, go, wait):
            os.close(handle)


def _call(libc: ctypes.CDLL, number: int, *words: object) -> int:
    """A system call that the C library may not know."""
    made = [ctypes.c_long(word) if isinstance(word, int) else word for word in words]
    answer: int = libc.syscall(ctypes.c_long(number), *made)
    if answer < 0:
        raise _failed(f"system call {number}")
    return answer


def _lay(libc: ctypes.CDLL, handle: int, path: str, made: list[str]) -> None:
    """Lay what is open over `path`, which is made where it is missing."""
    source = f"/proc/self/fd/{handle}"
    if os.path.isdir(source):
        os.makedirs(path, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
    _mount(libc, source, path, _BIND | _RECURSIVE)
    made.append(path)


def outermost(paths: list[str], place: str) -> list[str]:
    """Those below `place` that exist, without what lies in another of them."""
    real = {os.path.realpath(path) for path in paths}
    below = sorted(path for path in real if path.startswith(f"{place}/") and os.path.exists(path))
    found: list[str] = []
    for path in below:
        if not any(path.startswith(f"{outer}/") for outer in found):
            found.append(path)
    return found


def _unshare(libc: ctypes.CDLL, kind: str) -> None:
    user, group = os.geteuid(), os.getegid()
    flags = _NEW_MOUNTS | (_NEW_USER if kind == USER else 0)
    if libc.unshare(flags):
        raise _failed("unshare")
    if kind == USER:
        libc.prctl(_SET_DUMPABLE, 1, 0, 0, 0)  # else its own files in /proc are not its own
        for name, text in (
            ("setgroups", "deny"),
            ("uid_map", f"{user} {user} 1"),
            ("gid_map", f"{group} {group} 1"),
        ):
            with open(f"/proc/self/{name}", "w") as file:
                file.write(text)


def _mount(libc: ctypes.CDLL, source: str, target: str, flags: int) -> None:
    if libc.mount(source.encode() or None, target.encode(), None, ctypes.c_ulong(flags), None):
        raise _failed(f"mount {source or 'nothing'} at {target}")


def _failed(doing: str) -> OSError:
    number = ctypes.get_errno()
    return OSError(number, f"{doing}: {os.strerror(number)}")


def try_out() -> str:
    """Which kind works here; none: empty, and each reason has gone to standard output."""
    for kind in (MOUNT, USER):
        child = os.fork()
        if not child:
            try:
                enter(Plan(kind, ["/usr", "/usr"], []))  # any folder will do
                os._exit(0)
            except OSError as error:
                os.write(1, f"{error.strerror}\n".encode())
            finally:
                os._exit(1)
        if not os.waitpid(child, 0)[1]:
            return kind
    return ""


if __name__ == "__main__":
    os.write(1, f"{try_out()}\n".encode())
    sys.exit(0)
