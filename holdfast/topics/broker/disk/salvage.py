"""Save what can be saved of a broker's folder that was refused. The folder itself is not changed.

    report = salvage(folder, target)

- The state (topics, offsets of groups, transactions, access) is that of the snapshot and of the
  journal up to the first damage: what follows was decided in a state that nobody knows any more.
- Records need no state to be checked: every batch that has its checksum, in segments or in the
  journal, is kept at its own offset. What is missing between them is a hole that readers pass over,
  and the report names its offsets.
- Where the state is not complete, a transaction whose end is not known is aborted. Where the
  snapshot is lost, topics whose names are nowhere are called `salvaged-ID`, and what else was only
  there is gone: the report says so.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from holdfast.system import disk
from holdfast.topics.broker.core import batch, commands
from holdfast.topics.broker.core.batch import ABORT, COMMIT, HEADER_BYTES, Header
from holdfast.topics.broker.core.partition import Partition
from holdfast.topics.broker.core.records import read_records
from holdfast.topics.broker.core.state import BrokerState, Topic, Written
from holdfast.topics.broker.core.transactions import TransactionPhase
from holdfast.topics.broker.disk import folder as files
from holdfast.topics.broker.disk.journal import JournalReader, read_mark
from holdfast.topics.broker.disk.store import BrokerStore, read_snapshot
from holdfast.topics.broker.protocol.codec import MalformedMessage
from holdfast.wire.errors import Corrupt, Occupied, Usage

_MAGIC_AT: Final = 16  # of a batch's version, in its header
_LOST_STATE: Final = (
    "settings of topics, offsets of groups, transactional ids and access lists that were only there"
)


@dataclass(slots=True)
class TopicsSalvage:
    """What was kept and what is lost: `damage` is what did not check, `lost` what is not in the new
    folder because of it."""

    source: Path
    target: Path
    topics: int = 0
    batches: int = 0
    damage: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)

    @property
    def loses(self) -> bool:
        return bool(self.lost)


def salvage(folder: Path, target: Path) -> TopicsSalvage:
    """Write what checks of `folder` to `target`, a new folder. `Occupied`: a broker uses it."""
    if not (folder / files.CLUSTER).exists() and not (folder / files.LOGS).is_dir():
        raise Usage(f"{folder} is not a broker's folder", fix="give the folder of `--data`")
    if target.exists() and any(target.iterdir()):
        raise Occupied(
            f"{target} is not empty", why="it gets a whole folder", fix="name one that is not there"
        )
    lock = files.take_lock(folder)
    try:
        return _Salvage(folder, target).run()
    finally:
        os.close(lock)


class _Salvage:
    def __init__(self, folder: Path, target: Path) -> None:
        self.folder = folder
        self.report = TopicsSalvage(folder, target)
        self.state = BrokerState()
        self.last = 0
        self.time_ms = 0
        self.has_state = True  # the snapshot was good, or there never was one
        self.is_complete = True  # and so was all of the journal
        self.names: dict[bytes, str] = {}
        self.bases: dict[tuple[bytes, int], list[int]] = {}  # segments that the snapshot knows
        # By partition: batches that the journal still has, by their offsets.
        self.journaled: dict[tuple[bytes, int], dict[int, bytes]] = {}

    def run(self) -> TopicsSalvage:
        self._read_snapshot()
        self._read_journal()
        report = self.report
        report.target.mkdir(mode=0o700, parents=True, exist_ok=True)
        with suppress(FileNotFoundError):  # then the new folder gets an id of its own
            disk.draft(report.target / files.CLUSTER, (self.folder / files.CLUSTER).read_bytes())
        self._adopt_folders()
        store = BrokerStore.open(report.target)
        clean = False
        try:
            store.state, store.last_time_ms = self.state, self.time_ms
            for topic in list(self.state):
                for number, partition in enumerate(topic.partitions):
                    self._save(store, topic, number, partition)
            if not self.is_complete:
                self._abort_open(store)
            report.topics = len(self.state.topics)
            store.count(1, 0)  # so that it ends with a snapshot
            clean = True
        finally:
            store.close(clean=clean)
        return report

    # --- the state ------------------------------------------------------------------------------

    def _read_snapshot(self) -> None:
        found = files.numbered(self.folder, "snapshot")
        for number, path in reversed(found):
            try:
                snapshot = read_snapshot(path)
            except (Corrupt, OSError) as error:
                self.report.damage.append(_sentence(error))
                continue
            self.state = BrokerState.of(snapshot.image)
            self.last, self.time_ms = snapshot.last, snapshot.time_ms
            self.bases = {(one.topic_id, one.partition): one.bases for one in snapshot.places}
            if number != found[-1][0]:
                self.is_complete = False
            return
        segments = files.numbered(self.folder, "journal")
        # Without a snapshot the journal has everything, if it begins with the first entry.
        self.has_state = segments[0][0] == 1 if segments else not found
        if not self.has_state:
            self.is_complete = False
            self.report.lost.append(_LOST_STATE)

    def _read_journal(self) -> None:
        """Apply what follows the snapshot, up to the first damage; behind it, and where there is no
        state, only batches and names are taken."""
        mark = read_mark(self.folder)
        good, reached = self.has_state, self.last
        segments = files.numbered(self.folder, "journal")
        if not segments:
            good = self._stop("the journal is missing", good)
        for first, path in segments:
            try:
                reader = JournalReader(path)
            except (Corrupt, OSError) as error:
                good = self._stop(_sentence(error), good)
                continue
            if first > reached + 1:
                good = self._stop(f"entries {reached + 1:#x} to {first - 1:#x} are missing", good)
            for entry in reader:
                self.time_ms = max(self.time_ms, entry.time_ms)
                command = commands.decode(entry.data)
                if isinstance(command, commands.CreateTopic):
                    self.names[command.topic_id] = command.name
                if entry.number <= self.last or not good:
                    continue
                for effect in self.state.apply(command, entry.time_ms).effects:
                    if isinstance(effect, Written):
                        key = effect.topic_id, effect.partition
                        self.journaled.setdefault(key, {})[effect.base_offset] = effect.data
            short = mark is not None and mark[0] == reader.first and reader.end < mark[1]
            if short or (reader.fault and reader.has_good_group_after(reader.end)):
                good = self._stop(
                    f"{path} is damaged at byte {reader.end}: what was durable does not check", good
                )
            reached = max(reached, reader.last)
        if mark is not None and reached < mark[2]:
            self._stop(f"entries {reached + 1:#x} to {mark[2]:#x} are missing", good)

    def _stop(self, damage: str, good: bool) -> bool:
        self.report.damage.append(damage)
        self.is_complete = False
        if good:
            self.report.lost.append(
                "changes of topics, offsets of groups and transactions after that damage: "
                "records that still lie in segments are kept"
            )
        return False

    def _adopt_folders(self) -> None:
        """Topics that the state does not know, where it does not know all."""
        logs = self.folder / files.LOGS
        if self.is_complete or not logs.is_dir():
            return
        for path in sorted(logs.iterdir()):
            try:
                topic_id = bytes.fromhex(path.name)
            except ValueError:
                continue
            if topic_id in self.state.by_id:
                continue
            name = self.names.get(topic_id, "")
            if not name or name in self.state.topics:
                name = f"salvaged-{path.name}"
                self.report.lost.append(f"the name of a topic: it is called {name}")
            numbers = [int(one.name) for one in path.iterdir() if one.name.isdecimal()]
            partitions = [Partition() for _ in range(max(numbers, default=0) + 1)]
            topic = Topic(name, topic_id, {}, partitions)
            topic.configure({})
            self.state.topics[name] = self.state.by_id[topic_id] = topic

    # --- records --------------------------------------------------------------------------------

    def _save(self, store: BrokerStore, topic: Topic, number: int, partition: Partition) -> None:
        """Write what checks of a partition, in order, and say which offsets are missing."""
        key = topic.topic_id, number
        known_to = partition.next_offset  # the state has counted what is before
        compacts = _compacts(topic)
        at = partition.log_start
        for header, data in self._batches(topic, number, partition):
            if header.base_offset > at and not compacts:
                self._lose(topic, number, at, header.base_offset)
            if header.base_offset >= known_to:
                self._count(partition, header, data)
            store.execute((Written(*key, header.base_offset, data),))
            self.report.batches += 1
            at = header.last_offset + 1
        if at < partition.next_offset and not compacts:
            self._lose(topic, number, at, partition.next_offset)

    def _lose(self, topic: Topic, number: int, first: int, after: int) -> None:
        many = f"offset {first}" if after == first + 1 else f"offsets {first} to {after - 1}"
        self.report.lost.append(f"{topic.name}[{number}]: {many}")

    def _batches(
        self, topic: Topic, number: int, partition: Partition
    ) -> Iterator[tuple[Header, bytes]]:
        """Good batches from where the log begins, each once: those of segments, and where they have
        none, those of the journal."""
        spare = sorted(self.journaled.get((topic.topic_id, number), {}).items())
        spare_at, at = 0, partition.log_start
        end = partition.next_offset if self.is_complete else None
        for header, data in self._in_segments(topic, number):
            while spare_at < len(spare) and spare[spare_at][0] < header.base_offset:
                held = spare[spare_at][1]
                spare_at += 1
                found = batch.read_header(held)
                if found.base_offset >= at:
                    yield found, held
                    at = found.last_offset + 1
            if header.last_offset < at or (end is not None and header.base_offset >= end):
                continue
            yield header, data
            at = header.last_offset + 1
        for base, held in spare[spare_at:]:
            if base >= at:
                found = batch.read_header(held)
                yield found, held
                at = found.last_offset + 1

    def _in_segments(self, topic: Topic, number: int) -> Iterator[tuple[Header, bytes]]:
        place = files.partition_folder(self.folder, topic.topic_id, number)
        found = {int(path.stem): path for path in place.glob("*.log")} if place.is_dir() else {}
        partition = topic.partitions[number]
        for base in self.bases.get((topic.topic_id, number), ()):
            if base not in found and base >= partition.log_start and base < partition.next_offset:
                self.report.damage.append(f"{place / f'{base:020d}.log'} is missing")
                self._lose_compacted(topic, number, f"the segment of offset {base}")
        for base, path in sorted(found.items()):
            if self.is_complete and base >= partition.next_offset:
                continue  # left by a broker that was killed: the journal decides
            if path.stat().st_size:
                with (
                    path.open("rb") as file,
                    mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as raw,
                ):
                    yield from self._in_segment(raw, path, base, topic, number)

    def _in_segment(
        self, raw: mmap.mmap, path: Path, base: int, topic: Topic, number: int
    ) -> Iterator[tuple[Header, bytes]]:
        at, least = 0, base
        while at < len(raw):
            header = _header_at(raw, at)
            if header is None:
                after = _next_batch(raw, at, least)
                end = len(raw) if after is None else after
                if raw[at:end].strip(b"\0"):
                    where = f"{path} from byte {at} to {end}"
                    self.report.damage.append(f"{where}: no batch there checks")
                    self._lose_compacted(topic, number, where)
                at = end
                continue
            data = raw[at : at + header.size]
            at += header.size
            if header.base_offset != least and _offset_at(raw, at) == _after(header, least):
                # The checksum does not cover the offset; the batches around it say what it was.
                self.report.damage.append(f"{path} at byte {at - header.size}: its offset is wrong")
                data = batch.stamp(data, least)
                header = batch.read_header(data)
            if header.base_offset >= least:
                yield header, data
                least = header.last_offset + 1
            else:
                where = f"{path} at byte {at - header.size}"
                self.report.damage.append(f"{where}: its offset is before those before it")

    def _lose_compacted(self, topic: Topic, number: int, where: str) -> None:
        """Which offsets these were is not known: a compacted log has holes of its own."""
        if _compacts(topic):
            self.report.lost.append(f"{topic.name}[{number}], a compacted log: {where}")

    def _count(self, partition: Partition, header: Header, data: bytes) -> None:
        """A batch that the state has not seen: behind the journal's damage, or all of them."""
        partition.next_offset = header.base_offset
        self._see_producer(header.producer_id)
        if header.is_control:
            kind = _kind(data, header)
            partition.append_marker(kind, header.producer_id, header.producer_epoch, self.time_ms)
        else:
            partition.append(header, self.time_ms)
        partition.next_offset = header.last_offset + 1

    def _see_producer(self, producer_id: int) -> None:
        transactions = self.state.transactions
        transactions.next_producer_id = max(transactions.next_producer_id, producer_id + 1)

    def _abort_open(self, store: BrokerStore) -> None:
        """Nobody knows how these were to end."""
        for held in list(self.state.transactions.by_id.values()):
            if held.phase is TransactionPhase.ONGOING:
                held.close(commit=False, now_ms=self.time_ms)
        for topic in list(self.state):
            for number, partition in enumerate(topic.partitions):
                for producer_id, first in sorted(partition.open_from.items()):
                    epoch = partition.producers[producer_id].epoch
                    offset = partition.append_marker(ABORT, producer_id, epoch, self.time_ms)
                    data = batch.stamp(
                        batch.marker(ABORT, producer_id, epoch, self.time_ms), offset
                    )
                    store.execute((Written(topic.topic_id, number, offset, data),))
                    self.report.lost.append(
                        f"{topic.name}[{number}]: the transaction of producer {producer_id} from "
                        f"offset {first} on is aborted: how it was to end is not known"
                    )


