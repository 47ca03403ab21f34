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
import sys

SHARED = ("/tmp", "/var/tmp")  # noqa: S108 - the places themselves
MOUNT = "mount"  # a mount namespace alone: root may
USER = "user"  # within a user namespace: others may, where the system lets them
_NEW_MOUNTS, _NEW_USER = 0x0002_0000, 0x1000_0000
_BIND, _RECURSIVE, _SLAVE = 4096, 16384, 1 << 19
_DETACH = 2
_SET_DUMPABLE = 4


class Plan:
    """How: `kind` of namespace, a folder to lie over each of `SHARED`, and what to keep."""

    def __init__(self, kind: str, folders: list[str], keep: list[str]) -> None:
        self.kind = kind
        self.folders = folders
        self.keep = keep


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
    try:
        places = [place for place in SHARED if os.path.isdir(place) and not os.path.islink(place)]
        kept = {place: outermost(plan.keep, place) for place in places}
        for path in (*plan.folders, *(one for each in kept.values() for one in each)):
            opened[path] = os.open(path, os.O_PATH | os.O_CLOEXEC)
        for place, folder in zip(SHARED, plan.folders, strict=True):
            if place in places:
                _lay(libc, opened[folder], place, made)
                for path in kept[place]:
                    _lay(libc, opened[path], path, made)
    except OSError:
        for path in reversed(made):
            libc.umount2(path.encode(), _DETACH)
        raise
    finally:
        for handle in opened.values():
            os.close(handle)


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
