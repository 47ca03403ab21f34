"""How much memory a process and all that it has started hold, as the system tells it.

What counts is what was touched and no file could give back, not what was reserved: stacks of
threads and arenas are reserved by the gigabyte and hardly used. Part of the shim, so it imports as
little as that does.
"""

# pathlib is a third of what a shim would load.
# ruff: noqa: PTH123, PTH208
from __future__ import annotations

import os
from contextlib import suppress


def below(top: int) -> list[int]:
    """All whose parent is this process, or one of them."""
    found, todo = [], [top]
    while todo:
        children = _children(todo.pop())
        if children is None:
            return _below_by_table(top)
        found += children
        todo += children
    return found


def bytes_of(pids: list[int], enough_bytes: int = 0) -> int:
    """How much these hold together. A page that several share counts in parts for each.

    Unless it is more than `enough_bytes` it may be told too high, which is much quicker: pages that
    are shared then count in full."""
    held = sum(map(_held_bytes, pids))
    return held if held <= enough_bytes else sum(map(_share_bytes, pids))


def counted(path: str, *names: str) -> int:
    """The sum of these counters of a file of the system, one a line; without a file: 0."""
    found = 0
    with suppress(OSError), open(path) as file:
        for line in file:
            words = line.split()
            if words[0] in names:
                found += int(words[1])
    return found


def _held_bytes(pid: int) -> int:
    return 1024 * counted(f"/proc/{pid}/status", "RssAnon:", "RssShmem:")


def _share_bytes(pid: int) -> int:
    share = 1024 * counted(f"/proc/{pid}/smaps_rollup", "Pss_Anon:", "Pss_Shmem:")
    return share or _held_bytes(pid)  # an older system, or a process that lets nobody look


def _children(pid: int) -> list[int] | None:
    """Those of each of its threads; None: this system does not tell them."""
    found: list[int] = []
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return []  # it has ended
    for thread in threads:
        try:
            with open(f"/proc/{pid}/task/{thread}/children") as file:
                found += map(int, file.read().split())
        except OSError:
            if os.path.exists(f"/proc/{pid}/task/{thread}/stat"):  # noqa: PTH110
                return None
    return found


def _below_by_table(top: int) -> list[int]:
    """The same from the whole process table, which takes longer."""
    parents: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
                parents.setdefault(int(fields[1]), []).append(int(name))
    found, todo = [], [top]
    while todo:
        children = parents.get(todo.pop(), [])
        found += children
        todo += children
    return found
