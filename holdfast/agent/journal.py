"""The agent's journal on disk.

    header   magic, version, salt, crc32
    batch    magic, offset, length, chain, crc32 of these; then a JSON list of entries
    ...

A batch is what one fsync made durable. `chain` is the checksum of everything before it and of its
entries, seeded by the file's random salt. So bytes of another journal never pass, and no batch
can be missing from the middle.

A crash of the machine may leave the last batch incomplete: its fsync had not returned, so nobody
has acted on it, and it is cut off. If a good batch follows a bad one, the bad one had been
durable: that is damage, and is refused. What cannot be told apart is damage to the very last
batch; the supervisor then finds a process that the journal does not know, and ends it.

Compaction writes the shortest journal of the same state beside the old one and renames it.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NamedTuple
from zlib import crc32

from holdfast.agent.events import (
    Accepted,
    Entry,
    Exited,
    Forgotten,
    GpuFaulty,
    Held,
    Identity,
    Key,
    Moved,
    Slots,
    Started,
    Stopping,
    TermSeen,
)
from holdfast.agent.ports import JournalFile, NotReplaced
from holdfast.system.disk import NO_ROOM, sync_folder
from holdfast.system.durable import write_all
from holdfast.wire.errors import Corrupt, DiskFailed, Full
from holdfast.wire.orders import StartWorker
from holdfast.wire.plain import known_fields, plain_of
from holdfast.wire.probes import Probe, ProbeKind
from holdfast.wire.reports import Exit, ExitKind
from holdfast.wire.resources import Resources

# A batch of journal entries: a snapshot of a full agent fits.
JOURNAL_BATCH_BYTES_MAX: Final = 64 * 1024 * 1024
# The journal is rewritten when it has grown by so much, and to at least twice what is needed.
JOURNAL_GROWTH_BYTES: Final = 1024 * 1024

NAME: Final = "journal"

_MAGIC: Final = b"HFAGENT\n"
_VERSION: Final = 1
_HEADER: Final = struct.Struct("!8sI8s")
_BATCH_MAGIC: Final = b"\xf5HFJ"
_BATCH: Final = struct.Struct("!4sQII")
_CRC: Final = struct.Struct("!I")
HEADER_BYTES: Final = _HEADER.size + _CRC.size
HEAD_BYTES: Final = _BATCH.size + _CRC.size


Record = dict[str, Any]  # an entry of a kind that this version does not know


class Recovery(NamedTuple):
    """What a journal gave back; `cut_bytes` of a torn tail are not in it. `unknown`: what a newer
    version has written, and only that can read; the journal keeps it."""

    entries: list[Entry]
    cut_bytes: int
    unknown: list[Record]


class Journal:
    """An open journal. Nobody else writes the file: the agent holds its folder's lock."""

    def __init__(
        self,
        file: JournalFile,
        end: int,
        chain: int,
        unknown: Sequence[Record] = (),
        growth_bytes: int = JOURNAL_GROWTH_BYTES,
    ) -> None:
        self._file = file
        self._unknown = tuple(unknown)
        self._end = end
        self._chain = chain
        self._growth_bytes = growth_bytes
        self._compact_at = max(2 * end, growth_bytes)
        self._failed = False

    @classmethod
    def open(cls, folder: Path) -> tuple[Journal, Recovery]:
        """The journal of this folder and what it holds, as `recover` gives it."""
        return cls.recover(DiskFile(folder / NAME))

    @classmethod
    def recover(
        cls, file: JournalFile, growth_bytes: int = JOURNAL_GROWTH_BYTES
    ) -> tuple[Journal, Recovery]:
        """The journal in this file and what it holds; a new one if there is none.

        `Corrupt` if it is damaged. A torn tail is cut off, and what is given back is durable: also
        what a killed agent had written and not synced.
        """
        raw = file.read()
        if raw is None:
            raw = written([], file.salt())
            file.replace(raw)
        try:
            end, chain, entries, unknown = _read(file.path, raw)
            file.keep(end)
        except BaseException:
            file.close()
            raise
        journal = cls(file, end, chain, unknown, growth_bytes)
        return journal, Recovery(entries, len(raw) - end, unknown)

    @property
    def size_bytes(self) -> int:
        return self._end

    @property
    def wants_compaction(self) -> bool:
        return self._end >= self._compact_at

    def append(self, entries: Sequence[Entry]) -> None:
        """Make these durable, all or none.

        `Full`: there is no room and nothing was written; try again. `DiskFailed`: what is on the
        disk is not known; only a restart finds out.
        """
        if self._failed:
            raise DiskFailed("the journal has failed before", fix="start the agent again")
        data, chain = _batch(entries, self._end, self._chain)
        try:
            self._file.write(data, self._end)
            self._file.sync()
        except OSError as error:
            if self._given_back(error):
                raise self._full(error) from error
            raise self._disk_failed(error) from error
        self._end += len(data)
        self._chain = chain

    def _given_back(self, error: OSError) -> bool:
        """After a failed write: nothing of it may stay. Sound only when it failed for room."""
        if error.errno in NO_ROOM:
            with suppress(OSError):
                self._file.keep(self._end)
                return True
        return False

    def compact(self, entries: Iterable[Entry]) -> None:
        """Replace all that was appended by `entries`, which give the same state, and by what only
        a newer version can read.

        `Full`: there is no room for both; the journal is as it was and goes on, and asks for it
        again when it has grown. `DiskFailed` as for `append`.
        """
        held = (*self._unknown, *entries)
        data = written([held] if held else [], self._file.salt())
        try:
            self._file.replace(data)
        except NotReplaced as failed:
            if failed.error.errno not in NO_ROOM:
                raise self._disk_failed(failed.error) from failed
            self._compact_at = self._end + self._growth_bytes
            raise self._full(failed.error) from failed
        except OSError as error:  # it may have been replaced, or not
            raise self._disk_failed(error) from error
        self._end, self._chain, *_ = _read(self._file.path, data)
        self._compact_at = max(2 * self._end, self._end + self._growth_bytes)

    def _full(self, error: OSError) -> Full:
        folder = self._file.path.parent
        return Full(
            f"no room for the agent's journal in {folder}",
            why=str(error),
            fix=f"make room: df {folder}",
        )

    def _disk_failed(self, error: OSError) -> DiskFailed:
        self._failed = True
        return DiskFailed(
            f"the agent's journal in {self._file.path.parent} cannot be written",
            why=str(error),
            fix="look at the disk, then start the agent again; its workers go on meanwhile",
        )

    def close(self) -> None:
        self._file.close()


