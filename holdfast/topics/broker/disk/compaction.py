"""Compaction: of the records with one key only the last one stays.

A pass works on closed segments that a snapshot knows to be closed, beside the loop: `plan` is taken
in the loop, `clean` runs in a thread and writes new files, and `PartitionLog.replace` puts each in
its segment's place. A segment keeps its first offset, so offsets have gaps and never move.

Records of aborted transactions count for nothing and go. Markers stay. A tombstone stays for
`delete.retention.ms`: whoever reads the log from its beginning within that time hears of it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from hashlib import blake2b
from itertools import pairwise
from pathlib import Path
from typing import Final

from holdfast.topics.broker.core import batch, records
from holdfast.topics.broker.core.batch import Header
from holdfast.topics.broker.core.configs import TopicSettings
from holdfast.topics.broker.core.partition import Aborted
from holdfast.topics.broker.core.records import LogRecord
from holdfast.topics.broker.disk.segment import DamagedSegment, OpenFiles, Segment
from holdfast.topics.broker.protocol.codec import MalformedMessage

# Keys that one pass remembers, some hundred bytes each; what lies behind them waits for the next.
KEYS_MAX: Final = 500_000
_DIGEST_BYTES: Final = 16
SUFFIX: Final = ".cleaned"


@dataclass(frozen=True, slots=True)
class Closed:
    """A closed segment."""

    path: Path
    base_offset: int
    size: int
    max_timestamp: int


@dataclass(frozen=True, slots=True)
class CompactionPlan:
    """What a pass works on: all closed segments, of which those from `dirty_from` on are new."""

    segments: list[Closed]
    dirty_from: int
    end: int
    aborted: list[Aborted]
    settings: TopicSettings
    now_ms: int


@dataclass(frozen=True, slots=True)
class Cleaned:
    """What became of it: new files beside their segments, and how far the pass came."""

    segments: list[tuple[int, Path]]
    until: int


def plan(
    segments: list[Segment],
    *,
    closed_before: int,
    cleaned_until: int,
    stable: int,
    aborted: list[Aborted],
    settings: TopicSettings,
    now_ms: int,
) -> CompactionPlan | None:
    """What is to be cleaned now; None: not enough has changed."""
    closed: list[Closed] = []
    end = 0
    for one, following in pairwise(segments):
        lag_over = now_ms - one.max_timestamp >= settings.compaction_lag_ms
        if one.base_offset >= closed_before or following.base_offset > stable or not lag_over:
            break
        closed.append(Closed(one.path, one.base_offset, one.size, one.max_timestamp))
        end = following.base_offset
    total = sum(one.size for one in closed)
    dirty = sum(one.size for one in closed if one.base_offset >= cleaned_until)
    if not dirty or dirty < settings.dirty_ratio * total:
        return None
    return CompactionPlan(closed, cleaned_until, end, aborted, settings, now_ms)


def clean(work: CompactionPlan, keys_max: int = KEYS_MAX) -> Cleaned:
    """Write the segments anew, without what nobody needs. In any thread. `DamagedSegment`: one of
    them is not what was written, and all stay as they are."""
    files = OpenFiles(8)
    try:
        latest, until = _latest(work, files, keys_max)
        made = []
        for one in work.segments:
            if one.base_offset >= until:
                break
            path = _rewrite(one, work, latest, files)
            if path is not None:
                made.append((one.base_offset, path))
        return Cleaned(made, until)
    finally:
        files.close()


def _latest(work: CompactionPlan, files: OpenFiles, keys_max: int) -> tuple[dict[bytes, int], int]:
    """Where each key of the new part is written last, and how far that was looked at."""
    latest: dict[bytes, int] = {}
    for one in work.segments:
        if one.base_offset < work.dirty_from:
            continue
        found: dict[bytes, int] = {}
        for header, data in _batches(one, files):
            if not header.is_control and not _is_aborted(header, work.aborted):
                for record in _records(data, header):
                    if record.key is not None:
                        found[_digest(record.key)] = record.offset
        if latest and len(latest) + len(found) > keys_max:
            return latest, one.base_offset
        latest |= found
    return latest, work.end


def _digest(key: bytes) -> bytes:
    return key if len(key) <= _DIGEST_BYTES else b"\0" + blake2b(key, digest_size=24).digest()


def _batches(one: Closed, files: OpenFiles) -> Iterator[tuple[Header, bytes]]:
    """Its batches, each checked: what is damaged is not written anew under a checksum of ours."""
    segment = Segment(files, one.path.parent, one.base_offset, one.size)
    least = one.base_offset
    for header, at in segment.walk(0):
        data = segment.read(at, header.size)
        if not batch.is_whole(data, header):
            raise DamagedSegment(one.base_offset, at, "a batch's checksum is wrong")
        if header.base_offset < least:
            raise DamagedSegment(one.base_offset, at, "a batch's offset is not in order")
        yield header, data
        least = header.last_offset + 1


def _records(data: bytes, header: Header) -> list[LogRecord]:
    """The records of a batch; of one that cannot be read none, and it stays as it is."""
    try:
        return list(records.read_records(data, header))
    except MalformedMessage:
        return []


def _is_aborted(header: Header, aborted: list[Aborted]) -> bool:
    return header.is_transactional and any(
        one.producer_id == header.producer_id
        and one.first_offset <= header.base_offset <= one.last_offset
        for one in aborted
    )


def _rewrite(
    one: Closed, work: CompactionPlan, latest: dict[bytes, int], files: OpenFiles
) -> Path | None:
    """The segment without what nobody needs, durable beside it; None: it stays as it is."""
    forgets_ms = work.now_ms - work.settings.tombstones_ms
    target = one.path.with_suffix(SUFFIX)
    changed = False

    def is_kept(record: LogRecord, header: Header) -> bool:
        if record.key is None:
            return True
        if record.offset < latest.get(_digest(record.key), -1):
            return False
        return record.value is not None or header.max_timestamp >= forgets_ms

    with open(target, "wb", opener=_private) as out:
        for header, data in _batches(one, files):
            kept = _compact(data, header, work.aborted, is_kept)
            changed = changed or kept is not data
            if kept is not None:
                out.write(kept)
        out.flush()
        os.fsync(out.fileno())
    if not changed:
        target.unlink()
        return None
    return target


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _compact(
    data: bytes,
    header: Header,
    aborted: list[Aborted],
    is_kept: Callable[[LogRecord, Header], bool],
) -> bytes | None:
    """A batch with the records that stay: itself if all do, None if none does."""
    if header.is_control:
        return data
    if _is_aborted(header, aborted):
        return None
    found = _records(data, header)
    kept = [record for record in found if is_kept(record, header)]
    if len(kept) == len(found):
        return data
    if not kept:
        return None
    body = b"".join(
        records.encode(
            record.offset - header.base_offset,
            0
            if header.attributes & batch.LOG_APPEND_TIME
            else record.timestamp - header.base_timestamp,
            record.key,
            record.value,
            record.headers,
        )
        for record in kept
    )
    return batch.remake(header, records.pack(body, header.codec), len(kept))