def _header_at(raw: mmap.mmap, at: int) -> Header | None:
    """The header of the batch that begins there, if all of it checks."""
    if at + HEADER_BYTES > len(raw) or raw[at + _MAGIC_AT] != 2:
        return None
    header = batch.read_header(raw[at : at + HEADER_BYTES])
    if header.length <= 0 or at + header.size > len(raw) or header.last_offset_delta < 0:
        return None
    return header if batch.is_whole(raw[at : at + header.size], header) else None


def _next_batch(raw: mmap.mmap, at: int, least: int) -> int | None:
    """Where the next good batch begins behind damage: one that the end, or another good one,
    follows. (A record may hold a batch; that is none of the log.)"""
    found = raw.find(b"\2", at + 1 + _MAGIC_AT)
    while found >= 0:
        place = found - _MAGIC_AT
        header = _header_at(raw, place)
        if header is not None and header.base_offset >= least:
            end = place + header.size
            if end == len(raw) or _offset_at(raw, end) == header.last_offset + 1:
                return place
        found = raw.find(b"\2", found + 1)
    return None


def _offset_at(raw: mmap.mmap, at: int) -> int | None:
    """The offset of the good batch that begins there; None: none does."""
    header = _header_at(raw, at)
    return None if header is None else header.base_offset


def _after(header: Header, base_offset: int) -> int:
    return base_offset + header.last_offset_delta + 1


def _compacts(topic: Topic) -> bool:
    return "compact" in topic.configs.get("cleanup.policy", "")


def _kind(data: bytes, header: Header) -> int:
    """Whether a marker commits or aborts; what cannot be read aborts."""
    with suppress(MalformedMessage, IndexError):
        for record in read_records(data, header):
            if record.key is not None and len(record.key) >= 4:
                return COMMIT if int.from_bytes(record.key[2:4], "big") == COMMIT else ABORT
    return ABORT


def _sentence(error: BaseException) -> str:
    return error.sentence if isinstance(error, Corrupt) else str(error)
