"""What a power cut does to a Delta log on a folder, and what is done about it.

deltalake gives a commit its name when its bytes are complete, and syncs nothing. So a process that
is killed leaves whole files only; but after a power cut the last ones may be empty or cut off. A
commit of ours is acknowledged when it, and all before it, are durable: a torn one was never
acknowledged, nor was any that follows it. It is removed, with those that follow it; a torn
checkpoint is removed too: what it repeats is still there.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from holdfast.storage.folder import translated
from holdfast.system import logs

log: Final = logs.get(__name__)

# How many actions a commit has, in its own words: one that is torn may have fewer.
ACTIONS: Final = "holdfast_actions"
_LAST: Final = "_last_checkpoint"
# deltalake passes over names that begin with a dot.
_LOCK: Final = ".holdfast-mending"
_COMMIT: Final = re.compile(r"([0-9]{20})\.json")
_CHECKPOINT: Final = re.compile(r"([0-9]{20})\.checkpoint(?:\.[0-9.a-f-]+)?\.parquet")
_PARQUET: Final = b"PAR1"


def mend(folder: Path) -> list[str]:
    """Remove what a power cut has torn at the log's end; the names of what was removed."""
    with translated(f"looking at {folder}"):
        torn = list(_torn(folder))
        if not torn:
            return []
        removed = []
        with _alone(folder):
            # Somebody may have been here before us, and a new commit may have the name by now: one
            # that is visible is torn only if it is from before the power cut.
            for name in _torn(folder):
                (folder / name).unlink(missing_ok=True)
                removed.append(name)
            _sync(folder)
        log.warning("removed what a power cut has torn", folder=str(folder), names=removed)
        return removed


def make_durable(folder: Path, confirmed: int | None, version: int) -> int:
    """All commits up to this version are durable when this returns; it returns the version.
    `confirmed`: those up to it are known to be; None: those since the last checkpoint are looked
    at."""
    with translated(f"syncing {folder}"):
        if confirmed is None:
            commits, checkpoints = _listed(folder)
            last = max((number for number in checkpoints if number <= version), default=-1)
            names = [commits[number] for number in commits if last <= number <= version]
            names += [checkpoints[last], _LAST] if last >= 0 else []
        else:
            names = [f"{number:020}.json" for number in range(confirmed + 1, version + 1)]
        for name in names:
            _sync(folder / name)
        _sync(folder)
        return version


def make_checkpoint_durable(folder: Path, version: int) -> None:
    """The checkpoint of this version is durable when this returns."""
    with translated(f"syncing {folder}"):
        for name in (f"{version:020}.checkpoint.parquet", _LAST):
            _sync(folder / name)
        _sync(folder)


def _torn(folder: Path) -> Iterator[str]:
    """The names to remove, in the order in which they may be."""
    commits, checkpoints = _listed(folder)
    whole = max((n for n, name in checkpoints.items() if _is_parquet(folder / name)), default=-1)
    broken = [name for number, name in sorted(checkpoints.items()) if number > whole]
    if broken:
        yield _LAST  # it would name what is not there
        yield from broken
    first = min(
        (
            number
            for number in commits
            if number > whole and not _is_commit(folder / commits[number])
        ),
        default=None,
    )
    if first is not None:
        yield from (commits[number] for number in sorted(commits, reverse=True) if number >= first)


def _listed(folder: Path) -> tuple[dict[int, str], dict[int, str]]:
    """Commits and checkpoints by their versions."""
    commits, checkpoints = {}, {}
    try:
        names = os.listdir(folder)  # noqa: PTH208 - names are all that is needed of thousands
    except FileNotFoundError:
        return {}, {}
    for name in names:
        if found := _COMMIT.fullmatch(name):
            commits[int(found[1])] = name
        elif found := _CHECKPOINT.fullmatch(name):
            checkpoints[int(found[1])] = name
    return commits, checkpoints


def _is_parquet(path: Path) -> bool:
    """Whether a Parquet file has its end, and its end says where its beginning is."""
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size < 12 or file.read(4) != _PARQUET:
                return False
            file.seek(size - 8)
            length, magic = int.from_bytes(file.read(4), "little"), file.read(4)
            return magic == _PARQUET and length <= size - 12
    except FileNotFoundError:
        return True  # it was removed meanwhile, as an old one is


def _is_commit(path: Path) -> bool:
    """Whether a commit is whole."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return True
    lines = data.splitlines()
    try:
        actions = [json.loads(line) for line in lines]
    except ValueError:
        return False
    told = [action["commitInfo"].get(ACTIONS) for action in actions if "commitInfo" in action]
    return bool(actions) and all(count in (None, len(actions)) for count in told)


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    handle = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _sync(path: Path) -> None:
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return  # removed by whoever tidies the log: it is older than a durable checkpoint
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
