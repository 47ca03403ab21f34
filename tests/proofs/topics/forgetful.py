"""The broker on a disk that keeps only what was synced: it runs as it is, and its syncs are noted.

`python -m tests.proofs.topics.forgetful NOTES --data DIR --listen HOST:PORT`

A note says how far a file was written when it was synced, and is there after `kill -9`. `forget`
then leaves in the folder what a machine without power would have: of the journal what was synced,
torn behind that; of logs what was synced, or all; and the mark as it was synced last.
"""

from __future__ import annotations

import os
import random
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from holdfast.topics.broker.__main__ import main
from holdfast.topics.broker.core import commands
from holdfast.topics.broker.disk import folder as files
from holdfast.topics.broker.disk import store
from holdfast.topics.broker.disk.journal import (
    AHEAD_BYTES,
    BrokerJournal,
    JournalReader,
    JournalTail,
    encode_entry,
)
from tests.proofs.crash.tails import TEARS, Tail

# The tears that leave a part of the group that was being written: they say most.
_OF_A_GROUP: Final = ("_cut", "_zeros", "_flipped")


class SyncNotes:
    """What the broker writes, and what it syncs."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        self._handle = os.open(folder / "synced", flags, 0o600)
        self._ends: dict[int, int] = {}  # by inode: zeros written ahead are nobody's promise
        self._pwrite = os.pwrite

    def pwrite(self, handle: int, data: Any, offset: int) -> int:
        written = self._pwrite(handle, data, offset)
        ahead = AHEAD_BYTES if written > AHEAD_BYTES else 0
        self._ends[os.fstat(handle).st_ino] = offset + written - ahead
        return written

    def noting(self, plain: Callable[[int], None]) -> Callable[[Any], None]:
        def sync(given: Any) -> None:
            number = given if isinstance(given, int) else given.fileno()
            found = os.fstat(number)
            path = Path(f"/proc/self/fd/{number}").readlink()
            is_journal = path.name.startswith("journal-")
            end = self._ends.get(found.st_ino, found.st_size) if is_journal else found.st_size
            plain(number)
            if path.name == files.DURABLE:
                shutil.copyfile(path, self._folder / "mark.tmp")
                (self._folder / "mark.tmp").replace(self._folder / "mark")
            os.write(self._handle, f"{path}\t{end}\n".encode())

        return sync


def synced(notes: Path) -> dict[Path, int]:
    """How far each file was written when it was synced last."""
    found: dict[Path, int] = {}
    for line in (notes / "synced").read_text().splitlines():
        path, _, size = line.rpartition("\t")
        if path:
            found[Path(path)] = int(size)
    return found


def forget(data: Path, notes: Path, draw: random.Random) -> str:
    """Take away what a dead broker had not synced; how the journal's tail was torn."""
    known = synced(notes)
    segments = files.numbered(data, "journal")
    if not segments or segments[-1][1] not in known:
        return ""  # it was just being made
    path = segments[-1][1]
    raw = path.read_bytes()
    durable = min(known[path], len(raw))
    if len(raw.rstrip(b"\0")) <= durable:
        raw = _with_a_group_begun(path, raw[:durable])
    tail = Tail(path, raw, durable, max(durable, len(raw.rstrip(b"\0"))))
    how = draw.choice((*TEARS, *(one for one in TEARS if one.__name__ in _OF_A_GROUP)))
    path.write_bytes(how(tail, draw))
    if (notes / "mark").exists():
        shutil.copyfile(notes / "mark", data / files.DURABLE)
    for log in (data / files.LOGS).glob("*/*/*.log"):
        if draw.random() < 0.5:
            os.truncate(log, min(known.get(log, 0), log.stat().st_size))
    return how.__name__.lstrip("_")


def _with_a_group_begun(path: Path, raw: bytes) -> bytes:
    """The journal as it was, and the group that came next: it changes nothing, were it whole."""
    path.write_bytes(raw)
    reader = JournalReader(path)
    list(reader)
    tail = JournalTail(path, reader.first, reader.salt, reader.end, reader.chain, reader.last, 0)
    journal = BrokerJournal(tail)
    journal.append([encode_entry(0, commands.encode(commands.ForgetIdle()))] * 20)
    journal.finish()
    journal.close()
    return path.read_bytes()


if __name__ == "__main__":
    notes = SyncNotes(Path(sys.argv.pop(1)))
    # Checkpoints and new segments of the journal often enough to be hit by kills.
    setattr(store, "CHECKPOINT_ENTRIES", 800)  # noqa: B010 - it is final for everybody else
    setattr(store, "JOURNAL_SEGMENT_BYTES", 100_000)  # noqa: B010
    setattr(os, "pwrite", notes.pwrite)  # noqa: B010 - the real one takes fewer kinds of bytes
    for name in ("fdatasync", "fsync"):
        setattr(os, name, notes.noting(getattr(os, name)))
    sys.exit(main())
