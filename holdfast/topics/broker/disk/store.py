"""A broker's folder in use: recovered, written, kept small.

`BrokerStore.open` takes the folder and recovers it. `commit` is called by one thread, the writer's;
everything else by the loop's. A checkpoint syncs the segments that have changed, writes a snapshot
of the state beside them, and removes the journal before it; meanwhile writing goes on.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from holdfast.system import disk, logs
from holdfast.topics.broker.core import commands
from holdfast.topics.broker.core.state import (
    BrokerState,
    Effect,
    Image,
    TopicGone,
    TopicMade,
    Trimmed,
    Written,
)
from holdfast.topics.broker.disk import folder as files
from holdfast.topics.broker.disk.journal import BrokerJournal, JournalReplay, crc, read_mark
from holdfast.topics.broker.disk.partition_log import LogEnd, PartitionLog
from holdfast.topics.broker.disk.segment import OpenFiles
from holdfast.wire.errors import BugError, Corrupt, DiskFailed, Full

# A segment of the journal; a checkpoint needs no more of them than it must replay.
JOURNAL_SEGMENT_BYTES: Final = 32 * 1024 * 1024
# What is replayed at a start: about a second of it.
CHECKPOINT_BYTES: Final = 64 * 1024 * 1024
CHECKPOINT_ENTRIES: Final = 50_000
# Records that a start keeps in memory until their logs are used: ten thousand logs with one each.
DEFERRED_BYTES_MAX: Final = 8 * 1024 * 1024
# Without space for a new segment the old one goes on; asking more often would make none.
ROLL_RETRY_S: Final = 5.0

_SNAPSHOT_MAGIC: Final = b"HFTSNP01"

log = logs.get(__name__)

Key = tuple[bytes, int]


class LogPlace(NamedTuple):
    """A partition's log in a snapshot."""

    topic_id: bytes
    partition: int
    bases: list[int]
    end: tuple[int, int]


class StateSnapshot(msgspec.Struct, array_like=True):
    """The state after an entry, and how far each log was then."""

    last: int
    time_ms: int
    image: Image
    places: list[LogPlace]


@dataclass(frozen=True, slots=True)
class StoreCheckpoint:
    """What a checkpoint has to do, taken in the loop at one moment."""

    last: int
    data: bytes
    paths: list[Path]
    folders: list[Path]
    closed_before: dict[Key, int]


@dataclass(frozen=True, slots=True)
class StoreRecovery:
    """How a folder was recovered."""

    snapshot: str
    entries: int
    cut_bytes: int
    seconds: float


def read_snapshot(path: Path) -> StateSnapshot:
    """The state that is kept there; `Corrupt` if it does not check."""
    raw = path.read_bytes()
    body = raw[len(_SNAPSHOT_MAGIC) : -4]
    if not raw.startswith(_SNAPSHOT_MAGIC) or crc(body).to_bytes(4, "big") != raw[-4:]:
        raise files.corrupt(path, 0, "its checksum is wrong")
    return msgspec.msgpack.decode(body, type=StateSnapshot)


