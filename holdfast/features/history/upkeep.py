"""Keeping a history quick: small files are merged, old commits and old files removed.

What is due is decided by functions without I/O; `tend` does it. It may be killed at any moment, and
run in several processes at once: a merge is one commit, which fails where another one has replaced
any of its files.
"""

from __future__ import annotations

import bisect
import datetime
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from holdfast.features.history.files import FILE_BYTES_TARGET, is_small, scan_files, write_files
from holdfast.features.history.lake import Lake, replace_files
from holdfast.features.history.log import SNAPSHOT_S_MAX, LakeLog
from holdfast.features.history.places import LOG
from holdfast.system import logs
from holdfast.wire.errors import Missing, Usage

log: Final = logs.get(__name__)

MERGE_ROWS_MAX: Final = 2_000_000
# Files are merged when there are so many of about one size: each row is then written once for each
# of the few sizes, and a day has at most some dozens of files.
MERGE_FILES: Final = 8
MERGE_FILES_MAX: Final = 64
SIZE_BYTES_MIN: Final = 256 << 10
# A day to which nothing was added for so long is merged whole.
SETTLED_S: Final = 3_600.0
# Old commits: what is younger stays whatever happens, since a process that stood still may believe
# that nothing followed its version; beyond that as many as a folder lists in some milliseconds.
LOG_S_MIN: Final = 2 * SNAPSHOT_S_MAX
LOG_S_MAX: Final = 7 * 86_400.0
LOG_COMMITS_MAX: Final = 2_000
# Files that no version needs any more; also those of a writer that has not committed yet.
VACUUM_S: Final = 7 * 86_400.0
VACUUM_S_MIN: Final = 86_400.0

_COMMIT: Final = re.compile(r"([0-9]{20})\.json")
_CHECKPOINT: Final = re.compile(r"([0-9]{20})\.checkpoint.*\.parquet")


@dataclass(frozen=True, slots=True)
class HistoryFile:
    """A file of a version, as the log knows it."""

    path: str
    size_bytes: int
    modified_ms: int
    rows: int
    day: datetime.date


@dataclass(frozen=True, slots=True)
class Tended:
    """What was done: files that were merged, and into how many; commits that were removed."""

    merged: int = 0
    into: int = 0
    removed_commits: int = 0


# --- deciding -------------------------------------------------------------------------------------


def merges(files: Iterable[HistoryFile], now_ms: int) -> list[list[HistoryFile]]:
    """Which files are to become one each, days of many files first."""
    days: dict[datetime.date, list[HistoryFile]] = {}
    for file in files:
        if is_small(file.size_bytes) and file.rows < MERGE_ROWS_MAX // 2:
            days.setdefault(file.day, []).append(file)
    due: list[list[HistoryFile]] = []
    for found in sorted(days.values(), key=len, reverse=True):
        found.sort(key=lambda file: (file.modified_ms, file.path))
        if now_ms - found[-1].modified_ms >= SETTLED_S * 1e3:
            due += [group for group in _packed(found) if len(group) > 1]
            continue
        sizes: dict[int, list[HistoryFile]] = {}
        for file in found:
            sizes.setdefault(_size_class(file.size_bytes), []).append(file)
        for alike in sizes.values():
            due += [group for group in _packed(alike) if len(group) >= MERGE_FILES]
    return due


def _size_class(size_bytes: int) -> int:
    """0 for the smallest; each next one is of files several times as large."""
    place = 0
    while size_bytes >= SIZE_BYTES_MIN:
        size_bytes //= MERGE_FILES
        place += 1
    return place


def _packed(files: Sequence[HistoryFile]) -> Iterator[list[HistoryFile]]:
    """Groups that become one file each."""
    group: list[HistoryFile] = []
    size = rows = 0
    for file in files:
        if group and (
            len(group) == MERGE_FILES_MAX
            or size + file.size_bytes > FILE_BYTES_TARGET
            or rows + file.rows > MERGE_ROWS_MAX
        ):
            yield group
            group, size, rows = [], 0, 0
        group.append(file)
        size, rows = size + file.size_bytes, rows + file.rows
    if group:
        yield group