class DiskFile:
    """A journal's bytes in a file of the machine. It is opened by `read` or `replace`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._handle = -1

    @property
    def path(self) -> Path:
        return self._path

    def salt(self) -> bytes:
        return os.urandom(8)

    def read(self) -> bytes | None:
        with suppress(FileNotFoundError):
            _unfinished(self._path).unlink()
        if not self._path.exists():
            return None
        raw = self._path.read_bytes()
        self._handle = os.open(self._path, os.O_RDWR)
        return raw

    def keep(self, size: int) -> None:
        if os.fstat(self._handle).st_size > size:
            os.ftruncate(self._handle, size)
        os.fsync(self._handle)
        sync_folder(self._path.parent)

    def write(self, data: bytes, at: int) -> None:
        write_all(self._handle, data, at)

    def sync(self) -> None:
        os.fdatasync(self._handle)

    def replace(self, data: bytes) -> None:
        handle = _create(self._path, data)
        self.close()
        self._handle = handle

    def close(self) -> None:
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1


def written(batches: Iterable[Sequence[Entry | Record]], salt: bytes) -> bytes:
    """The bytes of a journal to which these batches were appended, one after the other."""
    head = _HEADER.pack(_MAGIC, _VERSION, salt)
    data, chain = bytearray(head + _CRC.pack(crc32(head))), crc32(head)
    for entries in batches:
        batch, chain = _batch(entries, len(data), chain)
        data += batch
    return bytes(data)


def recovered(path: Path, raw: bytes) -> Recovery:
    """What the bytes of a journal give back; `Corrupt`, with the name of `path`, if damaged."""
    end, _, entries, unknown = _read(path, raw)
    return Recovery(entries, len(raw) - end, unknown)


def _unfinished(path: Path) -> Path:
    return path.with_name(path.name + ".tmp")


def _create(path: Path, data: bytes) -> int:
    """A journal with these bytes, open: after a crash it is there whole, or the old one is.

    `NotReplaced`: the old one is. Any other `OSError`: only a restart finds out which.
    """
    unfinished = _unfinished(path)
    try:
        handle = os.open(unfinished, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
    except OSError as error:
        raise NotReplaced(error) from error
    try:
        try:
            write_all(handle, data, 0)
            os.fsync(handle)
            unfinished.rename(path)
        except OSError as error:
            with suppress(OSError):
                unfinished.unlink()  # what it took is wanted for the old one
            raise NotReplaced(error) from error
        sync_folder(path.parent)
    except BaseException:
        os.close(handle)
        raise
    return handle


def _batch(entries: Sequence[Entry | Record], offset: int, chain: int) -> tuple[bytes, int]:
    records = [entry if isinstance(entry, dict) else encode(entry) for entry in entries]
    payload = json.dumps(records, separators=(",", ":")).encode()
    if len(payload) > JOURNAL_BATCH_BYTES_MAX:
        raise DiskFailed(f"a batch of {len(payload)} bytes is more than a journal holds")
    after = crc32(payload, chain)
    head = _BATCH.pack(_BATCH_MAGIC, offset, len(payload), after)
    return head + _CRC.pack(crc32(head, chain)) + payload, after


def _read(path: Path, raw: bytes) -> tuple[int, int, list[Entry], list[Record]]:
    """Where the good part ends, its chain, its entries, and those of kinds that are not known."""
    head = raw[: _HEADER.size]
    if len(raw) < HEADER_BYTES or crc32(head) != _CRC.unpack_from(raw, _HEADER.size)[0]:
        # The header is durable before the file has its name: it is never torn.
        raise _damaged(path, 0, "its header is not whole")
    magic, version, _ = _HEADER.unpack(head)
    if magic != _MAGIC or version != _VERSION:
        raise _damaged(path, 0, f"it has format {version}, and this program knows {_VERSION}")
    end, chain, entries, unknown = HEADER_BYTES, crc32(head), list[Entry](), list[Record]()
    while end < len(raw):
        payload = _payload(raw, end, chain)
        if payload is None:
            _refuse_damage(path, raw, end)
            break
        for record in json.loads(payload):
            entry = decode(record)
            if entry is None:
                unknown.append(record)
            else:
                entries.append(entry)
        chain = crc32(payload, chain)
        end += HEAD_BYTES + len(payload)
    return end, chain, entries, unknown


def _payload(raw: bytes, at: int, chain: int) -> bytes | None:
    """The entries of the batch at `at`; None: there is no good one."""
    if len(raw) - at < HEAD_BYTES:
        return None
    magic, offset, length, after = _BATCH.unpack_from(raw, at)
    sealed = crc32(raw[at : at + _BATCH.size], chain) == _CRC.unpack_from(raw, at + _BATCH.size)[0]
    if magic != _BATCH_MAGIC or offset != at or not sealed:
        return None
    payload = raw[at + HEAD_BYTES : at + HEAD_BYTES + length]
    return payload if len(payload) == length and crc32(payload, chain) == after else None


def _refuse_damage(path: Path, raw: bytes, bad: int) -> None:
    """`Corrupt` if anything after the bad batch proves that it had been durable.

    The next batch's head is sealed with a chain that only the bad batch's good form gives; but its
    magic and its own offset standing where they say is proof enough, and errs on the safe side.
    """
    at = raw.find(_BATCH_MAGIC, bad + 1)
    while 0 <= at <= len(raw) - _BATCH.size:
        if _BATCH.unpack_from(raw, at)[1] == at:
            raise _damaged(path, bad, f"a later batch, at byte {at}, is there")
        at = raw.find(_BATCH_MAGIC, at + 1)


def _damaged(path: Path, at: int, why: str) -> Corrupt:
    return Corrupt(
        f"{path} is damaged at byte {at}",
        why=why,
        fix="end the workers of this machine, then move the file away and start the agent again",
    )


# --- entries --------------------------------------------------------------------------------------
# Journal entries as JSON values, in both directions: their fields by their names, as everywhere
# (`wire.values`), and `kind`. With the standard library alone, since the simulator runs it on PyPy.
#
# A newer agent may have written the journal: a field that is not known is passed over, and an entry
# of a kind that is not known is none (the journal keeps it). An older one may have: a field that is
# missing has its default.


_KINDS: Final[Mapping[str, Callable[..., Entry]]] = {
    "term": TermSeen,
    "accepted": Accepted,
    "started": Started,
    "held": Held,
    "moved": Moved,
    "stopping": Stopping,
    "exited": Exited,
    "forgotten": Forgotten,
    "gpu-faulty": GpuFaulty,
}
_NAMES: Final = {kind: name for name, kind in _KINDS.items()}


def encode(entry: Entry) -> dict[str, Any]:
    """The entry as plain values; `kind` says which it is."""
    if isinstance(entry, Accepted):
        # Values of secrets stay in memory: a journal outlives the worker, and is copied.
        entry = replace(entry, order=replace(entry.order, secrets={}))
    plain = {"kind": _NAMES[type(entry)], **plain_of(entry)}
    if isinstance(entry, Accepted | Moved):
        plain["slots"] = entry.slots._asdict()
    if isinstance(entry, Exited):
        plain |= {"exit": entry.exit.kind.value, "detail": entry.exit.detail}
    return plain


def decode(record: Mapping[str, Any]) -> Entry | None:
    """The entry that `encode` was given; None: it is of a kind that this version does not know."""
    try:
        make = _KINDS.get(record["kind"])
        if make is None:
            return None
        plain = known_fields(make, record)  # type: ignore[arg-type]
        for name, read in _READERS.items():
            if name in plain:
                plain[name] = read(plain[name])
        if make is Exited:
            plain["exit"] = Exit(ExitKind(record["exit"]), record["detail"])
        return make(**plain)
    except (KeyError, TypeError, ValueError) as error:
        raise Corrupt(
            f"the journal holds an entry that is not one: {dict(record)!r:.200}",
            why=f"{type(error).__name__}: {error}",
            fix="use the version of holdfast that wrote it",
        ) from error


def _order(plain: Mapping[str, Any]) -> StartWorker:
    held = known_fields(StartWorker, plain)
    held["resources"] = Resources(**known_fields(Resources, held["resources"]))
    for name in ("command", "requirements"):  # an older journal has not the second
        held[name] = tuple(held.get(name, ()))
    for name in ("ready", "live"):  # an older journal has neither
        held[name] = _probe(held.get(name))
    return StartWorker(**held)


def _probe(plain: Mapping[str, Any] | None) -> Probe | None:
    if plain is None:
        return None
    held = known_fields(Probe, plain)
    command = tuple(held.get("command", ()))
    return Probe(**held | {"kind": ProbeKind(held["kind"]), "command": command})


def _slots(plain: Mapping[str, Any]) -> Slots:
    return Slots(**{name: tuple(held) for name, held in known_fields(Slots, plain).items()})


_READERS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "key": lambda row: Key(*row[:2]),
    "identity": lambda row: Identity(*row[:3]),
    "order": _order,
    "slots": _slots,
}