class BrokerStore:
    """A folder in use. Made by `BrokerStore.open`."""

    def __init__(self, folder: Path, lock: int) -> None:
        self.folder = folder
        self.state = BrokerState()
        self.logs: dict[Key, PartitionLog] = {}
        self.last_time_ms = 0
        self.cluster_id = ""
        self.recovery = StoreRecovery("", 0, 0, 0.0)
        self._lock = lock
        self._files = OpenFiles()
        self._journal: BrokerJournal
        self._broken: DiskFailed | None = None
        self._roll_after_s = 0.0
        self._synced: dict[Key, LogEnd] = {}  # how far each log is in the last snapshot
        self._dirty: set[Key] = set()
        self.closed_before: dict[Key, int] = {}  # segments that the last snapshot knows as closed
        self._unwritten: set[Key] = set()
        self._unsettled: dict[Key, None] = {}  # logs that nobody has used since the start
        self._deferred: set[Key] = set()  # those of them with records that only the journal has
        self._deferred_bytes = 0
        self._recovering = True
        self._since_entries = 0
        self._since_bytes = 0

    # --- opening ------------------------------------------------------------------------------

    @classmethod
    def open(cls, folder: Path) -> BrokerStore:
        """Take the folder for this process (`Occupied` if another has it) and recover it.

        A torn tail is cut; any other damage is refused as `Corrupt`.
        """
        started_s = time.monotonic()
        lock = -1
        try:
            disk.make_folder(folder, 0o700)
            lock = files.take_lock(folder)
            files.remove_unfinished(folder)
            store = cls(folder, lock)
            store.cluster_id = files.cluster_id(folder)
            store._recover(started_s)
        except BaseException as error:
            if lock >= 0:
                os.close(lock)
            if isinstance(error, OSError):
                raise files.explain(error, folder) from error
            raise
        return store

    def _recover(self, started_s: float) -> None:
        snapshot, name = self._newest_snapshot()
        last = snapshot.last if snapshot else 0
        # Before any file is cut to what the snapshot knows of it: if the journal cannot bring the
        # rest back, segments are all that is left of it (`salvage`).
        for _ in JournalReplay(self.folder, last):
            pass
        if snapshot is not None:
            self._take(snapshot)
        replay = JournalReplay(self.folder, last)
        count = 0
        for entry in replay:
            command = commands.decode(entry.data)
            outcome = self.state.apply(command, entry.time_ms)
            self.execute(outcome.effects)
            self._since_bytes += len(entry.data)
            self.last_time_ms = max(self.last_time_ms, entry.time_ms)
            last, count = entry.number, count + 1
        self._since_entries = count
        self._recovering = False
        self._check_logs()
        tail = replay.tail
        if tail is None:
            self._refuse_missing_journal()
            self._journal = BrokerJournal.create(self.folder, last + 1)
        else:
            if tail.last < last:
                why = f"it ends with entry {tail.last:#x}, and the snapshot has {last:#x}"
                raise files.corrupt(tail.path, tail.end, why)
            self._journal = BrokerJournal(tail)
        cut = tail.cut_bytes if tail else 0
        if cut and tail:
            log.warning(
                "the journal's last group was incomplete and is cut: it was never acknowledged",
                file=str(tail.path),
                bytes=cut,
            )
        self.recovery = StoreRecovery(name, count, cut, time.monotonic() - started_s)

    def _refuse_missing_journal(self) -> None:
        """A folder without a journal is a new one, or not whole: ours always has a segment."""
        there = [self.folder / files.DURABLE, self.folder / files.LOGS]
        there += [path for _, path in files.numbered(self.folder, "snapshot")]
        known = next((path.name for path in there if path.exists()), "")
        if known:
            mark = read_mark(self.folder)
            path = files.journal_path(self.folder, mark[0] if mark else 1)
            last = f", up to entry {mark[2]:#x}" if mark else ""
            raise files.corrupt(path, 0, f"it is missing, and {known} is of a journal{last}")

    def _newest_snapshot(self) -> tuple[StateSnapshot | None, str]:
        found = files.numbered(self.folder, "snapshot")
        if not found:
            return None, ""
        path = found[-1][1]
        return read_snapshot(path), path.name

    def _take(self, snapshot: StateSnapshot) -> None:
        self.state = BrokerState.of(snapshot.image)
        self.last_time_ms = snapshot.time_ms
        for topic_id, partition, bases, end in snapshot.places:
            made = self.log((topic_id, partition))
            made.open(bases, LogEnd(*end))
            self._unsettled[topic_id, partition] = None
            self._synced[topic_id, partition] = LogEnd(*end)
            self.closed_before[topic_id, partition] = end[0]

    def _check_logs(self) -> None:
        """Refuse logs with holes; remove what belongs to nobody."""
        for topic in self.state:
            for number, partition in enumerate(topic.partitions):
                held = self.logs.get((topic.topic_id, number))
                if held is not None:
                    held.check(partition.log_start)
        known = {topic.topic_id.hex() for topic in self.state}
        with suppress(FileNotFoundError):
            for path in (self.folder / files.LOGS).iterdir():
                if path.name not in known:
                    self._forget_folder(path)

    def _forget_folder(self, path: Path) -> None:
        for partition in path.iterdir():
            PartitionLog(self._files, partition).remove()
        with suppress(OSError):
            path.rmdir()

    # --- writing ------------------------------------------------------------------------------

    @property
    def last(self) -> int:
        """The number of the last durable entry."""
        return self._journal.last

    def commit(self, entries: Sequence[bytes]) -> None:
        """Make these durable, all or none. `Full`: none is kept, and a later call may succeed.
        `DiskFailed`: the disk is not trusted any more."""
        if self._broken is not None:
            raise self._broken
        try:
            self._journal.append(entries)
            if self._journal.end >= JOURNAL_SEGMENT_BYTES:
                self._roll()
        except DiskFailed as error:
            self._broken = error
            raise

    def _roll(self) -> None:
        if time.monotonic() < self._roll_after_s:
            return
        try:
            self._journal = self._journal.roll()
        except (OSError, Full) as error:
            self._roll_after_s = time.monotonic() + ROLL_RETRY_S
            log.warning("no new segment of the journal; the old one goes on", why=str(error))

    def log(self, key: Key) -> PartitionLog:
        """The log of a partition; made if it is not there."""
        if key in self._unsettled:
            self._settle(key)
        held = self.logs.get(key)
        if held is None:
            path = files.partition_folder(self.folder, *key)
            held = self.logs[key] = PartitionLog(self._files, path)
        return held

    # --- after a start ------------------------------------------------------------------------

    def _defers(self, effect: Written) -> bool:
        """Take a record at a start without opening its log. Whether there was a place for it."""
        key, size = (effect.topic_id, effect.partition), len(effect.data)
        is_first = key not in self.logs and key not in self._unsettled
        if self._deferred_bytes + size > DEFERRED_BYTES_MAX:
            return False
        if not is_first and key not in self._unsettled:
            return False
        if is_first:
            self.log(key)
            self._unsettled[key] = None
        self.logs[key].defer(effect.data)
        self._deferred.add(key)
        self._dirty.add(key)
        self._deferred_bytes += size
        return True

    def _settle(self, key: Key) -> None:
        del self._unsettled[key]
        self._deferred.discard(key)
        held, topic = self.logs[key], self.state.by_id.get(key[0])
        if topic is None:
            return
        end = topic.partitions[key[1]].next_offset
        if not held.settle(topic.settings, end):
            self._unwritten.add(key)
        if not self._deferred:
            self._deferred_bytes = 0

    def settle(self, count: int) -> None:
        """Look into some of the logs that nobody has used since the start."""
        for key in [*self._deferred, *self._unsettled][:count]:
            if key in self._unsettled:
                self._settle(key)

    def damage(self, key: Key) -> Corrupt | None:
        """What is known to be wrong with a partition's log; None: nothing."""
        held = self.logs.get(key)
        return None if held is None else held.describe_damage()

    @property
    def is_waiting(self) -> bool:
        """Whether records of the journal have no space in their segments."""
        return bool(self._unwritten)

    def is_settled(self, key: Key) -> bool:
        return key not in self._unsettled

    def execute(self, effects: Sequence[Effect]) -> None:
        """Do to the files what applying a durable command says."""
        for effect in effects:
            if isinstance(effect, Written):
                self._write(effect)
            elif isinstance(effect, Trimmed):
                self.log((effect.topic_id, effect.partition)).trim(effect.log_start)
            elif isinstance(effect, TopicGone):
                self._remove_topic(effect.topic_id)
            elif not isinstance(effect, TopicMade):
                raise BugError(f"nobody knows what to do about {effect!r}")

    def _write(self, effect: Written) -> None:
        if self._recovering and self._defers(effect):
            return
        key = effect.topic_id, effect.partition
        held = self.log(key)
        held.append(effect.data, self.state.by_id[effect.topic_id].settings)
        self._dirty.add(key)
        if held.readable_end is not None:
            self._unwritten.add(key)

    def _remove_topic(self, topic_id: bytes) -> None:
        for key in [key for key in self.logs if key[0] == topic_id]:
            self._unsettled.pop(key, None)
            self._deferred.discard(key)
            self.logs.pop(key).remove()
            self._synced.pop(key, None)
            self._dirty.discard(key)
            self._unwritten.discard(key)
        with suppress(OSError):
            (self.folder / files.LOGS / topic_id.hex()).rmdir()

    def write_waiting(self) -> bool:
        """Write what waits for space; whether nothing waits any more."""
        for key in list(self._unwritten):
            topic = self.state.by_id.get(key[0])
            if topic is None or self.logs[key].write_waiting(topic.settings):
                self._unwritten.discard(key)
        return not self._unwritten

    # --- checkpoints --------------------------------------------------------------------------

    def count(self, entries: int, size: int) -> None:
        """So much was applied since the last checkpoint."""
        self._since_entries += entries
        self._since_bytes += size

    @property
    def wants_checkpoint(self) -> bool:
        due = self._since_entries >= CHECKPOINT_ENTRIES or self._since_bytes >= CHECKPOINT_BYTES
        return due and self.can_checkpoint

    @property
    def can_checkpoint(self) -> bool:
        """Whether all records are in their segments; until then the journal is needed."""
        return not self._unwritten and not self._deferred

    def begin_checkpoint(self, last: int) -> StoreCheckpoint:
        """Take the state as it is after entry `last`: everything that was applied."""
        self._since_entries = self._since_bytes = 0
        paths: list[Path] = []
        folders: set[Path] = set()
        for key in self._dirty:
            if key in self._unsettled:
                self._settle(key)
            held = self.logs.get(key)
            if held is None:
                continue
            since = self._synced.get(key, LogEnd(0, 0))
            held.write_indexes(since)
            paths += held.dirty_paths(since)
            folders |= {held.folder, held.folder.parent, held.folder.parent.parent}
            self._synced[key] = held.end
        self._dirty.clear()
        places = [
            LogPlace(*key, held.bases, (held.end.base_offset, held.end.size))
            for key, held in self.logs.items()
            if held.segments
        ]
        snapshot = StateSnapshot(last, self.last_time_ms, self.state.image(), places)
        data = msgspec.msgpack.encode(snapshot)
        closed = {(one.topic_id, one.partition): one.end[0] for one in places}
        return StoreCheckpoint(last, data, paths, sorted(folders), closed)

    def finish_checkpoint(self, work: StoreCheckpoint) -> None:
        """Make it durable, and remove what it replaces. In any thread."""
        for path in [*work.paths, *work.folders]:
            with suppress(FileNotFoundError):  # trimmed meanwhile, or its topic was deleted
                handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
                try:
                    os.fsync(handle)
                finally:
                    os.close(handle)
        raw = _SNAPSHOT_MAGIC + work.data + crc(work.data).to_bytes(4, "big")
        disk.replace_durably(files.snapshot_path(self.folder, work.last), raw)
        for number, path in files.numbered(self.folder, "snapshot"):
            if number < work.last:
                path.unlink(missing_ok=True)
        segments = files.numbered(self.folder, "journal")
        for (_, path), (following, _) in pairwise(segments):
            if following <= work.last + 1:
                path.unlink(missing_ok=True)

    def checkpoint_done(self, work: StoreCheckpoint) -> None:
        self.closed_before = work.closed_before

    def checkpoint_failed(self, keys: Sequence[Key] = ()) -> None:
        """Nothing of it counts: everything is dirty again."""
        self._synced.clear()
        self._dirty.update(keys or self.logs)

    def close(self, *, clean: bool) -> None:
        """Let the folder go; `clean`: with a snapshot, so that the next start replays nothing."""
        if self._lock < 0:
            return
        try:
            if clean and self._broken is None and self._since_entries:
                self.settle(len(self._deferred))
            if clean and self._broken is None and self._since_entries and self.can_checkpoint:
                self.finish_checkpoint(self.begin_checkpoint(self.last))
            if self._broken is None:
                self._journal.finish()
        except (OSError, Full) as error:
            # Nothing that was acknowledged depends on it.
            log.warning("the journal was not closed cleanly", why=str(error))
        finally:
            self.release()

    def release(self) -> None:
        """Give the files and the folder back, as a death does; again: nothing."""
        if self._lock < 0:
            return
        self._journal.close()
        self._files.close()
        os.close(self._lock)
        self._lock = -1