def removable(
    commits: Mapping[int, float], checkpoints: Mapping[int, float], kept: Collection[int]
) -> tuple[list[int], list[int]]:
    """Which commits and which checkpoints nobody needs, each given with its age in seconds. What
    the versions of late, and the kept ones, are read from stays: the checkpoint before each of
    them, and what lies between."""
    if not checkpoints:
        return [], []
    newest = max(*commits, *checkpoints)

    def is_old(version: int, age_s: float) -> bool:
        enough = age_s > LOG_S_MAX or version <= newest - LOG_COMMITS_MAX
        return version != newest and age_s > LOG_S_MIN and enough

    bases = sorted(checkpoints)
    needed: set[int] = set()
    read_from: set[int] = {bases[-1]}
    for version in {*kept, *(one for one, age_s in commits.items() if not is_old(one, age_s))}:
        place = bisect.bisect_right(bases, version) - 1
        base = bases[place] if place >= 0 else -1
        read_from.add(base)
        needed.update(range(base, version + 1))
    gone = [one for one, age_s in commits.items() if is_old(one, age_s) and one not in needed]
    unread = [
        one for one, age_s in checkpoints.items() if is_old(one, age_s) and one not in read_from
    ]
    return sorted(gone), sorted(unread)


# --- doing ----------------------------------------------------------------------------------------


def tend(lake: Lake, *, merges_max: int = 100) -> Tended:
    """Merge what is due, and remove old commits. Often: every minute, or every hundred commits."""
    at = lake.log()
    now_ms = lake.clock.wall_ms()
    merged = into = 0
    for group in merges(_listed(at), now_ms)[:merges_max]:
        made = _merge(lake, at, group)
        merged, into = merged + (len(group) if made else 0), into + made
    if merged:
        at.checkpoint()
    return Tended(merged, into, _trim(lake))


def vacuum(lake: Lake, older_than_s: float = VACUUM_S) -> int:
    """Remove the files that no version of the last days needs, nor a kept one; how many. It lists
    the whole history: once a day is often enough. Versions that are older cannot be read then."""
    if older_than_s < VACUUM_S_MIN:
        raise Usage(
            f"files cannot be removed after {older_than_s:g} s",
            why="a reader may still be at them, and a writer may not have committed them yet",
            fix=f"give at least {VACUUM_S_MIN:g} s",
        )
    return len(lake.log().vacuum(older_than_s, lake.kept()))


def _listed(at: LakeLog) -> list[HistoryFile]:
    names = ("path", "size_bytes", "modification_time", "num_records", "day")
    return [HistoryFile(*row) for row in at.files.select(names).iter_rows() if None not in row]


def _merge(lake: Lake, at: LakeLog, group: Sequence[HistoryFile]) -> int:
    """How many files these have become; 0: others have replaced some of them."""
    paths = [file.path for file in group]
    try:
        rows = lake.collect(scan_files(lake.place, lake.table, paths))
    except Missing:  # merged by another one, and vacuumed
        at.refresh()
        return 0
    added = write_files(lake.place, lake.table, rows, lake.clock, is_new=False)
    if not replace_files(lake, at, paths, added, is_new=False):
        return 0
    return len(added)


def _trim(lake: Lake) -> int:
    """Remove old commits, the oldest first: what is left is read without those that are gone."""
    now_s = lake.clock.wall_ms() / 1e3
    commits: dict[int, float] = {}
    checkpoints: dict[int, float] = {}
    commit_keys: dict[int, str] = {}
    checkpoint_keys: dict[int, list[str]] = {}
    for blob in lake.place.blobs.list(f"{lake.place.root}/{LOG}"):
        name = blob.key.rpartition("/")[2]
        if match := _COMMIT.fullmatch(name):
            commits[int(match[1])] = now_s - blob.modified_s
            commit_keys[int(match[1])] = blob.key
        elif match := _CHECKPOINT.fullmatch(name):
            checkpoints[int(match[1])] = now_s - blob.modified_s
            checkpoint_keys.setdefault(int(match[1]), []).append(blob.key)
    old_commits, old_checkpoints = removable(commits, checkpoints, lake.kept())
    gone = [commit_keys[number] for number in old_commits]
    for key in gone + [key for number in old_checkpoints for key in checkpoint_keys[number]]:
        lake.place.blobs.delete(key)
    return len(old_commits)
