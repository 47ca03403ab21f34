"""The broker's folder: the names in it.

    lock                     the number of the process that holds the folder
    cluster                  the cluster's id, made once
    durable                  how far the journal is known to be on disk (`journal`)
    journal-<number>         a segment of the journal that begins with this entry
    snapshot-<number>        the whole state as it was after this entry
    logs/<topic id>/<partition>/<offset>.log, .index
                             a partition's records from this offset on, and where to find them
    *.tmp                    unfinished; the next start removes it

Numbers are 16 hexadecimal digits, offsets 20 decimal ones, so names sort as they do.
"""

from __future__ import annotations

import fcntl
import os
import re
import secrets
from base64 import urlsafe_b64encode
from contextlib import suppress
from pathlib import Path
from typing import Final

from holdfast.system import disk
from holdfast.wire.errors import Corrupt, Full, HoldfastError, Occupied, Refused

LOCK: Final = "lock"
CLUSTER: Final = "cluster"
DURABLE: Final = "durable"
LOGS: Final = "logs"
_NUMBERED: Final = re.compile(r"(journal|snapshot)-([0-9a-f]{16})")


def journal_path(folder: Path, first: int) -> Path:
    return folder / f"journal-{first:016x}"


def snapshot_path(folder: Path, last: int) -> Path:
    return folder / f"snapshot-{last:016x}"


def numbered(folder: Path, kind: str) -> list[tuple[int, Path]]:
    """The journal's segments, or the snapshots, by their numbers."""
    found = []
    for path in folder.iterdir():
        match = _NUMBERED.fullmatch(path.name)
        if match and match[1] == kind:
            found.append((int(match[2], 16), path))
    return sorted(found)


def partition_folder(folder: Path, topic_id: bytes, partition: int) -> Path:
    return folder / LOGS / topic_id.hex() / str(partition)


def take_lock(folder: Path) -> int:
    """Hold the folder for this process; `Occupied` if another one does. It is the folder itself
    that is locked: a file in it could be removed, and the next process lock another one."""
    path = folder / LOCK
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        holder = "unknown"
        with suppress(OSError):
            holder = path.read_bytes()[:32].decode("ascii", "replace").strip() or holder
        raise Occupied(
            f"{folder} is in use by process {holder}",
            why="one folder has one broker",
            fix=f"end process {holder}, or give this broker another folder",
        ) from None
    try:
        _write_holder(path)
    except OSError as error:
        if error.errno not in disk.NO_ROOM:
            os.close(handle)
            raise
    return handle


def _write_holder(path: Path) -> None:
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        # Padded instead of cut and rewritten: it needs no new space on a full disk.
        os.pwrite(file, f"{os.getpid():<20}\n".encode(), 0)
    finally:
        os.close(file)


def cluster_id(folder: Path) -> str:
    """The id of the cluster, made once: 22 characters, as Kafka's."""
    path = folder / CLUSTER
    if not path.exists():
        made = urlsafe_b64encode(secrets.token_bytes(16)).rstrip(b"=")
        disk.replace_durably(path, made + b"\n")
    return path.read_text().strip()


def remove_unfinished(folder: Path) -> None:
    for path in folder.glob("*.tmp"):
        path.unlink(missing_ok=True)


def corrupt(path: Path, at: int, why: str) -> Corrupt:
    """The refusal of a damaged file: which, where, why, and what to do."""
    # A partition's files lie three folders below the broker's.
    top = path.parents[3] if path.suffix == ".log" else path.parent
    return Corrupt(
        f"{path} is damaged at byte {at}",
        why=why,
        fix=f"restore a backup, or save what checks: holdfast topics salvage {top} NEWDIR",
    )


def explain(error: OSError, folder: Path) -> HoldfastError:
    """An operating system's error while a folder is opened, as one of ours."""
    where = error.filename or folder
    if error.errno in disk.NO_ROOM:
        return Full(
            f"no room on the disk for {where}", why=str(error), fix=f"make room: df {folder}"
        )
    return Refused(
        f"{where} cannot be used", why=str(error), fix="check who owns the folder, and its disk"
    )
